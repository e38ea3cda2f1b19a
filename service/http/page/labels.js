// Label sets of the service and labels typed by the user.
//
// Typed labels can be saved as a set; a saved set can be deleted.

import { deleteLabelSet, keepLabelSet, listLabelSets, readLabelSet } from "./api.js";
import { MOST_LABELS, dropLabels, splitLabels } from "./scores.js";

const ORIGINS = {
  model: "learnt from labelled photos",
  bundle: "scored by the meaning of their names",
  folder: "from a file, scored by meaning",
  store: "kept by users, scored by meaning",
};

const SHIPPED = new Set(["model", "bundle"]);
const TYPING_PAUSE_MS = 350;
const byId = (id) => document.getElementById(id);
let showElsewhere; // called with the sets after each listing
let listed = []; // the sets as the service lists them
const keptNames = new Map(); // `name version` -> promise of the labels of a registered set

/** Names of the ticked sets, the users' first: of a label in several, the first set's threshold counts. */
export function chosenSets() {
  const names = [...document.querySelectorAll("#sets input:checked")].map((box) => box.value);
  const isOwn = (name) => listed.some((set) => set.name === name && !SHIPPED.has(set.origin));
  return [...names.filter(isOwn), ...names.filter((name) => !isOwn(name))];
}

export function comparedSet() {
  return byId("compare").value;
}

export function typedLabels() {
  return splitLabels(byId("candidates").value);
}

/** Names of the labels in the registered ones of these sets, unless they are too many to show. */
export async function keptLabels(sets) {
  const isKept = (set) => set.origin === "store" && set.num_labels <= MOST_LABELS;
  const kept = listed.filter((set) => sets.includes(set.name) && isKept(set));
  return (await Promise.all(kept.map(readNames))).flat();
}

function readNames({ name, version }) {
  const key = `${name} ${version}`;
  const read = () => readLabelSet(name).then(({ labels }) => labels.map((label) => label.name));
  if (!keptNames.has(key)) {
    keptNames.set(key, read().catch(() => {
      keptNames.delete(key); // the answer has the set's labels all the same
      return [];
    }));
  }
  return keptNames.get(key);
}

/** Lists the sets; keeps ticked sets ticked and ticks those in `also`. */
export async function showSets(also = []) {
  listed = await listLabelSets();
  const chosen = [...chosenSets(), ...also]; // not before: a box may be ticked meanwhile
  replaceRows(listed.map((set) => makeRow(set, chosen.includes(set.name))));
  const compared = comparedSet();
  const options = listed.map((set) => new Option(set.name, set.name));
  byId("compare").replaceChildren(new Option("nothing", ""), ...options);
  byId("compare").value = isListed(compared) ? compared : "";
  showElsewhere(listed);
}

function isListed(name) {
  return listed.some((set) => set.name === name);
}

/** Replaces the rows; focus stays on its set, or moves to the row now at that position. */
function replaceRows(rows) {
  const list = byId("sets");
  const { localName, value } = document.activeElement;
  const place = [...list.children].findIndex((row) => row.contains(document.activeElement));
  list.replaceChildren(...rows);
  if (place < 0) return;
  const same = rows.find((row) => row.querySelector("input").value === value);
  const row = same ?? rows[Math.min(place, rows.length - 1)];
  (row.querySelector(localName) ?? row.querySelector("input")).focus();
}

/** Ticks the default sets that the service used when none was chosen. */
export function tickSets(names) {
  for (const box of document.querySelectorAll("#sets input")) {
    box.checked = names.includes(box.value);
  }
}

/**
 * Adds listeners; calls `onChange` after a choice and after a pause in typing, and `onListed` with
 * the sets of the service.
 */
export function startLabels(onChange, onListed, onProblem) {
  showElsewhere = onListed;
  byId("sets").addEventListener("change", onChange);
  byId("sets").addEventListener("click", ({ target }) => {
    if (target.localName !== "button") return;
    remove(listed.find((set) => set.name === target.value), onChange, onProblem);
  });
  byId("delete-no").addEventListener("click", () => byId("delete").close());
  byId("delete-yes").addEventListener("click", () => byId("delete").close("yes"));
  byId("compare").addEventListener("change", onChange);
  let pause = 0;
  byId("candidates").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(onChange, TYPING_PAUSE_MS);
  });
  byId("keep").addEventListener("click", () => keep(false, onChange, onProblem));
  byId("replace").addEventListener("click", () => keep(true, onChange, onProblem));
  byId("keep-name").addEventListener("input", () => showKeepStatus("", false));
}

