// A label learnt from photos: `POST /labels/{name}/examples`.

import { teachLabel } from "./api.js";
import { listenForFiles } from "./calibrate.js";

const byId = (id) => document.getElementById(id);
const KINDS = { "teach-with": "positive", "teach-without": "negative" }; // id of a field -> its part of the form
const MOST_PHOTOS = 200; // of a request
const MOST_BYTES = 20_000_000; // of its photos; the default limit of a body is 20 MiB
let photos = { positive: [], negative: [] };

/** Adds listeners; calls `onTaught` with the name of the set after a label was taught. */
export function startTeaching(onTaught, onProblem) {
  for (const [id, kind] of Object.entries(KINDS)) {
    listenForFiles(byId(id), (files) => {
      photos[kind].push(...files);
      showPhotos();
    });
  }
  byId("teach-clear").addEventListener("click", forgetPhotos);
  byId("teach-send").addEventListener("click", () => teach(onTaught, onProblem));
}

/** Offers the names of the sets that can be taught: those that users have kept. */
export function showTeachable(sets) {
  const names = sets.filter((set) => !set.read_only).map((set) => set.name);
  byId("teach-sets").replaceChildren(...names.map((name) => new Option(name, name)));
}

function forgetPhotos() {
  photos = { positive: [], negative: [] };
  showPhotos();
}

function showPhotos() {
  const { positive, negative } = photos;
  const count = positive.length + negative.length;
  byId("teach-counts").textContent = count > 0 ? `To send: ${positive.length} of it, ${negative.length} without it` : "";
  byId("teach-clear").hidden = count === 0;
}

async function teach(onTaught, onProblem) {
  const [name, label] = [byId("teach-set"), byId("teach-label")].map((field) => field.value.trim());
  const sent = photos;
  const isEmpty = Object.values(sent).every((files) => files.length === 0);
  const [missing, hint] =
    (!label && ["teach-label", "Name the label."]) ||
    (!name && ["teach-set", "Name the set."]) ||
    (isEmpty && ["teach-with", "Choose photos of it first."]) || [];
  if (missing) {
    byId("teach-status").textContent = hint;
    byId(missing).focus();
    return;
  }
  forgetPhotos();
  byId("teach-status").textContent = "Learning…";
  byId("teach-scores").textContent = "";
  byId("teach-advice").textContent = "";
  const scores = [];
  let [answer, repeated, part] = [null, 0, sent];
  try {
    for (part of split(sent)) {
      answer = await teachLabel(name, label, part);
      repeated += answer.examples.repeated;
      for (const kind of Object.values(KINDS)) {
        part[kind].forEach((file, i) => scores.push(`${file.name} ${answer[kind][i].score.toFixed(3)}`));
      }
    }
    byId("teach-status").textContent = describe(answer, repeated);
    byId("teach-scores").textContent = scores.join(", ");
    byId("teach-advice").textContent = answer.advice ?? "";
    onTaught(name);
  } catch (error) {
    byId("teach-status").textContent = error.message + nameFile(error.message, part);
    for (const kind of Object.values(KINDS)) photos[kind].unshift(...sent[kind]); // to send them again
    showPhotos();
    if (error.needsKey) onProblem(error);
  }
}

/** Splits photos into requests that the service accepts; photos that are sent again count once. */
function split(sent) {
  const parts = [];
  let [count, bytes] = [0, 0];
  for (const [kind, files] of Object.entries(sent)) {
    for (const file of files) {
      [count, bytes] = [count + 1, bytes + file.size];
      if (parts.length === 0 || count > MOST_PHOTOS || bytes > MOST_BYTES) {
        parts.push({ positive: [], negative: [] });
        [count, bytes] = [1, file.size];
      }
      parts.at(-1)[kind].push(file);
    }
  }
  return parts;
}

/** Returns the name of the file that a problem counts: "Photo 2 of 3 `positive` photos". */
function nameFile(message, part) {
  const [, number, kind] = /Photo (\d+) of (?:\d+ )?`(\w+)`/.exec(message) ?? [];
  const file = part[kind]?.[number - 1];
  return file ? ` (${file.name})` : "";
}

function describe({ label, label_set: set, examples, separation, threshold }, repeated) {
  const { positive, negative } = examples;
  return (
    `“${label}” in ${set.name} has learnt from ${positive} of it and ${negative} without it` +
    (repeated > 0 ? ` (${repeated} left out: the same as another, or nearly so)` : "") +
    `. Separation: ${separation.meaning}. The threshold is ${threshold.toFixed(2)}; these photos score:`
  );
}
