// Results: labels as bars with scores and threshold marks, best first. Pressing a label calls
// `onPress`, which draws its map.

/**
 * Makes one column of labels.
 *
 * `own`: names that the user typed. `shared`: names that the other column shows too. Labels with
 * `hasMap` are buttons; `pressed` is the label whose map is shown.
 */
export function makeColumn({ title, labels, note, own, shared, threshold, hasMap, onPress, pressed }) {
  const column = document.createElement("div");
  column.className = "column";
  const heading = document.createElement("h3");
  heading.textContent = title;
  const list = document.createElement("ol");
  list.setAttribute("aria-label", `Labels of ${title}`);
  for (const label of labels) {
    const kinds = [own.has(label.label) && "your own", shared.has(label.label) && "in both"];
    const press = hasMap(label) ? onPress : null;
    const row = makeRow(label, threshold ?? label.threshold, kinds.filter(Boolean), press);
    if (press) row.firstChild.setAttribute("aria-pressed", String(label.label === pressed));
    list.append(row);
  }
  const foot = document.createElement("p");
  foot.className = "quiet";
  foot.textContent = note;
  column.append(heading, list, foot);
  return column;
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
    makeText("name", label.label),
    makeBar(label.score, threshold, passes),
    makeText("score", label.score.toFixed(3)),
    makeText("spoken", describe(label, threshold, passes)),
    makeText("kind", kinds.join(", ")),
  );
  const item = document.createElement("li");
  item.append(body);
  return item;
}

function describe(label, threshold, passes) {
  const source = label.source === "zero_shot" ? "zero-shot" : "trained";
  return `, ${passes ? "above" : "below"} the threshold of ${threshold.toFixed(2)}, ${source}. `;
}

function makeText(className, text) {
  const span = document.createElement("span");
  span.className = className;
  span.textContent = text;
  return span;
}

function makeBar(score, threshold, passes) {
  const bar = makeText("bar", "");
  bar.setAttribute("aria-hidden", "true"); // the score is a text beside it
  bar.title = `threshold ${threshold.toFixed(2)}`;
  const fill = makeText(passes ? "fill passes" : "fill", "");
  const mark = makeText("mark", "");
  fill.style.setProperty("width", `${100 * score}%`);
  mark.style.setProperty("left", `${100 * threshold}%`);
  bar.append(fill, mark);
  return bar;
}
