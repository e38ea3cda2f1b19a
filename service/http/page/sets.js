// The label sets of the service on the tab "Labels": listed, made from words, deleted.

import { deleteLabelSet, keepLabelSet } from "./api.js";
import { chosenSets, comparedSet, countLabels, dropTyped, isListed, showSets, typedLabels } from "./choice.js";

const ORIGINS = {
  model: "learnt from labelled photos",
  bundle: "comes with the model",
  folder: "from a file of the service",
  store: "your own",
};

const byId = (id) => document.getElementById(id);
let listed = []; // the sets as the service lists them
let act = {}; // what `startSets` was given

/** Adds listeners; calls `onChange` after sets that are looked for have changed. */
export function startSets(onChange, onProblem) {
  act = { onChange, onProblem };
  byId("sets").addEventListener("click", ({ target }) => {
    if (target.localName !== "button") return;
    remove(listed.find((set) => set.name === target.value));
  });
  byId("delete-no").addEventListener("click", () => byId("delete").close());
  byId("delete-yes").addEventListener("click", () => byId("delete").close("yes"));
  byId("keep").addEventListener("click", () => keep(false));
  byId("replace").addEventListener("click", () => keep(true));
  byId("keep-name").addEventListener("input", () => showKeepStatus("", false));
}

/** Draws a row for each set; the focus stays on its set, or moves to the row now at that position. */
export function listSets(sets) {
  listed = sets;
  const rows = sets.map(makeRow);
  const list = byId("sets");
  const { value } = document.activeElement;
  const place = [...list.children].findIndex((row) => row.contains(document.activeElement));
  list.replaceChildren(...rows);
  if (place < 0) return;
  const buttons = [...list.querySelectorAll("button")];
  (buttons.find((button) => button.value === value) ?? buttons[0] ?? byId("keep-name")).focus();
}

/** Offers these words as a new set. */
export function openNewSet() {
  byId("keep-name").focus();
}

async function keep(replace) {
  const name = byId("keep-name").value.trim();
  const labels = typedLabels();
  if (!name || labels.length === 0) {
    showKeepStatus(name ? "Type some labels first." : "Give the set a name.", false);
    byId(name ? "candidates" : "keep-name").focus();
    return;
  }
  try {
    const kept = await keepLabelSet(name, labels, replace);
    dropTyped(labels); // text typed during the request stays
    if (byId("keep-name").value.trim() === name) byId("keep-name").value = "";
    showKeepStatus(`Saved ${countLabels(kept)} as ${kept.name}, version ${kept.version}.`, false);
    await showSets([kept.name]);
    act.onChange();
  } catch (error) {
    const isTaken = error.code === "label_set_exists";
    showKeepStatus(isTaken ? `There is a set ${name} with other labels.` : error.message, isTaken);
    if (error.needsKey) act.onProblem(error);
  }
}

function showKeepStatus(text, mayReplace) {
  byId("keep-status").textContent = text;
  byId("replace").hidden = !mayReplace;
}

async function remove(set) {
  if (!(await isConfirmed(set))) return;
  const { name } = set;
  const isUsed = chosenSets().includes(name) || comparedSet() === name;
  try {
    const isDeleted = await deleteIfUnchanged(set);
    await showSets();
    byId("sets-status").textContent = !isDeleted && isListed(name)
      ? `${name} was changed meanwhile and not deleted. Delete again to delete the changed set.`
      : `${name} is deleted.`;
    if (isUsed) act.onChange();
  } catch (error) {
    byId("sets-status").textContent = error.message;
    if (error.needsKey) act.onProblem(error);
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

function makeRow(set) {
  const row = document.createElement("div");
  row.className = "set";
  const name = document.createElement("span");
  name.textContent = `${set.name} `;
  const facts = document.createElement("span");
  facts.className = "quiet";
  const learnt = set.num_learnt ? [`${set.num_learnt} learnt from photos`] : [];
  facts.textContent = [countLabels(set), ORIGINS[set.origin], ...learnt].join(", ");
  name.append(facts);
  row.append(name);
  if (!set.read_only) row.append(makeDeleteButton(set));
  return row;
}

function makeDeleteButton(set) {
  const button = document.createElement("button");
  button.type = "button";
  button.value = set.name;
  button.textContent = "Delete";
  button.setAttribute("aria-label", `Delete ${set.name}`);
  return button;
}
