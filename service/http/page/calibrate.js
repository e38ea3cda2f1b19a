// The threshold of one label of a kept set, from photos that show it and photos that do not.
//
// The photos are scored by `/predict`; precision and recall are computed here, by the rules of
// `service/calibration.py`.

import { keepThreshold, predict, readLabelSet } from "./api.js";

const FEW_PHOTOS = 5; // as `ml-decoder labels calibrate`
const POWER = 3; // of the slider: labels that were not trained often score below 0.05
const byId = (id) => document.getElementById(id);
const state = {
  set: null, // as `readLabelSet` returns it
  photos: [], // { name, file, isShown, score }, where `isShown` is whether it shows the label
  threshold: 0,
  isMoved: false, // whether the user has moved the slider
};
let scoring = new AbortController();

/** Adds listeners; calls `onKept` after a threshold was kept. */
export function startCalibration(onKept, onProblem) {
  byId("calibrate-set").addEventListener("change", () => chooseSet(byId("calibrate-set").value));
  byId("calibrate-label").addEventListener("change", startAgain);
  byId("calibrate-clear").addEventListener("click", startAgain);
  byId("calibrate-threshold").addEventListener("input", () => {
    state.isMoved = true;
    state.threshold = Number(byId("calibrate-threshold").value) ** POWER;
    show();
  });
  byId("calibrate-keep").addEventListener("click", () => keep(onKept, onProblem));
  for (const [id, isShown] of [["calibrate-with", true], ["calibrate-without", false]]) {
    listenForFiles(byId(id), (files) => add(files, isShown));
  }
}

/** Lists the sets that can be calibrated: those that users have kept. */
export function showCalibrated(sets) {
  const names = sets.filter((set) => !set.read_only).map((set) => set.name);
  const chosen = byId("calibrate-set").value;
  byId("calibrate-set").replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.length === 0) byId("calibrate-body").hidden = true;
  byId("calibrate-none").hidden = names.length > 0;
  if (names.includes(chosen)) byId("calibrate-set").value = chosen;
  if (names.length > 0) chooseSet(byId("calibrate-set").value);
}

/** Reads a set; in its new version, the label and its photos stay. */
async function chooseSet(name) {
  try {
    const set = await readLabelSet(name);
    if (byId("calibrate-set").value !== name) return;
    const before = state.set;
    state.set = set;
    byId("calibrate-body").hidden = false;
    if (before?.name === set.name && before.version === set.version) return;
    const labels = byId("calibrate-label");
    const { value } = labels;
    labels.replaceChildren(...set.labels.map((label) => new Option(label.name, label.name)));
    const isKept = before?.name === set.name && set.labels.some((label) => label.name === value);
    if (isKept) labels.value = value;
    if (isKept) scoreAgain();
    else startAgain();
  } catch (error) {
    byId("calibrate-status").textContent = error.message;
  }
}

/** Forgets the photos: which of them show a label is another question for each label. */
function startAgain() {
  state.photos = [];
  scoreAgain();
}

function scoreAgain() {
  for (const photo of state.photos) photo.score = null;
  const label = state.set.labels.find(({ name }) => name === byId("calibrate-label").value);
  state.threshold = label.threshold;
  state.isMoved = false;
  byId("calibrate-status").textContent = "";
  score();
}

function add(files, isShown) {
  state.photos.push(...[...files].map((file) => ({ name: file.name, file, isShown, score: null })));
  byId("calibrate-status").textContent = "";
  score();
}

