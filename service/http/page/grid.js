// The tab "Many photos": asks for the tags of all the user's photos, and filters, selects, corrects and downloads them.

import { askAll, chosenSets, findLabels, isEmpty, ownLabels, readChoice, signChoice, tickDefaults, typedLabels } from "./choice.js";
import { readControls } from "./controls.js";
import { correct, correctLabels, correctionsOf } from "./corrections.js";
import { download, writeCsv, writeJson, writeTags } from "./downloads.js";
import { NO_CLIPBOARD, byId, copyText, count, toast } from "./elements.js";
import { FAILED, UNTAGGED, clearFilter, drawFilter, isFiltered, passes, startFilter } from "./filter.js";
import { drawCorrections } from "./learning.js";
import { keepPhotos, listOwnPhotos } from "./photos.js";
import { MOST_LABELS, choiceParameters, chooseLabels, shorten, splitLabels } from "./scores.js";
import { openTab } from "./tabs.js";
import { drawPictures, drawTile, dropTile, makeTile } from "./tiles.js";
import { findMeant, parentsOf, translationOf, wordOf } from "./words.js";

const PARALLEL = 4; // requests at a time
const PATIENCE = { isPatient: true }; // while the service is busy
const DRAW_MS = 200; // between two drawings of all tiles
const MOST_SHOWN = 250; // labels that the controls can show: 200, and some for those that exclude each other

const results = new WeakMap(); // photo -> { key, answer, problem }, by the choice of labels that was asked
const tiles = new Map(); // photo -> its element
const selected = new Set(); // photos
let lastBox = null; // the photo whose checkbox was pressed last
let own = new Set(); // names of the user's own labels
let tagging = new AbortController();
let running = 0; // calls of `tagPhotos`
let drawing = 0; // timer of the next drawing
let act = {}; // what `startGrid` was given

/**
 * Adds listeners; calls `onOpen` with a photo that is pressed, `onRemove` with photos that were removed,
 * `onCorrect` after a correction, and `onProblem` with an error of the service.
 */
export function startGrid(callbacks) {
  act = callbacks;
  startFilter(draw);
  byId("tiles").addEventListener("keydown", moveFocus);
  byId("select-shown").addEventListener("change", ({ target }) => {
    for (const photo of listShown()) selected[target.checked ? "add" : "delete"](photo);
    draw();
  });
  byId("add-tag").addEventListener("submit", (event) => {
    event.preventDefault();
    addTags(byId("add-tag-text"));
  });
  byId("add-tag-text").addEventListener("focus", suggestTags);
  byId("tag-rest").addEventListener("click", () => {
    byId("alert").hidden = true;
    tagPhotos();
  });
  byId("change").addEventListener("click", () => {
    openTab("try");
    (byId("own").hidden ? byId("options").firstElementChild : byId("candidates")).focus();
  });
  byId("remove-all").addEventListener("click", () => remove(listChosen()));
  byId("copy-tags").addEventListener("click", async () => {
    const isCopied = await copyText(writeTags(listDownloads()));
    toast(isCopied ? `Copied the tags of ${count(listChosen().length, "photo")}.` : NO_CLIPBOARD);
  });
  byId("download-csv").addEventListener("click", () => {
    download("labels.csv", "text/csv", writeCsv(listDownloads()));
  });
  byId("download-json").addEventListener("click", () => {
    download("labels.json", "application/json", writeJson(listDownloads()));
  });
  draw();
}

/** Shows new photos of the user before the others. */
export function addTiles() {
  toast(""); // to take a removal back would lose these photos
  showTiles();
}

function showTiles() {
  const photos = listOwnPhotos();
  for (const photo of photos.filter((other) => !tiles.has(other))) {
    tiles.set(photo, makeTile(photo, {
      onOpen: () => act.onOpen(photo),
      onSelect: (event) => select(photo, event),
      onRemove: () => remove([photo]),
      onTag: (tag) => sayOf([photo], [tag], correctionsOf(photo).has(tag) ? null : false),
    }));
  }
  let next = null;
  for (const photo of photos.toReversed()) {
    const tile = tiles.get(photo);
    if (!tile.isConnected) byId("tiles").insertBefore(tile, next); // the others keep their places and the focus
    next = tile;
  }
  draw();
  drawPictures();
}

/** Opens the tab with the focus on the tile of a photo. */
export function returnTo(photo) {
  openTab("many");
  const picture = tiles.get(photo)?.querySelector("button");
  picture?.scrollIntoView({ block: "center" });
  picture?.focus();
}

/** Records what the service answered for a photo: `{ answer }` or `{ problem }`, its text. */
export function note(photo, choice, { answer, problem }) {
  // If nothing was chosen, the default sets are ticked now; words that were typed meanwhile were not asked for.
  const key = signChoice(isEmpty(choice) ? choiceParameters(chosenSets(), []) : choice);
  // Of a thousand labels a photo, most can never be shown: they would take 40 MB for two hundred photos.
  const labels = answer?.labels.filter((label, i) => i < MOST_SHOWN || label.found);
  results.set(photo, { key, problem, answer: answer && { ...answer, labels } });
}

