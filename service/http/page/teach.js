// A label learnt from photos: `POST /labels/{name}/examples`.

import { teachLabel } from "./api.js";
import { listenForFiles } from "./calibrate.js";

const byId = (id) => document.getElementById(id);
const KINDS = { "teach-with": "positive", "teach-without": "negative" }; // id of a field -> its part of the form
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
  try {
    const answer = await teachLabel(name, label, sent);
    byId("teach-status").textContent = describe(answer);
    byId("teach-scores").textContent = Object.values(KINDS)
      .flatMap((kind) => sent[kind].map((file, i) => `${file.name} ${answer[kind][i].score.toFixed(3)}`))
      .join(", ");
    byId("teach-advice").textContent = answer.advice ?? "";
    onTaught(name);
  } catch (error) {
    byId("teach-status").textContent = error.message;
    for (const kind of Object.values(KINDS)) photos[kind].unshift(...sent[kind]); // to send them again
    showPhotos();
    if (error.needsKey) onProblem(error);
  }
}

function describe({ label, label_set: set, examples, separation, threshold }) {
  const { positive, negative, repeated } = examples;
  return (
    `“${label}” in ${set.name} has learnt from ${positive} of it and ${negative} without it` +
    (repeated > 0 ? ` (${repeated} sent again count once)` : "") +
    `. Separation: ${separation.meaning}. The threshold is ${threshold.toFixed(2)}; these photos score now:`
  );
}
