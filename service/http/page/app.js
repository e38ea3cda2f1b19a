// The playground: sends a photo to the service and draws its labels.
//
// `photos.js` chooses the photo and `labels.js` the label sets; `api.js` sends one request; `scores.js`
// sorts the answer by the controls; `results.js` and `map.js` draw it; `snippets.js` writes the
// request as curl and Python; `downloads.js` writes files of all photos; `calibrate.js` chooses the
// threshold of a label, `teach.js` teaches one from photos. This file owns the page's state.

import { predict, readInfo, readKey, writeKey } from "./api.js";
import { showCalibrated, startCalibration } from "./calibrate.js";
import { fillCard } from "./card.js";
import { download, writeCsv, writeJson } from "./downloads.js";
import {
  chosenSets,
  comparedSet,
  keptLabels,
  showSets,
  startLabels,
  tickSets,
  typedLabels,
} from "./labels.js";
import { describePeak, drawMap } from "./map.js";
import { listOwnPhotos, showBelow, startPhotos } from "./photos.js";
import { makeColumn } from "./results.js";
import {
  MOST_LABELS,
  RANKED,
  choiceParameters,
  describeThreshold,
  findLabels,
  groupLabels,
  showParameters,
} from "./scores.js";
import { makeCurl, makePython } from "./snippets.js";
import { showTeachable, startTeaching } from "./teach.js";

const PARALLEL = 2; // requests for the photos that are not shown
const QUIET_MS = 400; // pause before a screen reader announces a moving slider

const TITLES = { candidate_labels: "your own" };

const byId = (id) => document.getElementById(id);
const shown = {
  photo: null,
  info: null,
  columns: [], // { photo, choice, typed, kept, answer }, one or two
  found: new WeakMap(), // own photo -> { key, answer, problem }, by the choice of labels that was asked
  pressed: null, // { column, label }
  hasMapProblem: false, // whether the alert is about a map
};
let asking = new AbortController();
let speaking = 0;

function start() {
  startLabels(ask, (sets) => [showCalibrated, showTeachable].forEach((show) => show(sets)), showProblem);
  startCalibration(() => showSets().then(ask, showProblem), showProblem);
  startTeaching((name) => showSets([name]).then(ask, showProblem), showProblem);
  byId("ask").addEventListener("submit", (event) => event.preventDefault());
  byId("top-k").addEventListener("input", render);
  for (const radio of document.querySelectorAll("[name=mode]")) {
    radio.addEventListener("change", render);
  }
  byId("threshold").addEventListener("input", render);
  byId("card-open").addEventListener("click", () => byId("card").showModal());
  byId("card-close").addEventListener("click", () => byId("card").close());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown.pressed) hideMap();
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copy(button.dataset.copy));
  }
  startKey();
  byId("download-csv").addEventListener("click", () => {
    download("labels.csv", "text/csv", writeCsv(listDownloads()));
  });
  byId("download-json").addEventListener("click", () => {
    download("labels.json", "application/json", writeJson(listDownloads()));
  });
  startPhotos(choosePhoto, render, showProblem).chooseFirst();
}

/** Reads the model card and the label sets. */
async function greet() {
  const info = await readInfo();
  byId("model").textContent = `${info.model.name} ${info.model.version}`;
  fillCard(byId("card-body"), info);
  for (const id of ["card-open", "ask-side", "calibrate-side"]) byId(id).hidden = false;
  byId("own").hidden = !info.open_head?.encodes_text;
  await showSets();
  byId("alert").hidden = true;
  shown.info = info;
}

function choosePhoto(photo) {
  hideMap();
  shown.photo = photo;
  URL.revokeObjectURL(byId("photo").src);
  byId("photo").src = URL.createObjectURL(photo.file);
  byId("photo").alt = photo.title;
  byId("frame").hidden = false;
  byId("stage-hint").hidden = true;
  ask();
}

