// The filter of "Many photos": tags that a photo must have, as buttons with the number of photos.

import { byId, makeButton } from "./elements.js";

const MOST_BUTTONS = 8;
// Marks that are not tags: symbols, because a tag may have any text.
export const UNTAGGED = Symbol("nothing found");
export const FAILED = Symbol("failed");
const SPECIAL = [UNTAGGED, FAILED];

const textOf = (mark) => mark.description ?? mark;
let wanted = new Set(); // marks that are pressed
let counts = new Map(); // mark -> photos that are shown and have it
let onChange = null;

/** Adds listeners; calls `changed` after each change of the filter. */
export function startFilter(changed) {
  onChange = changed;
  byId("find-tag").addEventListener("input", () => drawButtons(true));
  byId("find-tag").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !byId("find-tag").value.trim()) return;
    event.preventDefault(); // else the key presses the button, which has the focus then, once more
    byId("filter-tags").querySelector("[aria-pressed=false]")?.click();
  });
  byId("filter-clear").addEventListener("click", () => {
    clearFilter();
    byId("filter-tags").querySelector("button")?.focus();
  });
}

export function isFiltered() {
  return wanted.size > 0;
}

export function passes(marks) {
  return [...wanted].every((mark) => marks.includes(mark));
}

/** Draws the buttons from the marks of each photo that is shown. */
export function drawFilter(shown) {
  counts = new Map([...wanted].map((mark) => [mark, 0]));
  for (const mark of shown.flat()) counts.set(mark, (counts.get(mark) ?? 0) + 1);
  byId("filter").hidden = counts.size === 0;
  // Under the pointer or the focus, buttons do not change their places.
  drawButtons(!byId("filter-tags").matches(":hover, :has(:focus-visible)"));
}

function drawButtons(isSorted) {
  const list = byId("filter-tags");
  const old = new Map([...list.children].map((button) => [button.mark, button]));
  const marks = isSorted || old.size === 0 ? chooseMarks() : [...old.keys()];
  const buttons = marks.map((mark) => old.get(mark) ?? makeMark(mark));
  for (const button of buttons) {
    button.lastChild.textContent = counts.get(button.mark) ?? 0;
    button.setAttribute("aria-pressed", String(wanted.has(button.mark)));
  }
  if (buttons.some((button, i) => button !== list.children[i]) || buttons.length < old.size) list.replaceChildren(...buttons);
  byId("filter-clear").hidden = wanted.size === 0;
}

/** Pressed marks, then tags by their number of photos, then the special ones. */
function chooseMarks() {
  const text = byId("find-tag").value.trim().toLowerCase();
  const free = [...counts.keys()].filter((mark) => !wanted.has(mark) && textOf(mark).toLowerCase().includes(text));
  const tags = free.filter((mark) => !SPECIAL.includes(mark)).sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
  return [...wanted, ...tags.slice(0, MOST_BUTTONS), ...SPECIAL.filter((mark) => free.includes(mark))];
}

function makeMark(mark) {
  const button = makeButton(SPECIAL.includes(mark) ? "filter-tag special" : "filter-tag", `${textOf(mark)} `);
  button.addEventListener("click", () => {
    if (!wanted.delete(mark)) wanted.add(mark);
    byId("find-tag").value = "";
    onChange();
    drawButtons(true);
    (button.isConnected ? button : byId("find-tag")).focus();
  });
  button.append(document.createElement("span"));
  button.mark = mark;
  return button;
}

export function clearFilter() {
  wanted = new Set();
  byId("find-tag").value = "";
  onChange();
}
