// The corrections of "Many photos": how many there are, learning from them, forgetting them.

import { CORRECTIONS, dropTyped, findLabels } from "./choice.js";
import { correct, correctionsOf, forgetCorrections } from "./corrections.js";
import { byId, count, say, toast } from "./elements.js";
import { listOwnPhotos } from "./photos.js";
import { sendPhotos } from "./teach.js";

let act = {}; // what `startLearning` was given
let isLearning = false;

/** `listTags` returns all tags, null while some are not known; `onLearnt` asks again, with these sets too. */
export function startLearning(callbacks) {
  act = callbacks;
  byId("corrections-learn").addEventListener("click", learn);
  byId("corrections-forget").addEventListener("click", () => {
    const restore = forgetCorrections();
    act.onForgotten();
    byId("more-files").focus(); // the button is hidden now
    toast("Forgot all corrections in this browser. What the service has learnt stays.", () => act.onForgotten(restore()));
  });
}

function listCorrections() {
  const list = (photo) => [...correctionsOf(photo)].map(([label, mark]) => ({ photo, label, ...mark }));
  return listOwnPhotos().flatMap(list);
}

/** Draws the number of corrections, and of those to learn from. */
export function drawCorrections() {
  const all = listCorrections();
  const waiting = all.filter(({ isDone }) => !isDone).length;
  byId("corrections-none").hidden = all.length > 0;
  byId("corrections-some").hidden = all.length === 0;
  byId("corrections-count").textContent = `${count(all.length, "correction")}, kept in this browser`;
  byId("corrections-learn").hidden = waiting === 0;
  byId("corrections-number").textContent = waiting;
}

async function learn() {
  if (isLearning) return;
  isLearning = true;
  say("corrections-status", "Learning…");
  const [before, learnt, notes] = [act.listTags(), [], []];
  try {
    const known = await findLabels();
    const waiting = listCorrections().filter(({ isDone }) => !isDone);
    for (const label of new Set(waiting.map((correction) => correction.label))) {
      const corrections = waiting.filter((correction) => correction.label === label);
      const set = known.get(label);
      const name = !set || set.read_only ? CORRECTIONS : set.name;
      const isTrained = set?.origin === "model"; // and better than its text, with which it would begin in another set
      const done = isTrained ? corrections : await teach(name, label, corrections, notes);
      if (isTrained) notes.push(`“${label}” is a trained label, which cannot learn: it is corrected on its photos alone.`);
      else if (done.length > 0) learnt.push({ name, label, done });
      const kept = done.filter(({ photo, isShown }) => correctionsOf(photo).get(label)?.isShown === isShown); // not taken back meanwhile
      correct(kept.map((correction) => ({ ...correction, isDone: true })));
    }
  } catch (error) {
    notes.push(error.message);
    if (error.needsKey) act.onProblem(error);
  }
  if (learnt.length > 0) {
    dropTyped(learnt.map(({ label }) => label)); // typed words answer before sets
    await act.onLearnt(learnt.map(({ name }) => name)).catch(act.onProblem);
    const after = act.listTags();
    const changed = before && after && [...before].filter((tag) => !after.has(tag)).length + [...after].filter((tag) => !before.has(tag)).length;
    const changes = before && after ? `; ${count(changed, "other tag")} changed` : "";
    const number = count(learnt.flatMap(({ done }) => done).length, "correction");
    notes.unshift(`Learnt ${number} of ${count(learnt.length, "label")}${changes}.`);
  }
  say("corrections-status", notes.join(" "), { isProblem: learnt.length === 0 });
  isLearning = false;
  drawCorrections();
  if (document.activeElement === document.body) byId("corrections-forget").focus(); // the button is hidden now
}

/** Returns the corrections that were learnt: those of photos that cannot be used are left out, and noted. */
async function teach(name, label, corrections, notes) {
  const list = (isShown) => corrections.filter((one) => one.isShown === isShown).map(({ photo }) => photo.file);
  try {
    await sendPhotos(name, label, { positive: list(true), negative: list(false) }, { isPatient: true });
    return corrections;
  } catch (error) {
    if (error.needsKey || !error.code) throw error; // the rest would fail too
    if (!error.file) {
      notes.push(`“${label}” is not learnt: ${error.message}`);
      return [];
    }
    notes.push(`“${label}” is not learnt from ${error.file.name}: ${error.message}.`);
    const others = corrections.filter(({ photo }) => photo.file !== error.file);
    return others.length > 0 ? teach(name, label, others, notes) : [];
  }
}