/** Sends one request per column and asks for every label that the controls may show. */
async function ask() {
  if (!shown.photo) return;
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  byId("result-side").setAttribute("aria-busy", "true");
  try {
    if (!shown.info) await greet();
    const wanted = [{ sets: chosenSets(), candidates: typedLabels() }];
    if (comparedSet()) wanted.push({ sets: [comparedSet()], candidates: [] });
    const columns = await Promise.all(wanted.map((column) => askColumn(column, signal)));
    if (isEmpty(columns[0].choice)) {
      tickSets(columns[0].answer.label_sets.map((set) => set.name));
    }
    shown.columns = columns;
    byId("alert").hidden = true;
    note(shown.photo, columns[0].choice, { answer: columns[0].answer });
    hideMap();
    askOthers(signal);
  } catch (error) {
    if (signal.aborted) return;
    if (shown.columns[0]?.photo !== shown.photo) forgetAnswer();
    if (error.code === "unknown_label_set" && isEmpty(readChoice())) {
      askForLabels();
      return;
    }
    showProblem(error);
    if (!error.isOfPhoto) return;
    byId("alert").textContent = `${shown.photo.name}: ${error.message}`;
    note(shown.photo, readChoice(), { problem: error.message });
    render();
    askOthers(signal);
  } finally {
    if (!signal.aborted) byId("result-side").setAttribute("aria-busy", "false");
  }
}

async function askColumn({ sets, candidates }, signal) {
  const choice = choiceParameters(sets, candidates);
  const { photo } = shown;
  const [answer, kept] = await Promise.all([askAll(photo, choice, signal), keptLabels(sets)]);
  return { photo, choice, typed: new Set(candidates), kept: new Set(kept), answer };
}

/** Asks for all labels, so that the controls need no other request. */
function askAll(photo, choice, signal, patience) {
  return predict(photo, { ...choice, top_k: [String(MOST_LABELS)] }, signal, patience);
}

function readChoice() {
  return choiceParameters(chosenSets(), typedLabels());
}

function isEmpty({ label_set: sets, candidate_labels: typed }) {
  return sets.length + typed.length === 0;
}

/** The model has no default label set, as CLIP may have none. */
function askForLabels() {
  forgetAnswer();
  byId("alert").hidden = true;
  byId("summary").textContent = byId("own").hidden
    ? "Tick a label set: none is the default."
    : "Type labels under “Your own labels”: this model has no default label set.";
}

function note(photo, choice, found) {
  shown.found.set(photo, { key: JSON.stringify(choice), ...found });
}

/** The answers or problems of photos for the labels that are chosen now; null if not known yet. */
function recall(photos) {
  const key = JSON.stringify(readChoice());
  const found = photos.map((photo) => shown.found.get(photo));
  return found.map((each) => (each?.key === key ? each : null));
}

/** Asks for the labels of the user's other photos; waits as long as the service is busy. */
async function askOthers(signal) {
  const choice = readChoice();
  const photos = listOwnPhotos();
  const found = recall(photos);
  const waiting = photos.filter((_, i) => !found[i]);
  const work = async () => {
    while (waiting.length > 0 && !signal.aborted) {
      const photo = waiting.shift();
      try {
        note(photo, choice, { answer: await askAll(photo, choice, signal, { isPatient: true }) });
      } catch (error) {
        if (signal.aborted) return;
        if (error.isOfPhoto) {
          note(photo, choice, { problem: error.message });
        } else {
          waiting.length = 0; // the service would refuse the rest too
          showProblem(error);
        }
      }
      if (!signal.aborted) renderTiles([photo], readControls());
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, work));
}

/** The answer of the service to a request with `showParameters`. */
function shorten(answer, controls) {
  const labels = findLabels(answer.labels, controls);
  if (controls.mode !== "number") return { ...answer, labels };
  const { threshold } = controls;
  return { ...answer, labels: labels.map((label) => ({ ...label, threshold, calibrated: false })) };
}

function listDownloads() {
  const controls = readControls();
  const photos = listOwnPhotos();
  const found = recall(photos);
  return photos.map((photo, i) => {
    const { answer, problem } = found[i];
    return { photo: photo.name, problem, answer: answer && shorten(answer, controls) };
  });
}

