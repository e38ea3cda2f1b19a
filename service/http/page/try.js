// The tab "Try": one photo, the user's own words, and its tags with scores, thresholds and maps.

import { predict } from "./api.js";
import { askAll, chosenSets, comparedSet, isEmpty, ownLabels, readChoice, tickDefaults, typedLabels } from "./choice.js";
import { chooseMode, readControls } from "./controls.js";
import { leaveCrossed } from "./corrections.js";
import { NO_CLIPBOARD, byId, copyText, toast } from "./elements.js";
import { note, redraw, returnTo, stopTagging, tagPhotos } from "./grid.js";
import { listOwnPhotos } from "./photos.js";
import { describePeak, drawMap } from "./map.js";
import { showRequest } from "./request.js";
import { makeColumn } from "./results.js";
import { openNewSet } from "./sets.js";
import { MOST_LABELS, RANKED, choiceParameters, describeControls, describeThreshold, groupLabels, isFound } from "./scores.js";
import { openTab } from "./tabs.js";
import { wordOf } from "./words.js";

const PHONE = matchMedia("(max-width: 59.99rem)");
const QUIET_MS = 400; // pause before a screen reader announces a moving slider

const TITLES = { candidate_labels: "your own words" };

const shown = {
  photo: null,
  info: null,
  columns: [], // { photo, choice, typed, kept, answer }, one or two
  pressed: null, // { column, label }
  hasMapProblem: false, // whether the alert is about a map
};
let act = {}; // what `startTry` was given
let asking = new AbortController();
let speaking = 0;

/** Calls `greet`, which reads the model card, before the first request, and `onProblem` with errors. */
export function startTry(callbacks) {
  act = callbacks;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown.pressed) hideMap();
  });
  // On a phone, the keyboard leaves room for the words and the result, if they are at the top.
  const pin = () => {
    if (!PHONE.matches || !byId("candidates").matches(":focus")) return;
    byId("result-side").classList.add("pinned"); // also after the focus: else the page moves under a tap
    byId("result-side").scrollIntoView();
  };
  byId("candidates").addEventListener("focus", pin);
  addEventListener("resize", pin); // the keyboard may shrink the photo above
  byId("candidates").addEventListener("input", showWords);
  byId("photo").addEventListener("error", () => {
    byId("photo").hidden = true; // not a browser's sign of a missing picture
    byId("unseen").hidden = false;
    render();
  });
  byId("save-words").addEventListener("click", () => {
    openTab("labels");
    openNewSet(typedLabels());
  });
  byId("back").addEventListener("click", () => returnTo(shown.photo));
}

/** Takes the model card, the answer of `/info`. */
export function showInfo(info) {
  shown.info = info;
}

/** Shows a photo and asks for its tags. */
export function showPhoto(photo) {
  hideMap();
  shown.photo = photo;
  URL.revokeObjectURL(byId("photo").src);
  byId("photo").src = URL.createObjectURL(photo.file);
  byId("photo").alt = photo.title;
  byId("photo").hidden = false;
  byId("unseen").hidden = true;
  byId("unseen").textContent = photo.title;
  byId("frame").hidden = false;
  ask();
}

/** Clears the stage if its photo is one of these. */
export function forgetPhoto(photos) {
  if (!photos.includes(shown.photo)) return;
  asking.abort();
  shown.photo = null;
  byId("frame").hidden = true;
  byId("alert").hidden = true; // it may be about the photo
  forgetAnswer();
  byId("result-side").setAttribute("aria-busy", "false");
  byId("summary").textContent = "No photo yet.";
  byId("intro").hidden = false;
  tagPhotos(); // they waited for the answer of this one
}

/** Sends one request per column and asks for every label that the controls may show; then tags the user's photos. */
export async function ask() {
  stopTagging(); // the choice may be another one
  if (!shown.photo) return tagPhotos();
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  byId("result-side").setAttribute("aria-busy", "true");
  try {
    if (!shown.info) await act.greet();
    await tickDefaults(shown.photo, signal);
    const wanted = [{ sets: chosenSets(), candidates: typedLabels() }];
    if (comparedSet()) wanted.push({ sets: [comparedSet()], candidates: [] });
    const columns = await Promise.all(wanted.map((column) => askColumn(column, signal)));
    shown.columns = columns;
    byId("alert").hidden = true;
    note(shown.photo, columns[0].choice, { answer: columns[0].answer });
    hideMap();
  } catch (error) {
    if (signal.aborted) return;
    if (shown.columns[0]?.photo !== shown.photo) forgetAnswer();
    if (error.code === "unknown_label_set" && isEmpty(readChoice())) {
      askForLabels();
      return;
    }
    act.onProblem(error, shown.photo);
    if (!error.isOfPhoto) return;
    note(shown.photo, readChoice(), { problem: error.message });
    render();
  } finally {
    if (!signal.aborted) byId("result-side").setAttribute("aria-busy", "false");
  }
  return tagPhotos();
}

async function askColumn({ sets, candidates }, signal) {
  const choice = choiceParameters(sets, candidates);
  const { photo } = shown;
  const [answer, kept] = await Promise.all([askAll(photo, choice, signal), ownLabels(sets)]);
  return { photo, choice, typed: new Set(candidates), kept: new Set(kept), answer };
}

/** The model has no default label set, as CLIP may have none. */
function askForLabels() {
  forgetAnswer();
  byId("alert").hidden = true;
  byId("summary").textContent = byId("own").hidden
    ? "Tick a label set in the options: none is the default."
    : "Type labels under “Your own words”: this model has no default label set.";
}

