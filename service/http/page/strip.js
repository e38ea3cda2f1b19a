// A strip of scores: each photo is a mark on a scale of 0..1, above the line if it shows the label.

import { makeElement } from "./elements.js";

const POWER = 3; // labels that were not trained often score below 0.05: half of the scale is for 0..0.125
const TICKS = [0, 0.01, 0.1, 0.25, 0.5, 0.75, 1];
const COLUMNS = 40; // marks of a column are stacked
const MOST_STACKED = 5;

/** Where a score is on the scale, 0..1. */
export const toPlace = (score) => score ** (1 / POWER);
export const toScore = (place) => place ** POWER;

/** A score as text, with more digits for small ones. */
export function writeScore(score) {
  return score.toFixed(score < 0.1 ? 4 : 3);
}

/**
 * Draws the strip in `element`; `photos` are `{ name, score, isShown }`.
 *
 * The pictures of the marks differ in place and shape, not in colour alone. The list after the strip has
 * the same facts as text.
 */
export function drawStrip(element, photos, threshold) {
  const plot = element.querySelector(".plot");
  const heights = new Map();
  plot.replaceChildren(makeLine(threshold), ...photos.map((photo) => makeMark(photo, threshold, heights)));
  plot.setAttribute("aria-label", describe(photos, threshold));
  element.querySelector(".ticks").replaceChildren(...TICKS.map(makeTick));
  const ranked = [...photos].sort((a, b) => b.score - a.score);
  element.querySelector("ul").replaceChildren(...ranked.map((photo) => makeEntry(photo, threshold)));
}

function makeMark({ name, score, isShown }, threshold, heights) {
  const key = `${Math.round(toPlace(score) * COLUMNS)} ${isShown}`;
  const height = heights.get(key) ?? 0;
  heights.set(key, height + 1);
  const mark = makeElement("span", isShown ? "of-it" : "without-it", "");
  mark.title = `${name}: ${writeScore(score)}`;
  mark.classList.toggle("passes", score >= threshold);
  place(mark, toPlace(score));
  mark.style.setProperty("--height", Math.min(height, MOST_STACKED));
  return mark;
}

function makeLine(threshold) {
  const line = makeElement("span", "threshold", "");
  place(line, toPlace(threshold));
  return line;
}

function makeTick(score) {
  const tick = makeElement("span", "", String(score));
  place(tick, toPlace(score));
  return tick;
}

function place(element, share) {
  element.style.setProperty("left", `${100 * share}%`);
}

function makeEntry({ name, score, isShown }, threshold) {
  const item = document.createElement("li");
  const facts = `${isShown ? "of it" : "without it"}, ${score >= threshold ? "found" : "not found"}`;
  for (const [kind, text] of Object.entries({ name, score: writeScore(score), quiet: facts })) {
    item.append(makeElement("span", kind, text), " ");
  }
  return item;
}

function describe(photos, threshold) {
  const range = (kind, some) => {
    if (some.length === 0) return `no photos ${kind}`;
    const scores = some.map(({ score }) => score);
    const [least, most] = [Math.min(...scores), Math.max(...scores)].map(writeScore);
    return `${some.length} ${kind} from ${least} to ${most}`;
  };
  const shown = range("of it", photos.filter(({ isShown }) => isShown));
  const others = range("without it", photos.filter(({ isShown }) => !isShown));
  return `Scores of the photos: ${shown}, ${others}. The threshold is ${writeScore(threshold)}.`;
}