/** Writes the labels or the problem below these photos, and how many photos are done. */
function renderTiles(photos, controls) {
  recall(photos).forEach((found, i) => {
    const labels = found?.answer && findLabels(found.answer.labels, controls).map((label) => label.label);
    const text = labels && (labels.slice(0, 3).join(", ") || "nothing found");
    showBelow(photos[i], found?.problem ?? text ?? "", Boolean(found?.problem));
  });
  const all = recall(listOwnPhotos());
  const done = all.filter(Boolean);
  const failed = done.filter(({ problem }) => problem).length;
  byId("downloads").hidden = all.length === 0;
  for (const id of ["download-csv", "download-json"]) byId(id).disabled = done.length < all.length;
  byId("progress").hidden = done.length === all.length;
  [byId("progress").value, byId("progress").max] = [done.length, all.length];
  byId("downloads-status").textContent =
    `${done.length - failed} of ${all.length} photos labelled` + (failed > 0 ? `, ${failed} failed` : "");
}

/** Clears the results of the previous photo. */
function forgetAnswer() {
  shown.columns = [];
  hideMap();
  clearTimeout(speaking);
  byId("results").replaceChildren();
  byId("summary").textContent = "No labels.";
  for (const id of ["hint", "request-side"]) byId(id).hidden = true;
}

/** Whether a label has maps, by the model card; a label of photos alone needs no head for them. */
function hasMap(label) {
  const head = label.source === "trained" ? shown.info.head : shown.info.open_head;
  const hasText = label.source !== "examples" || shown.info.open_head;
  return !hasText || Boolean(head?.maps);
}

async function askMap(column, label, signal) {
  const query = { ...column.choice, include: [label], top_k: ["1"], explain: ["true"] };
  return (await predict(shown.photo, query, signal)).labels[0]?.map ?? null;
}

async function pressLabel(column, label) {
  const wasPressed = shown.pressed?.column === column && shown.pressed.label === label.label;
  hideMap();
  if (wasPressed) return;
  const pressed = { column, label: label.label };
  shown.pressed = pressed;
  render();
  const { signal } = asking;
  try {
    const grid = await askMap(column, label.label, signal);
    if (shown.pressed !== pressed) return;
    const isFound = grid?.flat().some((weight) => weight > 0);
    byId("map").hidden = !isFound;
    if (isFound) drawMap(byId("map"), byId("photo"), grid, shown.info.input);
    byId("map-caption").textContent = isFound
      ? `Bright: where the model looked for “${label.label}”, most of all ${describePeak(byId("photo"), grid, shown.info.input)}.`
      : `The map of “${label.label}” is empty.`;
  } catch (error) {
    if (shown.pressed !== pressed) return;
    hideMap();
    if (signal.aborted) return;
    showProblem(error);
    shown.hasMapProblem = true;
  }
}

function hideMap() {
  shown.pressed = null;
  byId("map").hidden = true;
  byId("map-caption").textContent = "";
  if (shown.hasMapProblem) byId("alert").hidden = true;
  shown.hasMapProblem = false;
  render();
}

function readControls() {
  const topK = Number.parseInt(byId("top-k").value, 10);
  return {
    mode: document.querySelector("[name=mode]:checked").value,
    threshold: Number(byId("threshold").value),
    topK: Math.min(Math.max(topK || 1, 1), 200),
  };
}

function chooseMode(mode) {
  document.querySelector(`[name=mode][value=${mode}]`).checked = true;
  render();
}

/** Redraws the page without a request. */
function render() {
  const controls = readControls();
  byId("number").hidden = controls.mode !== "number";
  byId("threshold-value").textContent = controls.threshold.toFixed(2);
  const meaning = shown.info ? describeThreshold(controls.threshold, isCalibrated()) : "";
  byId("threshold-meaning").textContent = meaning;
  renderTiles(listOwnPhotos(), controls);
  if (shown.columns.length === 0) return;
  for (const id of ["hint", "request-side"]) byId(id).hidden = false;
  byId("map-hint").hidden = !shown.columns.some(({ answer }) => answer.labels.some(hasMap));
  const groups = shown.columns.map((column) => groupLabels(column.answer.labels, controls, column));
  const focused = document.activeElement;
  const { children } = byId("results");
  const place = [...children].findIndex((column) => column.contains(focused));
  byId("results").replaceChildren(
    ...shown.columns.map((column, i) => drawColumn(column, groups, i, controls)),
  );
  const again = `[data-label="${CSS.escape(focused?.dataset.label)}"]`;
  children[place]?.querySelector(again)?.focus();
  showRequest(controls);
  speak(groups[0].found);
}

