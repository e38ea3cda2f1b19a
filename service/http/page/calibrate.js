// The threshold of one label of a set, from photos that show it and photos that do not.
//
// The photos are scored by `/predict`; precision and recall are computed here, by the rules of
// `service/calibration.py`.

import { keepThreshold, predict, readLabelSet } from "./api.js";
import { byId, makeElement, say } from "./elements.js";
import { makePicker } from "./picker.js";
import { drawStrip, toPlace, toScore, writeScore } from "./strip.js";

const FEW_PHOTOS = 5; // as `ml-decoder labels calibrate`
const LOW_THRESHOLD = 0.05; // such a threshold needs more photos without the label,
const ENOUGH_OTHERS = 20; // so many
const pickers = {}; // `shown` and `others`: photos that show the label, and photos that do not
const state = {
  set: null, // as `readLabelSet` returns it
  threshold: 0,
  isMoved: false, // whether the user has moved the slider
};
let scoring = new AbortController();

/** Adds listeners; calls `onKept` after a threshold was saved. */
export function startCalibration(onKept, onProblem) {
  byId("calibrate-set").addEventListener("change", () => chooseSet(byId("calibrate-set").value));
  byId("calibrate-label").addEventListener("change", () => startAgain());
  byId("calibrate-clear").addEventListener("click", () => {
    startAgain();
    byId("calibrate-with").focus();
  });
  byId("calibrate-threshold").addEventListener("input", () => {
    state.isMoved = true;
    state.threshold = toScore(Number(byId("calibrate-threshold").value));
    show();
  });
  byId("calibrate-share").addEventListener("input", show);
  byId("calibrate-keep").addEventListener("click", () => keep(onKept, onProblem));
  const change = () => {
    say("calibrate-status", "");
    score();
  };
  pickers.shown = makePicker(byId("calibrate-with"), change);
  pickers.others = makePicker(byId("calibrate-without"), change);
}

/** Opens a label of a set, without photos: those from which it has learnt score higher than others. */
export async function openThreshold(name, label) {
  const field = byId("calibrate-set");
  if (![...field.options].some(({ value }) => value === name)) field.add(new Option(name, name)); // not listed yet
  field.value = name;
  await chooseSet(name, label);
  byId("calibrate-title").focus();
}

/** Lists the sets that can be calibrated: the user's own. */
export function showCalibrated(sets) {
  const names = sets.filter((set) => !set.read_only).map((set) => set.name);
  const chosen = byId("calibrate-set").value;
  byId("calibrate-set").replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.length === 0) byId("calibrate-body").hidden = true;
  byId("calibrate-none").hidden = names.length > 0;
  if (names.includes(chosen)) byId("calibrate-set").value = chosen;
  if (names.length > 0) chooseSet(byId("calibrate-set").value);
}

/** Reads a set; in its new version, the label and its photos stay, unless a label is `wanted`. */
async function chooseSet(name, wanted = "") {
  try {
    const set = await readLabelSet(name);
    if (byId("calibrate-set").value !== name) return;
    const before = state.set;
    state.set = set;
    byId("calibrate-body").hidden = false;
    const isSame = before?.name === set.name && before.version === set.version;
    if (isSame && !wanted) return;
    const field = byId("calibrate-label");
    const label = wanted || field.value;
    if (!isSame) field.replaceChildren(...set.labels.map(({ name }) => new Option(name, name)));
    const isListed = set.labels.some(({ name }) => name === label);
    if (isListed) field.value = label;
    if (isListed && before?.name === set.name && !wanted) scoreAgain();
    else startAgain();
  } catch (error) {
    say("calibrate-status", error.message, { isProblem: true });
  }
}

/** Forgets the photos: which of them show a label is another question for each label. */
function startAgain() {
  for (const picker of Object.values(pickers)) picker.clear();
  byId("calibrate-share").value = "";
  scoreAgain();
}

function findLabel() {
  return state.set.labels.find(({ name }) => name === byId("calibrate-label").value);
}

function scoreAgain() {
  for (const photo of listPhotos()) photo.score = null;
  state.threshold = findLabel().threshold;
  state.isMoved = false;
  say("calibrate-status", "");
  score();
}

function listPhotos() {
  const mark = (photos, isShown) => photos.map((photo) => Object.assign(photo, { isShown }));
  return [...mark(pickers.shown.photos, true), ...mark(pickers.others.photos, false)];
}

/** Scores the photos that have no score yet; photos that cannot be used are removed and named. */
async function score() {
  scoring.abort();
  scoring = new AbortController();
  const { signal } = scoring;
  const query = { label_set: [state.set.name], include: [findLabel().name], top_k: ["1"] };
  for (const photo of listPhotos().filter(({ score }) => score === null)) {
    try {
      const answer = await predict(photo, query, signal, { isPatient: true });
      if (signal.aborted) return;
      photo.score = answer.labels[0].score;
    } catch (error) {
      if (signal.aborted) return;
      say("calibrate-status", `${photo.name}: ${error.message}`, { isProblem: true });
      if (!error.isOfPhoto) break;
      (photo.isShown ? pickers.shown : pickers.others).remove(photo);
    }
    show();
  }
  if (!state.isMoved) state.threshold = isEnough() ? findBestF1(scored()) : findLabel().threshold;
  show();
}

