// The result of a photo: tags as chips, which copy themselves, and labels as bars with scores and
// threshold marks, best first. Pressing a bar's label calls `onPress`, which draws its map.

import { makeButton, makeElement } from "./elements.js";
import { explain, wordOf } from "./words.js";

/**
 * Makes one column: the tags, and rows for the user's own labels, the other tags, and labels that may be
 * there.
 *
 * `title`: names of the label sets, if two columns are compared. `groups`: as `groupLabels` returns them.
 * `shared`: names that the other column shows too. `steps`: `[text, action]` of buttons, if nothing is
 * found. `onCopy` takes the tags to copy. `isFound` marks a row as a tag. Labels with `hasMap` are buttons; `pressed` is the label whose
 * map is shown.
 */
export function makeColumn({ title, groups, note, steps, onCopy, ...options }) {
  const { found, own, others, maybe } = groups;
  const column = makeElement("div", "column", "");
  if (title) column.append(makeElement("h3", "", title));
  if (found.length > 0) column.append(makeChips(found, own, onCopy));
  else column.append(makeNextSteps(steps));
  const parts = [
    ["own", "Your own labels", own],
    ["others", own.length > 0 ? "Others" : "Scores", others],
    ["maybe", "Not found", maybe],
  ];
  for (const [kind, heading, labels] of parts.filter(([, , labels]) => labels.length > 0)) {
    column.append(makeElement(title ? "h4" : "h3", "group", heading));
    column.append(makeList(kind, title ? `${heading}, ${title}` : heading, labels, options));
  }
  column.append(makeElement("p", "quiet", note));
  return column;
}

function makeChips(found, own, onCopy) {
  const list = makeElement("ul", "chips", "");
  list.setAttribute("aria-label", "Tags");
  for (const label of found) {
    const item = document.createElement("li");
    const chip = makeCopyButton(own.includes(label) ? "chip own" : "chip", wordOf(label.label), [wordOf(label.label)], onCopy);
    item.append(explain(chip, label.label, chip.title));
    list.append(item);
  }
  const item = document.createElement("li");
  item.append(makeCopyButton("small", found.length > 1 ? "Copy all" : "Copy", found.map(({ label }) => wordOf(label)), onCopy));
  list.append(item);
  return list;
}

function makeCopyButton(className, text, tags, onCopy) {
  const button = makeButton(className, text, text === tags[0] ? `Copy ${text}` : "");
  button.title = tags.length > 1 ? "Copy the tags, separated by commas" : `Copy “${tags[0]}”`;
  button.dataset.label = `copy ${text}`; // keeps the focus when the column is drawn again
  button.addEventListener("click", () => onCopy(tags));
  return button;
}

function makeNextSteps(steps) {
  const row = makeElement("div", "row steps", "");
  for (const [text, act] of steps) {
    const button = makeButton("", text);
    button.dataset.label = text; // keeps the focus when the column is drawn again
    button.addEventListener("click", act);
    row.append(button);
  }
  const message = makeElement("div", "nothing", "");
  message.append(makeElement("p", "", "No label reaches its threshold."), row);
  return message;
}

function makeList(className, name, labels, { shared, threshold, isFound, hasMap, onPress, pressed }) {
  const list = makeElement("ol", className, "");
  list.setAttribute("aria-label", name);
  for (const label of labels) {
    const press = hasMap(label) ? onPress : null;
    const kind = shared.has(label.label) ? "in both" : "";
    const row = makeRow(label, threshold ?? label.threshold, isFound(label), kind, press);
    if (press) row.firstChild.setAttribute("aria-pressed", String(label.label === pressed));
    list.append(row);
  }
  return list;
}

function makeRow(label, threshold, found, kind, onPress) {
  const body = makeElement(onPress ? "button" : "div", found ? "label" : "label below", "");
  if (onPress) {
    body.type = "button";
    body.dataset.label = label.label;
    body.addEventListener("click", () => onPress(label));
  }
  body.append(
    explain(makeElement("span", "name", wordOf(label.label)), label.label),
    makeBar(label.score, threshold, found),
    makeElement("span", "score", label.score.toFixed(3)),
    makeElement("span", "spoken", describe(label, threshold, found)),
    makeElement("span", "kind", kind),
  );
  const item = document.createElement("li");
  item.append(body);
  return item;
}

function describe(label, threshold, found) {
  const source = { zero_shot: "zero-shot", examples: "learnt from photos", fit: "learnt from your tags" }[label.source] ?? "trained";
  return `, ${found ? "found" : "not found"}, threshold ${threshold.toFixed(2)}, ${source}. `;
}

function makeBar(score, threshold, found) {
  const bar = makeElement("span", "bar", "");
  bar.setAttribute("aria-hidden", "true"); // the score is a text beside it
  bar.title = `threshold ${threshold.toFixed(2)}`;
  const fill = makeElement("span", found ? "fill passes" : "fill", "");
  const mark = makeElement("span", "mark", "");
  fill.style.setProperty("width", `${100 * score}%`);
  mark.style.setProperty("left", `${100 * threshold}%`);
  bar.append(fill, mark);
  return bar;
}
