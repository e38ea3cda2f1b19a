// Which labels are shown, by the rules of `service/pipeline/scoring.py`, and the parameters with
// which the service would answer the same.

/** One request asks for this many labels, so that the slider needs none. */
export const MOST_LABELS = 1000;

const BETWEEN_LABELS = /[,\n]/;

/** Labels to show of `labels` (best first); labels in `always` ignore the threshold. */
export function pickLabels(labels, { mode, threshold, topK }, always) {
  const passes = {
    calibrated: (label) => label.score >= label.threshold,
    number: (label) => label.score >= threshold,
    best: () => true,
  }[mode];
  const best = new Set(labels.filter(passes).slice(0, topK));
  return labels.filter((label) => best.has(label) || always.has(label.label));
}

/** Parameters of the request that answers with the shown labels. */
export function showParameters({ mode, threshold, topK }) {
  const limit = { top_k: [String(topK)] };
  if (mode === "best") return limit;
  return { threshold: [mode === "number" ? String(threshold) : "calibrated"], ...limit };
}

/** Parameters that name the labels to choose from. */
export function choiceParameters(labelSets, candidates) {
  return { label_set: labelSets, candidate_labels: candidates };
}

/** Labels of a text, separated by commas or line ends, without duplicates. */
export function splitLabels(text) {
  const names = text.split(BETWEEN_LABELS).map((name) => name.trim().replace(/\s+/g, " "));
  return [...new Set(names.filter(Boolean))];
}

/** The same text without `names`; its last label may be incomplete. */
export function dropLabels(text, names) {
  const left = text.split(BETWEEN_LABELS).filter((part) => !names.includes(splitLabels(part)[0]));
  return left.join(",").trimStart();
}