/** Whether all scores are probabilities, by the model card. */
function isCalibrated() {
  const heads = [shown.info?.head, shown.info?.open_head].filter(Boolean);
  return heads.length > 0 && heads.every((head) => head.calibration);
}

function drawColumn(column, groups, i, controls) {
  const others = Object.values(groups[1 - i] ?? {}).flat();
  const { labels } = column.answer;
  const count = labels.length < MOST_LABELS ? `${labels.length}` : `the best ${MOST_LABELS}`;
  const isRanked = column.answer.label_sets.some((set) => set.ranked);
  return makeColumn({
    title: column.answer.label_sets.map((set) => TITLES[set.name] ?? set.name).join(" + "),
    groups: groups[i],
    note: `${groups[i].found.length} found of ${count} labels${isRanked ? `; scores are ${RANKED}` : ""}`,
    steps: i === 0 ? listNextSteps(labels[0]) : [],
    typed: column.typed,
    kept: column.kept,
    shared: new Set(others.map((label) => label.label)),
    threshold: controls.mode === "number" ? controls.threshold : null,
    hasMap,
    onPress: (label) => pressLabel(column, label),
    pressed: shown.pressed?.column === column ? shown.pressed.label : null,
  });
}

/** What the user may do if nothing is found; `best` is the label with the best score. */
function listNextSteps(best) {
  const lower = () => {
    byId("threshold").value = Math.floor(100 * best.score) / 100;
    chooseMode("number");
    byId("threshold").focus();
  };
  const steps = [["Choose another photo", () => byId("files").click()]];
  if (!byId("own").hidden) steps.unshift(["Add labels of your own", () => byId("candidates").focus()]);
  if (best) steps.unshift(["Lower the threshold", lower]);
  return steps;
}

/** Shows the request that returns the found labels of the first column, and its answer. */
function showRequest(controls) {
  const [{ photo, choice, answer }] = shown.columns;
  const query = { ...choice, ...showParameters(controls) };
  const url = new URL(".", document.baseURI).href;
  const hasKey = readKey() !== "";
  byId("curl").textContent = makeCurl(url, photo.name, query, hasKey);
  byId("python").textContent = makePython(url, photo.name, query, hasKey);
  byId("answer").textContent = JSON.stringify(shorten(answer, controls), null, 2);
}

function speak(labels) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const names = labels.slice(0, 3).map((label) => label.label).join(", ") || "Nothing found";
    const more = labels.length > 3 ? ` and ${labels.length - 3} more` : "";
    const ms = shown.columns[0].answer.timings.total_ms;
    byId("summary").textContent = `${names}${more}, in ${ms.toFixed(0)} ms`;
  }, QUIET_MS);
}

async function copy(id) {
  const element = byId(id);
  try {
    await navigator.clipboard.writeText(element.textContent);
    byId("copied").textContent = id === "answer" ? "Copied the answer." : `Copied the ${id} request.`;
  } catch {
    // Browsers offer no clipboard to plain-http pages of other hosts.
    getSelection().selectAllChildren(element);
    byId("copied").textContent = "Selected: copy it with Ctrl+C.";
  }
}

function startKey() {
  byId("key").value = readKey();
  byId("key-open").hidden = readKey() === "";
  byId("key-open").addEventListener("click", () => openKey(byId("key-form").hidden));
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    writeKey(byId("key").value.trim());
    byId("key").removeAttribute("aria-invalid");
    openKey(false);
    greet().then(ask, showProblem);
  });
}

function openKey(isOpen) {
  byId("key-open").hidden = false;
  byId("key-form").hidden = !isOpen;
  byId("key-open").setAttribute("aria-expanded", String(isOpen));
  (isOpen ? byId("key") : byId("key-open")).focus();
}

function showProblem(error) {
  shown.hasMapProblem = false;
  const wanted = error.code === "forbidden" ? "an admin key" : readKey() ? "another one" : "it";
  byId("alert").textContent = error.needsKey
    ? `${error.title}: type ${wanted} into the field “API key”.`
    : error.message;
  byId("alert").hidden = false;
  if (!error.needsKey) return;
  byId("key").setAttribute("aria-invalid", "true");
  openKey(true);
}

start();