/** The answers of photos for the labels that are chosen now, or problems, for any; null if not known yet. */
function recall(photos) {
  const key = signChoice(readChoice());
  return photos.map((photo) => results.get(photo)).map((result) => (result?.problem || result?.key === key ? result : null));
}

/** Asks for the tags of photos that have none for the present choice; waits while the service is busy. */
export async function tagPhotos() {
  tagging.abort();
  tagging = new AbortController();
  const { signal } = tagging;
  const photos = listOwnPhotos();
  const known = recall(photos);
  const waiting = photos.filter((_, i) => !known[i]);
  let loops = 0;
  const work = async () => {
    loops += 1;
    const others = [];
    while (waiting.length > 0 && !signal.aborted) {
      const photo = waiting.shift();
      if (!tiles.has(photo)) continue; // removed meanwhile
      try {
        await tickDefaults(photo, signal, PATIENCE);
        const choice = readChoice();
        note(photo, choice, { answer: await askAll(photo, choice, signal, PATIENCE) });
      } catch (error) {
        if (signal.aborted) return;
        if (error.isOfPhoto) {
          note(photo, readChoice(), { problem: error.message });
        } else {
          waiting.length = 0; // the service would refuse the rest too
          act.onProblem(error);
        }
      }
      redraw();
      // One more after each answer: four large photos at once delayed the first answer to 2 s.
      if (loops < PARALLEL) others.push(work());
    }
    await Promise.all(others);
  };
  running += 1;
  redraw();
  await work();
  running -= 1;
  if (signal.aborted) return;
  draw();
  if (isDone(listOwnPhotos())) byId("many-spoken").textContent = byId("downloads-status").textContent;
}

/** All tags, as `photo: tag`; null while some are not known. */
export function listTags() {
  const [photos, controls] = [listOwnPhotos(), readControls()];
  if (!isDone(photos)) return null;
  const looks = recall(photos).map((result, i) => look(photos[i], result, controls));
  return new Set(looks.flatMap(({ tags }, i) => tags.map((tag) => `${photos[i].name}: ${tag}`)));
}

/** Stops asking, because the choice changes. */
export function stopTagging() {
  tagging.abort();
}

/** Draws all tiles by the present choice and controls, without a request, five times a second at most. */
export function redraw() {
  drawing ||= setTimeout(draw, DRAW_MS);
}

function draw() {
  clearTimeout(drawing);
  drawing = 0;
  const controls = readControls();
  const photos = listOwnPhotos();
  const looks = recall(photos).map((result, i) => look(photos[i], result, controls));
  photos.forEach((photo, i) => {
    const tile = tiles.get(photo);
    drawTile(tile, looks[i], own, selected.has(photo));
    tile.hidden = !passes(looks[i].marks);
    tile.querySelector("input").checked = selected.has(photo);
  });
  drawFilter(looks.filter(({ marks }) => passes(marks)));
  drawProgress(looks);
  drawSelection();
  drawBasis();
  drawCorrections();
}

/** How a tile looks: `state` is `waiting`, `failed`, `untagged` or `tagged`; `marks` are for the filter. */
function look(photo, result, controls) {
  if (!result) return { state: "waiting", text: "", tags: [], crossed: [], marks: [] };
  if (result.problem) return { state: "failed", text: result.problem, tags: [], crossed: [], marks: [FAILED] };
  const tags = correctLabels(photo, result.answer.labels, (all) => chooseLabels(all, controls)).map((label) => label.label);
  const crossed = [...correctionsOf(photo)].filter(([, { isShown }]) => !isShown).map(([label]) => label);
  if (tags.length === 0) return { state: "untagged", text: "nothing found", tags, crossed, marks: [UNTAGGED] };
  return { state: "tagged", text: "", tags, crossed, marks: [...new Set([...tags, ...tags.flatMap(parentsOf)])] };
}

/** Records what the user says of tags of photos; null takes back what was said. */
function sayOf(photos, tags, isShown) {
  const isKept = correct(photos.flatMap((photo) => tags.map((label) => ({ photo, label, isShown, isDone: false }))));
  if (!isKept) toast("This browser keeps no corrections: they last until the page is closed.");
  draw();
  act.onCorrect();
}

const readKnown = async () => [...(await findLabels().catch(() => new Map())).keys()];

/** Offers the known labels as tags to add. */
async function suggestTags() {
  const known = (await readKnown()).slice(0, MOST_LABELS);
  byId("known-tags").replaceChildren(...known.map((label) => new Option(wordOf(label))));
}

/** Adds tags to the selected photos, as known labels if they mean some. */
async function addTags(field) {
  const photos = [...selected].filter((photo) => results.get(photo)?.answer);
  if (photos.length === 0) {
    toast("Select photos first, whose tags are there.");
    return;
  }
  const text = field.value;
  field.value = "";
  const known = await readKnown();
  sayOf(photos, splitLabels(text).map((tag) => findMeant(known, tag)), true);
}

