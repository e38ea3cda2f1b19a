// Results: labels as bars with scores and threshold marks, best first. Pressing a label calls
// `onPress`, which draws its map.

/**
 * Makes one column of labels: the found ones, below a line those that may be there, and the user's
 * own others.
 *
 * `groups`: as `groupLabels` returns them. `typed` and `kept`: names of the user's labels. `shared`:
 * names that the other column shows too. `steps`: `[text, action]` of buttons, if nothing is found.
 * Labels with `hasMap` are buttons; `pressed` is the label whose map is shown.
 */
export function makeColumn({ title, groups, note, steps, ...options }) {
  const column = document.createElement("div");
  column.className = "column";
  column.append(makeElement("h3", "", title));
  if (groups.found.length > 0) column.append(makeList("found", `Found, ${title}`, groups.found, options));
  else column.append(makeNextSteps(steps));
  const below = [
    ["maybe", "Below the threshold", groups.maybe],
    ["own", "Your own, below the threshold", groups.own],
  ];
  for (const [kind, heading, labels] of below.filter(([, , labels]) => labels.length > 0)) {
    column.append(makeElement("h4", "", heading));
    column.append(makeList(`below ${kind}`, `${heading}, ${title}`, labels, options));
  }
  column.append(makeElement("p", "quiet", note));
  return column;
}

function makeNextSteps(steps) {
  const row = makeElement("div", "row steps", "");
  for (const [text, act] of steps) {
    const button = makeElement("button", "", text);
    button.type = "button";
    button.dataset.label = text; // keeps the focus when the column is drawn again
    button.addEventListener("click", act);
    row.append(button);
  }
  const place = makeElement("div", "nothing", "");
  place.append(makeElement("p", "", "No label reaches its threshold."), row);
  return place;
}

function makeList(className, name, labels, { typed, kept, shared, threshold, hasMap, onPress, pressed }) {
  const list = makeElement("ol", className, "");
  list.setAttribute("aria-label", name);
  for (const label of labels) {
    const isOwn = className === "found" && (typed.has(label.label) || kept.has(label.label));
    const kinds = [isOwn && "your own", shared.has(label.label) && "in both"];
    const press = hasMap(label) ? onPress : null;
    const row = makeRow(label, threshold ?? label.threshold, kinds.filter(Boolean), press);
    if (press) row.firstChild.setAttribute("aria-pressed", String(label.label === pressed));
    list.append(row);
  }
  return list;
}

function makeRow(label, threshold, kinds, onPress) {
  const body = document.createElement(onPress ? "button" : "div");
  body.className = "label";
  if (onPress) {
    body.type = "button";
    body.dataset.label = label.label;
    body.addEventListener("click", () => onPress(label));
  }
  const passes = label.score >= threshold;
  body.append(
    makeElement("span", "name", label.label),
    makeBar(label.score, threshold, passes),
    makeElement("span", "score", label.score.toFixed(3)),
    makeElement("span", "spoken", describe(label, threshold, passes)),
    makeElement("span", "kind", kinds.join(", ")),
  );
  const item = document.createElement("li");
  item.append(body);
  return item;
}

function describe(label, threshold, passes) {
  const source = { zero_shot: "zero-shot", examples: "learnt from photos" }[label.source] ?? "trained";
  return `, ${passes ? "above" : "below"} the threshold of ${threshold.toFixed(2)}, ${source}. `;
}

function makeElement(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

function makeBar(score, threshold, passes) {
  const bar = makeElement("span", "bar", "");
  bar.setAttribute("aria-hidden", "true"); // the score is a text beside it
  bar.title = `threshold ${threshold.toFixed(2)}`;
  const fill = makeElement("span", passes ? "fill passes" : "fill", "");
  const mark = makeElement("span", "mark", "");
  fill.style.setProperty("width", `${100 * score}%`);
  mark.style.setProperty("left", `${100 * threshold}%`);
  bar.append(fill, mark);
  return bar;
}