/** Scores the photos that have no score yet; photos that cannot be used are removed and named. */
async function score() {
  scoring.abort();
  scoring = new AbortController();
  const { signal } = scoring;
  const query = { label_set: [state.set.name], include: [byId("calibrate-label").value], top_k: ["1"] };
  for (const photo of state.photos.filter((each) => each.score === null)) {
    try {
      const answer = await predict(photo, query, signal, { isPatient: true });
      if (signal.aborted) return;
      photo.score = answer.labels[0].score;
    } catch (error) {
      if (signal.aborted) return;
      byId("calibrate-status").textContent = `${photo.name}: ${error.message}`;
      if (!error.isOfPhoto) break;
      state.photos.splice(state.photos.indexOf(photo), 1);
    }
    show();
  }
  if (!state.isMoved && scored().some((photo) => photo.isShown)) {
    state.threshold = findBestF1(scored());
  }
  show();
}

function scored() {
  return state.photos.filter((photo) => photo.score !== null);
}

function show() {
  const { threshold } = state;
  byId("calibrate-value").textContent = writeThreshold();
  byId("calibrate-threshold").value = threshold ** (1 / POWER);
  byId("calibrate-threshold").setAttribute("aria-valuetext", writeThreshold());
  const photos = scored();
  const shown = photos.filter((photo) => photo.isShown);
  byId("calibrate-counts").textContent =
    `Scored: ${shown.length} with the label, ${photos.length - shown.length} without` +
    (photos.length < state.photos.length ? `; ${state.photos.length - photos.length} to do` : "");
  byId("calibrate-clear").hidden = state.photos.length === 0;
  byId("calibrate-keep").disabled = shown.length === 0 || photos.length < state.photos.length;
  byId("calibrate-figures").textContent = shown.length > 0 ? describe(photos, shown, threshold) : "";
  const isEnough = shown.length >= FEW_PHOTOS && photos.length > shown.length;
  byId("calibrate-few").hidden = shown.length === 0 || isEnough;
}

function writeThreshold() {
  return state.threshold.toFixed(state.threshold < 0.1 ? 4 : 3);
}

function describe(photos, shown, threshold) {
  const found = photos.filter((photo) => photo.score >= threshold);
  const hits = found.filter((photo) => photo.isShown).length;
  const precision = found.length > 0 ? (hits / found.length).toFixed(2) : "-";
  const recall = (hits / shown.length).toFixed(2);
  return (
    `Precision ${precision}: ${hits} of ${found.length} found photos show it. ` +
    `Recall ${recall}: ${hits} of ${shown.length} photos that show it are found.`
  );
}

/** The threshold of best F1, the highest of several, halfway to the next lower score. */
function findBestF1(photos) {
  const ranked = [...photos].sort((a, b) => b.score - a.score);
  const positives = ranked.filter((photo) => photo.isShown).length;
  let [best, threshold, hits] = [-1, 1, 0];
  ranked.forEach(({ score, isShown }, i) => {
    hits += isShown;
    const next = ranked[i + 1]?.score ?? score;
    const f1 = (2 * hits) / (i + 1 + positives);
    const isCut = next < score || i === ranked.length - 1; // equal scores are found together
    if (isCut && f1 > best) [best, threshold] = [f1, (score + next) / 2];
  });
  return threshold;
}

async function keep(onKept, onProblem) {
  const label = byId("calibrate-label").value;
  const text = writeThreshold();
  try {
    state.set = await keepThreshold(state.set, label, state.threshold);
    byId("calibrate-status").textContent = `${label} has the threshold ${text} now.`;
    onKept();
  } catch (error) {
    const isChanged = error.code === "label_set_changed";
    if (isChanged) await chooseSet(state.set.name);
    byId("calibrate-status").textContent = isChanged
      ? `${state.set.name} was changed meanwhile: look at the figures again.`
      : error.message;
    if (error.needsKey) onProblem(error);
  }
}

/** Calls `take` with the files that are chosen in a field or dropped on its zone. */
export function listenForFiles(input, take) {
  const zone = input.closest(".drop");
  input.addEventListener("change", () => {
    take(input.files);
    input.value = "";
  });
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    event.stopPropagation(); // else the page would offer to label the photos
    document.body.classList.remove("dropping");
  });
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    take(event.dataTransfer.files);
  });
}
