// Which labels of an answer are shown, and the parameters with which the service answers with these alone.
// The service says which are found; only the slider, a threshold for all, is compared here.

import { askedLanguage } from "./words.js";

/** One request asks for all found labels and others up to this many, so that the controls need none. */
export const MOST_LABELS = 1000;

export const RANKED =
  "ranked, not probabilities: calibrate them with “ml-decoder export --bundle BUNDLE --open-photos FOLDER --out BUNDLE”";

const MOST_MAYBES = 3;
// A calibrated label at half of the usual threshold is right once in four times, at 0.2 once in five.
const MAYBE_SHARE = 0.5;
const MAYBE_LEAST = 0.2;

const BETWEEN_LABELS = /[,\n]/;

/**
 * Sorts `labels` (best first): `found` are the tags; the rows are the user's `own` labels, the `others`
 * that are found, and those that may be there (`maybe`).
 *
 * `typed` and `kept` are names of the user's own labels: they are shown whatever they score, of `kept`
 * that are not found at most `topK`.
 */
export function groupLabels(labels, controls, { typed, kept }) {
  const { mode, topK } = controls;
  const shown = new Set(chooseLabels(labels, controls));
  const passes = (label) => isFound(label, controls);
  const found = labels.filter((label) => passes(label) && (shown.has(label) || typed.has(label.label)));
  const lower = labels.filter((label) => !passes(label));
  const near = new Set(lower.filter((label) => kept.has(label.label)).slice(0, topK));
  const isOwn = (label) => typed.has(label.label) || (kept.has(label.label) && (passes(label) || near.has(label)));
  const strangers = lower.filter((label) => !isOwn(label));
  const isMaybe = (label) => {
    const least = mode === "number" ? controls.threshold : label.threshold;
    return label.score < least && label.score >= Math.max(MAYBE_SHARE * least, MAYBE_LEAST);
  };
  return {
    found,
    own: labels.filter((label) => isOwn(label) && (found.includes(label) || !passes(label))),
    others: found.filter((label) => !isOwn(label)),
    maybe:
      mode === "best" || mode === "filled"
        ? strangers.filter((label) => shown.has(label))
        : strangers.filter(isMaybe).slice(0, MOST_MAYBES),
  };
}

/** The labels that are shown, with which the service answers `showParameters`. */
export function chooseLabels(labels, controls) {
  const { mode, topK } = controls;
  const found = labels.filter((label) => isFound(label, controls));
  if (mode !== "filled") return (mode === "best" ? labels : found).slice(0, topK);
  const others = labels.filter((label) => !isFound(label, controls)).slice(0, Math.max(topK - found.length, 0));
  const all = new Set([...found, ...others]);
  return labels.filter((label) => all.has(label));
}

/** The answer of the service to a request with `showParameters`. */
export function shorten(answer, controls) {
  const labels = chooseLabels(answer.labels, controls);
  if (controls.mode !== "number") return { ...answer, labels };
  const { threshold } = controls;
  return { ...answer, labels: labels.map((label) => ({ ...label, threshold, found: true, calibrated: false })) };
}

/** Whether a label is a tag: by the flag of the service, or if the slider counts, by that. */
export function isFound(label, { mode, threshold }) {
  return mode === "number" ? label.score >= threshold : label.found;
}

/** Which labels are shown. */
export function describeControls({ mode, threshold, topK }) {
  if (mode === "best") return `the best ${topK} labels`;
  if (mode === "filled") return `all found labels, and the best others up to ${topK}`;
  const least = mode === "number" ? threshold.toFixed(2) : "their threshold";
  return `at most ${topK} labels that reach ${least}`;
}

/** What a threshold for all labels means. */
export function describeThreshold(threshold, isCalibrated) {
  if (!isCalibrated) return "Scores of this model are not calibrated: they order labels, but are not probabilities.";
  const value = threshold.toFixed(2);
  if (threshold === 0) return `${value}: every label`;
  if (threshold === 1) return `${value}: certain labels alone`;
  if (threshold === 0.5) return `${value}: more likely than not`;
  return `${value}: right at least ${Math.round(100 * threshold)} times in 100`;
}

/** Parameters of the request that answers with the shown ones of `labels` alone. */
export function showParameters(labels, { mode, threshold, topK }) {
  if (mode === "calibrated" && labels.filter((label) => label.found).length <= topK) return {};
  if (mode === "filled") return { min_labels: [String(topK)] };
  const limit = { top_k: [String(topK)] };
  if (mode === "best") return limit;
  return { threshold: [mode === "number" ? String(threshold) : "calibrated"], ...limit };
}

/** Parameters that name the labels to choose from. */
export function choiceParameters(labelSets, candidates) {
  return { label_set: labelSets, candidate_labels: candidates, lang: askedLanguage(labelSets, candidates.length > 0) };
}

/** Parameters as fields of a form, `[name, value]`. */
export function listFields(query) {
  return Object.entries(query).flatMap(([name, values]) => {
    // The service separates a value that is alone at its commas, and ignores an empty one.
    const isSplit = values.length === 1 && values[0].includes(",");
    return [...values, ...(isSplit ? [""] : [])].map((value) => [name, value]);
  });
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