function drawProgress(looks) {
  const all = looks.length;
  const failed = looks.filter(({ state }) => state === "failed").length;
  const done = looks.filter(({ state }) => state !== "waiting").length;
  byId("many-count").textContent = all || "";
  byId("many").classList.toggle("empty", all === 0);
  byId("downloads").hidden = all === 0;
  byId("tag-rest").hidden = done === all || running > 0;
  byId("progress").hidden = done === all;
  [byId("progress").value, byId("progress").max] = [done, Math.max(all, 1)];
  byId("downloads-status").textContent =
    all === 0 ? "" : `${done - failed} of ${count(all, "photo")} tagged` + (failed > 0 ? `, ${failed} failed` : "");
}

function drawSelection() {
  const shown = listShown();
  const marked = shown.filter((photo) => selected.has(photo)).length;
  const hidden = selected.size - marked;
  byId("select-shown").checked = shown.length > 0 && marked === shown.length;
  byId("select-shown").indeterminate = marked > 0 && marked < shown.length;
  byId("scope").textContent = selected.size > 0 ? `${selected.size} selected${hidden > 0 ? `, ${hidden} not shown` : ""}`
    : isFiltered() ? `${shown.length} shown` : count(shown.length, "photo");
  byId("add-tag").hidden = selected.size === 0;
  byId("filter-none").hidden = tiles.size === 0 || shown.length > 0;
  byId("remove-all").disabled = listChosen().length === 0;
  byId("remove-every").hidden = selected.size > 0 || isFiltered();
  for (const id of ["copy-tags", "download-csv", "download-json"]) byId(id).disabled = !isDone(listChosen());
}

/** What the tags depend on. */
function drawBasis() {
  const [sets, words] = [chosenSets(), typedLabels().length];
  const parts = [sets.length > 0 && `the labels of ${sets.join(", ")}`, words > 0 && count(words, "own word")];
  byId("basis").textContent = `Looks for ${parts.filter(Boolean).join(" and ") || "the default labels"}.`;
  ownLabels(sets).then((kept) => {
    const names = new Set([...typedLabels(), ...kept]);
    const isSame = names.size === own.size && [...names].every((name) => own.has(name));
    own = names;
    if (!isSame) redraw();
  });
}

const listShown = () => listOwnPhotos().filter((photo) => !tiles.get(photo).hidden);

/** The selected photos, or else all that are shown. */
function listChosen() {
  return selected.size > 0 ? listOwnPhotos().filter((photo) => selected.has(photo)) : listShown();
}

function isDone(photos) {
  return photos.length > 0 && recall(photos).every(Boolean);
}

function listDownloads() {
  const controls = readControls();
  const photos = listChosen();
  const results = recall(photos);
  return photos.map((photo, i) => {
    const { answer, problem } = results[i];
    const labels = answer && correctLabels(photo, answer.labels, (all) => shorten({ ...answer, labels: all }, controls).labels);
    const translated = labels?.map(({ label, ...others }) => ({ label, translation: translationOf(label), ...others }));
    return { photo: photo.name, problem, answer: answer && { ...answer, labels: translated } };
  });
}

/** With Shift, all shown photos from the one that was pressed before. */
function select(photo, { shiftKey, target }) {
  const shown = listShown();
  const [from, to] = [shown.indexOf(lastBox), shown.indexOf(photo)].sort((a, b) => a - b);
  const range = shiftKey && from >= 0 ? shown.slice(from, to + 1) : [photo];
  for (const other of range) selected[target.checked ? "add" : "delete"](other);
  lastBox = photo;
  draw();
}

/** Arrow keys go from tile to tile. */
function moveFocus(event) {
  const shown = listShown().map((photo) => tiles.get(photo));
  const index = shown.findIndex((tile) => tile.contains(document.activeElement));
  const columns = getComputedStyle(byId("tiles")).gridTemplateColumns.split(" ").length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -index, End: shown.length - 1 - index };
  const next = shown[index + steps[event.key]];
  if (!next) return;
  event.preventDefault();
  const kind = document.activeElement.matches("input") ? "input" : "button";
  next.querySelector(kind).focus();
}

function remove(photos) {
  const last = tiles.get(photos.at(-1));
  const next = listShown().map((photo) => tiles.get(photo)).find((tile) => last.compareDocumentPosition(tile) & Node.DOCUMENT_POSITION_FOLLOWING);
  for (const photo of photos) {
    dropTile(tiles.get(photo));
    tiles.delete(photo);
    selected.delete(photo);
  }
  const before = listOwnPhotos();
  keepPhotos(before.filter((photo) => !photos.includes(photo)));
  (next?.querySelector("button") ?? byId("more-files")).focus();
  act.onRemove(photos);
  toast(`Removed ${count(photos.length, "photo")}.`, () => {
    keepPhotos(before);
    showTiles();
    returnTo(photos[0]);
    tagPhotos();
  });
  if (tiles.size === 0) clearFilter();
  draw();
}

