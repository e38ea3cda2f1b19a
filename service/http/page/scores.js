// Scores: which of a photo's labels are shown; the rules are those of `service/pipeline/scoring.py`.
//
// In: every label with its score, and what the controls say. Out: the labels to show, and the
// parameters with which the service alone would answer the same.

/** Asked for at once, so that the slider needs no request. */
export const MOST_LABELS = 1000;

const BETWEEN_LABELS = /[,\n]/;

/** Labels to show of `labels`, which are best first; those in `always` whatever they score. */
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

/** Labels of a text with commas or line ends between, each once. */
export function splitLabels(text) {
  const names = text.split(BETWEEN_LABELS).map((name) => name.trim().replace(/\s+/g, " "));
  return [...new Set(names.filter(Boolean))];
}

/** What is left of such a text without `names`; a label at its end may still be typed. */
export function dropLabels(text, names) {
  const left = text.split(BETWEEN_LABELS).filter((part) => !names.includes(splitLabels(part)[0]));
  return left.join(",").trimStart();
}
