// The model card: the answer of `/info` as tables.

import { RANKED } from "./scores.js";

/** How photos are prepared; padding in white and a first fit by `bilinear` are left out of `/info`. */
function describeInput({ width, height, resize_mode, interpolation, pad_color, fit_size, fit_interpolation, mean, std }) {
  const colour = pad_color ? `rgb(${pad_color})` : "white";
  const fit = fit_size ? `, first ${fit_interpolation ?? "bilinear"} into ${fit_size} x ${fit_size}` : "";
  const padding = resize_mode === "pad" ? ` in ${colour}${fit}` : "";
  const values = Object.entries({ mean, std }).filter(([, value]) => value);
  const scale = values.map(([name, value]) => `, ${name} ${value.join(" ")}`).join("");
  return `${width} x ${height} pixels, ${resize_mode}${padding}, ${interpolation}${scale}`;
}

export function fillCard(element, info) {
  const space = info.open_head?.embedding_space;
  const heads = [["trained labels", info.head], ["open labels", info.open_head]].filter(([, head]) => head);
  const facts = {
    Model: `${info.model.name} ${info.model.version}`,
    Licence: info.license,
    Backbone: info.provenance.backbone,
    "Trained on": info.provenance.training_data,
    Input: describeInput(info.input),
    "Trained head": info.head && `${info.head.kind}, ${info.labels.length} labels, ${info.head.activation}`,
    "Open head": space && `${info.open_head.kind}, ${info.open_head.activation}, ${space.encoder} (${space.width})`,
    ...Object.fromEntries(heads.map(([name, head]) => [`Scores of ${name}`, describeScores(head)])),
    "Runs on": `${info.runtime.device} (${info.runtime.provider}), ${info.runtime.precision}`,
  };
  const rows = Object.entries(facts).filter(([, value]) => value);
  const tables = [makeTable("Facts", [], rows)];
  for (const [name, head] of heads) {
    const rows = Object.entries(head.by_purpose ?? {}).map(thresholdRow);
    if (rows.length > 0) tables.push(makeTable(`Thresholds of ${name}`, THRESHOLD_HEAD, rows));
  }
  for (const [name, head] of heads) {
    if (!head.calibration) continue;
    const rows = head.calibration.bins.map(binRow).filter(([, scores]) => scores > 0);
    tables.push(makeTable(`Scores of ${name}`, BIN_HEAD, rows));
  }
  if (info.metrics.length > 0) tables.push(makeTable("Measured", METRIC_HEAD, info.metrics.map(metricRow)));
  if (info.labels.length > 0) tables.push(makeTable(titleLabels(info.labels), LABEL_HEAD, info.labels.slice(0, MOST_ROWS).map(labelRow)));
  element.replaceChildren(...tables);
}

const MOST_ROWS = 500; // a tagger's 10,000 labels would be 60,000 elements
const METRIC_HEAD = ["Figure", "Precision", "Value", "Photos"];
const BIN_HEAD = ["Score", "Count", "Mean score", "Share right"];
const THRESHOLD_HEAD = ["threshold=", "Without an own", "Precision", "Recall"];
const LABEL_HEAD = ["Label", "Threshold", "Precision", "Recall", "Photos"];

/** `error` is the expected calibration error: the mean gap between score and share right. */
function describeScores({ calibration, ranked }) {
  if (ranked) return RANKED;
  if (!calibration) return "as the checkpoint gives them, not calibrated";
  const { images, dataset, error_before: before, error_after: after } = calibration;
  return `calibrated on ${images} photos of ${dataset}: error ${after.toFixed(3)}, ${before.toFixed(3)} before`;
}

/** One of ten equal bins. */
function binRow({ scores, mean_score, share_right }, i) {
  const range = `${(i / 10).toFixed(1)}\u00a0to\u00a0${((i + 1) / 10).toFixed(1)}`;
  return [range, scores, mean_score.toFixed(3), share_right.toFixed(3)];
}

function thresholdRow([word, { threshold, precision, recall }]) {
  return [word, threshold.toFixed(3), precision.toFixed(2), recall.toFixed(2)];
}

function metricRow(metric) {
  return [metric.name, metric.precision, metric.value.toFixed(2), `${metric.images}, ${metric.dataset}`];
}

function titleLabels({ length }) {
  return length > MOST_ROWS ? `Trained labels, the first ${MOST_ROWS} of ${length}` : "Trained labels";
}

function labelRow(label) {
  const share = (value) => (value == null ? "-" : value.toFixed(2));
  return [label.name, share(label.threshold), share(label.precision), share(label.recall), label.positives ?? "-"];
}

function makeTable(title, head, rows) {
  const table = document.createElement("table");
  table.createCaption().textContent = title;
  if (head.length > 0) fillRow(table.createTHead().insertRow(), head, "col");
  const body = table.createTBody();
  for (const row of rows) fillRow(body.insertRow(), row, "row");
  return table;
}

function fillRow(element, values, scope) {
  values.forEach((value, i) => {
    const isHead = scope === "col" || i === 0;
    const cell = document.createElement(isHead ? "th" : "td");
    if (isHead) cell.scope = scope;
    cell.textContent = value;
    element.append(cell);
  });
}