/** Clears the results of the previous photo. */
function forgetAnswer() {
  shown.columns = [];
  hideMap();
  clearTimeout(speaking);
  byId("results").replaceChildren();
  byId("resolved").textContent = "";
  byId("summary").textContent = "No tags.";
  byId("intro").hidden = true;
  byId("summary").classList.remove("spoken");
  byId("hint").hidden = true;
  showRequest(null);
}

/** Whether a label has maps, by the model card; a label that learnt without a text needs no head for them. */
function hasMap(label) {
  const head = label.source === "trained" ? shown.info.head : shown.info.open_head;
  const hasText = !["examples", "fit"].includes(label.source) || shown.info.open_head;
  return !byId("photo").hidden && (!hasText || Boolean(head?.maps));
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
    const hasPeak = grid?.flat().some((weight) => weight > 0);
    byId("map").hidden = !hasPeak;
    if (hasPeak) drawMap(byId("map"), byId("photo"), grid, shown.info.input);
    byId("map-caption").textContent = hasPeak
      ? `Bright: where the model looked for “${wordOf(label.label)}”, most of all ${describePeak(byId("photo"), grid, shown.info.input)}.`
      : `The map of “${wordOf(label.label)}” is empty.`;
    document.querySelector(".label[aria-pressed=true]")?.scrollIntoView({ block: "nearest" }); // the photo may cover it
  } catch (error) {
    if (shown.pressed !== pressed) return;
    hideMap();
    if (signal.aborted) return;
    act.onProblem(error);
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

/** Redraws the page without a request. */
export function render() {
  const controls = readControls();
  byId("number").hidden = controls.mode !== "number";
  byId("limit").textContent = controls.mode === "filled" ? "At least" : "At most";
  byId("threshold-value").textContent = controls.threshold.toFixed(2);
  const meaning = shown.info ? describeThreshold(controls.threshold, isCalibrated()) : "";
  byId("threshold-meaning").textContent = meaning;
  byId("options-summary").textContent = [chosenSets().join(", "), describeControls(controls)].filter(Boolean).join("; ");
  const count = listOwnPhotos().length;
  byId("back").hidden = count < 2;
  byId("back").textContent = `← All ${count} photos`;
  showWords();
  redraw();
  if (shown.columns.length === 0) return;
  byId("intro").hidden = true;
  byId("summary").classList.add("spoken"); // the chips show it
  byId("hint").hidden = false;
  byId("map-hint").hidden = !shown.columns.some(({ answer }) => answer.labels.some(hasMap));
  const groups = shown.columns.map((column) => groupLabels(leaveCrossed(column.photo, column.answer.labels), controls, column));
  const focused = document.activeElement;
  const { children } = byId("results");
  const index = [...children].findIndex((column) => column.contains(focused));
  byId("results").replaceChildren(
    ...shown.columns.map((column, i) => drawColumn(column, groups, i, controls)),
  );
  const again = `[data-label="${CSS.escape(focused?.dataset.label)}"]`;
  children[index]?.querySelector(again)?.focus();
  byId("resolved").textContent = Object.entries(shown.columns[0].answer.resolved ?? {}).map((pair) => pair.join(": ")).join(", ");
  showRequest(shown.columns[0], controls);
  speak(groups[0].found);
}

function showWords() {
  byId("save-words").hidden = typedLabels().length === 0;
}

/** Whether all scores are probabilities, by the model card. */
function isCalibrated() {
  const heads = [shown.info?.head, shown.info?.open_head].filter(Boolean);
  return heads.length > 0 && heads.every((head) => head.calibration);
}

function drawColumn(column, groups, i, controls) {
  const others = Object.values(groups[1 - i] ?? {}).flat();
  const { labels, timings: { total_ms: ms } } = column.answer;
  const count = labels.length < MOST_LABELS ? `${labels.length}` : `the best ${MOST_LABELS}`;
  const isRanked = column.answer.label_sets.some((set) => set.ranked);
  const names = column.answer.label_sets.map((set) => TITLES[set.name] ?? set.name);
  return makeColumn({
    title: shown.columns.length > 1 ? names.join(", ") : "",
    groups: groups[i],
    note: `${groups[i].found.length} found of ${count} labels, in ${ms.toFixed(0)} ms${isRanked ? `; scores are ${RANKED}` : ""}`,
    steps: i === 0 ? listNextSteps(labels[0]) : [],
    shared: new Set(others.map((label) => label.label)),
    threshold: controls.mode === "number" ? controls.threshold : null,
    onCopy: copyTags,
    isFound: (label) => isFound(label, controls),
    hasMap,
    onPress: (label) => pressLabel(column, label),
    pressed: shown.pressed?.column === column ? shown.pressed.label : null,
  });
}

/** What the user may do if nothing is found; `best` is the label with the best score. */
function listNextSteps(best) {
  const lower = () => {
    byId("threshold").value = Math.floor(100 * best.score) / 100;
    byId("options").open = true;
    chooseMode("number");
    render();
    byId("threshold").focus();
  };
  const steps = [["Choose another photo", () => byId("files").click()]];
  if (!byId("own").hidden) steps.unshift(["Add labels of your own", () => byId("candidates").focus()]);
  if (best) steps.unshift(["Lower the threshold", lower]);
  return steps;
}

async function copyTags(tags) {
  const text = tags.join(", ");
  toast((await copyText(text)) ? `Copied: ${text}` : NO_CLIPBOARD);
}

function speak(labels) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const names = labels.slice(0, 3).map(({ label }) => wordOf(label)).join(", ") || "Nothing found.";
    const more = labels.length > 3 ? ` and ${labels.length - 3} more` : "";
    byId("summary").textContent = `${names}${more}`;
  }, QUIET_MS);
}
