// Labels: the sets of the service, and new ones typed by the user.
//
// In: the sets that the service lists. Out: names of the chosen sets and typed labels; typed
// labels can be kept as a set.

import { keepLabelSet, listLabelSets } from "./api.js";
import { dropLabels, splitLabels } from "./scores.js";

const TYPING_PAUSE_MS = 350;
const byId = (id) => document.getElementById(id);

export function chosenSets() {
  return [...document.querySelectorAll("#sets input:checked")].map((box) => box.value);
}

export function comparedSet() {
  return byId("compare").value;
}

export function typedLabels() {
  return splitLabels(byId("candidates").value);
}

/** Lists the sets; those that are ticked stay so, and those in `also` are ticked too. */
export async function showSets(also = []) {
  const sets = await listLabelSets();
  const chosen = [...chosenSets(), ...also]; // not before: a box may be ticked meanwhile
  byId("sets").replaceChildren(...sets.map((set) => makeChoice(set, chosen.includes(set.name))));
  const compared = comparedSet();
  const options = sets.map((set) => new Option(set.name, set.name));
  byId("compare").replaceChildren(new Option("nothing", ""), ...options);
  byId("compare").value = sets.some((set) => set.name === compared) ? compared : "";
}

/** Ticks the sets that the service took where none was chosen. */
export function tickSets(names) {
  for (const box of document.querySelectorAll("#sets input")) {
    box.checked = names.includes(box.value);
  }
}

/** Listens; `onChange` is called after a choice, and after a pause in typing. */
export function startLabels(onChange, onProblem) {
  byId("sets").addEventListener("change", onChange);
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
    // What was typed meanwhile stays.
    byId("candidates").value = dropLabels(byId("candidates").value, labels);
    if (byId("keep-name").value.trim() === name) byId("keep-name").value = "";
    showKeepStatus(`Kept ${kept.num_labels} labels as ${kept.name}, version ${kept.version}.`, false);
    await showSets([kept.name]);
    onChange();
  } catch (error) {
    const isTaken = error.code === "label_set_exists";
    showKeepStatus(isTaken ? `${name} has other labels.` : error.message, isTaken);
    if (error.needsKey) onProblem(error);
  }
}

function showKeepStatus(text, mayReplace) {
  byId("keep-status").textContent = text;
  byId("replace").hidden = !mayReplace;
}

function makeChoice(set, isChosen) {
  const label = document.createElement("label");
  label.className = "choice";
  const box = document.createElement("input");
  box.type = "checkbox";
  box.value = set.name;
  box.checked = isChosen;
  const count = document.createElement("span");
  count.className = "quiet";
  count.textContent = `${set.num_labels} ${set.num_labels === 1 ? "label" : "labels"}`;
  label.append(box, set.name, count);
  return label;
}