function scored() {
  return listPhotos().filter((photo) => photo.score !== null);
}

/** Numbers of scored photos that show the label, and of the others. */
function count() {
  const shown = scored().filter((photo) => photo.isShown).length;
  return { shown, others: scored().length - shown };
}

function isEnough() {
  const { shown, others } = count();
  return shown >= FEW_PHOTOS && others > 0;
}

function show() {
  const { threshold } = state;
  const [all, photos, { shown, others }] = [listPhotos().length, scored(), count()];
  byId("calibrate-value").textContent = writeScore(threshold);
  byId("calibrate-threshold").value = toPlace(threshold);
  byId("calibrate-threshold").setAttribute("aria-valuetext", writeScore(threshold));
  const toDo = photos.length < all ? `; ${all - photos.length} to do` : "";
  say("calibrate-counts", all > 0 ? `Scored: ${shown} of it, ${others} without it${toDo}` : "");
  byId("calibrate-clear").hidden = all === 0;
  byId("calibrate-result").hidden = photos.length === 0;
  for (const picker of Object.values(pickers)) picker.captions();
  drawStrip(byId("calibrate-strip"), photos, threshold);
  byId("calibrate-figures").replaceChildren(...(shown > 0 ? describe(photos, shown, threshold) : []));
  const warning = warn(shown, others, threshold);
  say("calibrate-few", warning);
  byId("calibrate-few").hidden = warning === "";
  byId("calibrate-keep").disabled = shown === 0 || photos.length < all;
  byId("calibrate-keep").textContent = warning ? "Save anyway" : "Save threshold";
  byId("calibrate-keep").classList.toggle("primary", !warning);
  const { threshold: saved, calibrated, examples, fit } = findLabel();
  byId("calibrate-saved").textContent = `${calibrated ? "Saved" : "Default"}: ${writeScore(saved)}`;
  byId("calibrate-learnt").hidden = !examples && !fit;
}

/** Why the figures or the threshold deserve no trust; empty if they do. */
function warn(shown, others, threshold) {
  if (!isEnough()) {
    const more = FEW_PHOTOS - shown;
    const missing = [
      more > 0 && `${more} more that ${more === 1 ? "shows" : "show"} it`,
      others === 0 && "some that do not show it",
    ].filter(Boolean);
    return `Too few photos to choose a threshold: add ${missing.join(", and ")}. Until then the figures are mostly chance.`;
  }
  if (threshold >= LOW_THRESHOLD || others >= ENOUGH_OTHERS) return "";
  return (
    `${writeScore(threshold)} is very low: many photos without the label may reach it. ` +
    `Add at least ${ENOUGH_OTHERS - others} more that do not show it, or move the threshold up.`
  );
}

function describe(photos, shown, threshold) {
  const passing = photos.filter((photo) => photo.score >= threshold);
  const hits = passing.filter((photo) => photo.isShown).length;
  const precision = passing.length > 0 ? (hits / passing.length).toFixed(2) : "-";
  const recall = (hits / shown).toFixed(2);
  return [
    ["Precision", precision, `${hits} of ${passing.length} found photos show it.`],
    ["Recall", recall, `${hits} of ${shown} photos that show it are found.`],
    ...describeRare(hits / shown, passing.length - hits, photos.length - shown),
  ].map(makeFigure);
}

/** The precision among photos of which the given share shows the label, from the rates of found photos. */
function describeRare(found, wrong, others) {
  const percent = Number(byId("calibrate-share").value);
  if (!(percent > 0 && percent < 100 && others > 0 && found > 0)) return [];
  // If none of n is found, up to 3 / n of all may be (with 95 % confidence).
  const rate = (wrong || Math.min(3, others)) / others;
  const precision = (percent * found) / (percent * found + (100 - percent) * rate);
  const bound = wrong ? "" : ` None of ${others} without it is found, so up to ${Math.round(100 * rate)} % may be: add more.`;
  const value = `${precision.toFixed(2)}${wrong ? "" : " or more"}`;
  return [["Precision among your photos", value, `${percent} of 100 show it.${bound}`]];
}

function makeFigure([name, value, meaning]) {
  const figure = document.createElement("p");
  figure.append(makeElement("strong", "", `${name} ${value}`), `: ${meaning} `);
  return figure;
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
  const text = writeScore(state.threshold);
  try {
    state.set = await keepThreshold(state.set, label, state.threshold);
    say("calibrate-status", `${label} has the threshold ${text} now.`);
    show();
    onKept();
  } catch (error) {
    const isChanged = error.code === "label_set_changed";
    if (isChanged) await chooseSet(state.set.name);
    const text = isChanged ? `${state.set.name} was changed meanwhile: look at the figures again.` : error.message;
    say("calibrate-status", text, { isProblem: true });
    if (error.needsKey) onProblem(error);
  }
}