async function keep(replace, onChange, onProblem) {
  const name = byId("keep-name").value.trim();
  const labels = typedLabels();
  if (!name || labels.length === 0) {
    showKeepStatus(name ? "Type some labels first." : "Give the set a name.", false);
    byId(name ? "candidates" : "keep-name").focus();
    return;
  }
  try {
    const kept = await keepLabelSet(name, labels, replace);
    // Text typed during the request stays.
    byId("candidates").value = dropLabels(byId("candidates").value, labels);
    if (byId("keep-name").value.trim() === name) byId("keep-name").value = "";
    showKeepStatus(`Kept ${countLabels(kept)} as ${kept.name}, version ${kept.version}.`, false);
    await showSets([kept.name]);
    onChange();
  } catch (error) {
    const isTaken = error.code === "label_set_exists";
    showKeepStatus(isTaken ? `There is a set ${name} with other labels.` : error.message, isTaken);
    if (error.needsKey) onProblem(error);
  }
}

function showKeepStatus(text, mayReplace) {
  byId("keep-status").textContent = text;
  byId("replace").hidden = !mayReplace;
}

async function remove(set, onChange, onProblem) {
  if (!(await isConfirmed(set))) return;
  const { name } = set;
  const isUsed = chosenSets().includes(name) || comparedSet() === name;
  try {
    const isDeleted = await deleteIfUnchanged(set);
    await showSets();
    const isKept = !isDeleted && isListed(name);
    byId("sets-status").textContent = isKept
      ? `${name} was changed meanwhile and not deleted. Delete again to delete the changed set.`
      : `${name} is deleted.`;
    if (isUsed) onChange();
  } catch (error) {
    byId("sets-status").textContent = error.message;
    if (error.needsKey) onProblem(error);
  }
}

/** Asks before deleting a set; only the confirm button means yes. */
function isConfirmed(set) {
  const question = byId("delete");
  byId("sets-status").textContent = "";
  byId("delete-title").textContent = `Delete ${set.name}?`;
  byId("delete-labels").textContent = countLabels(set);
  question.returnValue = "";
  question.showModal();
  return new Promise((resolve) => {
    const answer = () => resolve(question.returnValue === "yes");
    question.addEventListener("close", answer, { once: true });
  });
}

/** Deletes a set only in the version that the page shows. */
async function deleteIfUnchanged(set) {
  try {
    await deleteLabelSet(set);
  } catch (error) {
    if (error.code === "label_set_changed") return false;
    throw error;
  }
  return true;
}

function makeRow(set, isChosen) {
  const row = document.createElement("div");
  row.className = "set";
  row.append(makeChoice(set, isChosen));
  if (!set.read_only) row.append(makeDeleteButton(set));
  return row;
}

function makeChoice(set, isChosen) {
  const label = document.createElement("label");
  label.className = "choice";
  const box = document.createElement("input");
  box.type = "checkbox";
  box.value = set.name;
  box.checked = isChosen;
  const name = document.createElement("span");
  name.textContent = `${set.name} `;
  const count = document.createElement("span");
  count.className = "quiet";
  const learnt = set.num_learnt ? [`${set.num_learnt} learnt from photos`] : [];
  count.textContent = [countLabels(set), ORIGINS[set.origin], ...learnt].join(", ");
  name.append(count);
  label.append(box, name);
  return label;
}

function makeDeleteButton(set) {
  const button = document.createElement("button");
  button.type = "button";
  button.value = set.name;
  button.textContent = "Delete";
  button.setAttribute("aria-label", `Delete ${set.name}`);
  return button;
}

function countLabels({ num_labels: count }) {
  return `${count} ${count === 1 ? "label" : "labels"}`;
}
