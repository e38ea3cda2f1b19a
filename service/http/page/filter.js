// The filter of "Many photos": tags that a photo must have, or their parents, as buttons with the number of photos.

import { byId, makeButton } from "./elements.js";
import { explain, wordOf } from "./words.js";

const MOST_BUTTONS = 8; // of tags, and of parents
// Marks that are not tags: symbols, because a tag may have any text.
export const UNTAGGED = Symbol("nothing found");
export const FAILED = Symbol("failed");
const SPECIAL = [UNTAGGED, FAILED];

const textOf = (mark) => mark.description ?? wordOf(mark);
const namesOf = (mark) => [textOf(mark), mark.description ?? mark].map((name) => name.toLowerCase());
const isParent = (mark) => !tags.has(mark) && !SPECIAL.includes(mark);
let wanted = new Set(); // marks that are pressed
let counts = new Map(); // mark -> photos that are shown and have it
let tags = new Set(); // marks that are tags of these
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

/** Draws the buttons from `{ tags, marks }` of each photo that is shown; the other marks are parents of tags. */
export function drawFilter(shown) {
  counts = new Map([...wanted].map((mark) => [mark, 0]));
  tags = new Set(shown.flatMap((photo) => photo.tags));
  for (const mark of shown.flatMap(({ marks }) => marks)) counts.set(mark, (counts.get(mark) ?? 0) + 1);
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
    button.firstChild.textContent = `${textOf(button.mark)} `;
    explain(button, button.mark);
    button.classList.toggle("parent", isParent(button.mark));
    button.lastChild.textContent = counts.get(button.mark) ?? 0;
    button.setAttribute("aria-pressed", String(wanted.has(button.mark)));
  }
  if (buttons.some((button, i) => button !== list.children[i]) || buttons.length < old.size) list.replaceChildren(...buttons);
  byId("filter-clear").hidden = wanted.size === 0;
}

/** Pressed marks, those of the typed name, then tags, then parents, by their number of photos, then the special ones. */
function chooseMarks() {
  const text = byId("find-tag").value.trim().toLowerCase();
  const free = [...counts.keys()].filter((mark) => !wanted.has(mark) && namesOf(mark).some((name) => name.includes(text)));
  const sorted = free.filter((mark) => !SPECIAL.includes(mark)).sort((a, b) => counts.get(b) - counts.get(a) || (textOf(a) < textOf(b) ? -1 : 1));
  const kinds = [(mark) => namesOf(mark).includes(text), (mark) => tags.has(mark), isParent].map((isOfKind) => sorted.filter(isOfKind).slice(0, MOST_BUTTONS));
  return [...new Set([...wanted, ...kinds.flat(), ...SPECIAL.filter((mark) => free.includes(mark))])];
}

function makeMark(mark) {
  const button = makeButton(SPECIAL.includes(mark) ? "filter-tag special" : "filter-tag", textOf(mark));
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
