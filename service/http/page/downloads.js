// The found labels of several photos as files: CSV with the columns of `ml-decoder predict`, or JSON.

const COLUMNS = ["photo", "label", "translation", "score", "threshold", "found", "source", "calibrated", "error"];

/**
 * Begins with a byte order mark, without which spreadsheets misread `café`. `answers`:
 * `{ photo, answer, problem }`, where `answer` is the service's, with the found labels; a label that the
 * user added has no score.
 */
export function writeCsv(answers) {
  const rows = answers.flatMap(({ photo, answer, problem }) => {
    const labels = answer?.labels ?? [];
    if (labels.length === 0) return [[photo, "", "", "", "", "", "", "", problem ?? ""]];
    return labels.map((label) => [
      photo, label.label, label.translation ?? "", label.score?.toFixed(6) ?? "", label.threshold?.toFixed(6) ?? "", label.found, label.source, label.calibrated, "",
    ]);
  });
  return `\ufeff${[COLUMNS, ...rows].map((row) => `${row.map(quote).join(",")}\n`).join("")}`;
}

export function writeJson(answers) {
  return JSON.stringify(answers.map(({ photo, answer, problem }) => ({ photo, ...(answer ?? { problem }) })), null, 2);
}

/** The tags of one photo as they are shown, or a line for each photo: its name, a tab, its tags. */
export function writeTags(answers) {
  const lines = answers.map(({ photo, answer }) => [photo, (answer?.labels ?? []).map(({ label, translation }) => translation ?? label).join(", ")]);
  return lines.length === 1 ? lines[0][1] : lines.map((line) => `${line.join("\t")}\n`).join("");
}

export function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href)); // the download has begun
}

/** As RFC 4180 does; an apostrophe before a formula keeps spreadsheets from running it, escapes a terminal. */
function quote(value) {
  const plain = String(value).replace(/[\0-\x08\v\f\x0e-\x1f\x7f-\x9f]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`);
  const text = plain.replace(/^[=+\-@\t\r]/, "'$&");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
