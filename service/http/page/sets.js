// The label sets of the service on the tab "Labels": listed, opened, made from words, deleted.

import { deleteLabelSet, keepLabelSet } from "./api.js";
import { openThreshold } from "./calibrate.js";
import { checkName, chosenSets, comparedSet, dropTyped, isListed, showSets, typedLabels } from "./choice.js";
import { byId, count, makeButton, makeElement, say } from "./elements.js";
import { startLabelList, viewLabels } from "./labellist.js";
import { dropLabels, splitLabels } from "./scores.js";
import { openTab } from "./tabs.js";
import { openTeaching } from "./teach.js";

const ORIGINS = {
  model: "learnt from labelled photos",
  bundle: "comes with the model",
  folder: "from a file",
  store: "your own",
};

let listed = []; // the sets as the service lists them
let viewed = null; // the name of the set whose labels are shown
let act = {}; // what `startSets` was given

/** Adds listeners; calls `onChange` after sets that are looked for have changed. */
export function startSets(onChange, onProblem) {
  act = { onChange, onProblem };
  byId("sets").addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button?.classList.contains("open")) view(button.value);
    else if (button) remove(listed.find((set) => set.name === button.value));
  });
  byId("delete-no").addEventListener("click", () => byId("delete").close());
  byId("delete-yes").addEventListener("click", () => byId("delete").close("yes"));
  byId("new-open").addEventListener("click", () => openNewSet([]));
  byId("new-set-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keep(false);
  });
  byId("replace").addEventListener("click", () => keep(true));
  byId("new-set-name").addEventListener("input", () => showKeepStatus(""));
  byId("new-set-words").addEventListener("input", showCount);
  byId("new-set-take").addEventListener("click", () => {
    const words = typedLabels();
    takeWords(words);
    if (words.length === 0) showKeepStatus("There are no words on Try yet.");
  });
  for (const id of ["new-set-look", "teach-look"]) byId(id).addEventListener("click", lookAtPhoto);
  startLabelList({ onTeach: openTeaching, onThreshold: openThreshold });
}

/** Opens the tab with these words for a new set, and the focus on its name. */
export function openNewSet(words) {
  openTab("labels");
  view(null);
  takeWords(words);
  byId("new-set-name").focus();
}

/** Draws a row for each set; the focus stays on its set, or moves to the row now at that position. */
export function listSets(sets) {
  const before = listed.find((set) => set.name === viewed)?.version;
  listed = sets;
  const rows = sets.map(makeRow);
  const list = byId("sets");
  const { activeElement } = document;
  const index = [...list.children].findIndex((row) => row.contains(activeElement));
  const kind = activeElement?.className;
  list.replaceChildren(...rows);
  byId("sets-none").hidden = sets.some((set) => !set.read_only);
  byId("new-set-cannot").hidden = !byId("own").hidden; // whether the model encodes text
  byId("new-set-form").hidden = byId("own").hidden;
  const now = listed.find((set) => set.name === viewed)?.version;
  if (viewed && now !== before) view(now ? viewed : null, false);
  if (index < 0) return;
  const buttons = [...list.querySelectorAll("button")].filter((button) => button.className === kind);
  const next = buttons.find((button) => button.value === activeElement.value) ?? buttons[0];
  (next ?? byId("new-open")).focus();
}

/** Shows the labels of a set, or with null the form of a new one. */
function view(name, isAsked = true) {
  viewed = name;
  byId("set-view").hidden = name === null;
  byId("new-set").hidden = name !== null;
  for (const button of byId("sets").querySelectorAll(".open")) {
    button.setAttribute("aria-expanded", String(button.value === name));
  }
  if (name === null) return;
  viewLabels(name);
  if (isAsked) byId("view-title").focus();
}

function lookAtPhoto() {
  openTab("try");
  byId("try-tab").focus(); // the button is hidden now
}

/** Adds words to those of the new set. */
function takeWords(words) {
  const all = [...splitLabels(byId("new-set-words").value), ...words];
  if (words.length > 0) byId("new-set-words").value = [...new Set(all)].join("\n");
  showCount();
}

function showCount() {
  const typed = splitLabels(byId("new-set-words").value).length;
  say("new-set-count", typed > 0 ? count(typed, "label") : "");
}

async function keep(replace) {
  const name = byId("new-set-name").value.trim();
  const labels = splitLabels(byId("new-set-words").value);
  const wrong = checkName(name);
  if (wrong || labels.length === 0) {
    showKeepStatus(wrong || "Type some labels first.", { isProblem: true });
    byId(wrong ? "new-set-name" : "new-set-words").focus();
    return;
  }
  try {
    const kept = await keepLabelSet(name, labels, replace);
    dropTyped(labels); // they are in the set now
    byId("new-set-words").value = dropLabels(byId("new-set-words").value, labels); // text typed meanwhile stays
    showCount();
    if (byId("new-set-name").value.trim() === name) byId("new-set-name").value = "";
    showKeepStatus(`Saved ${count(kept.num_labels, "label")} as ${kept.name}. The set is ticked on Try.`, { isSaved: true });
    if (replace) byId("new-set-save").focus(); // its button is hidden now
    await showSets([kept.name]);
    act.onChange();
  } catch (error) {
    const isTaken = error.code === "label_set_exists";
    const text = isTaken
      ? `There is a set ${name} with other labels. Replace it, or type another name.`
      : error.message;
    showKeepStatus(text, { isTaken, isProblem: true });
    if (error.needsKey) act.onProblem(error);
  }
}

function showKeepStatus(text, { isSaved = false, isTaken = false, isProblem = false } = {}) {
  say("new-set-status", text, { isProblem });
  byId("replace").hidden = !isTaken;
  byId("new-set-look").hidden = !isSaved;
}

async function remove(set) {
  if (!(await isConfirmed(set))) return;
  const { name } = set;
  const isUsed = chosenSets().includes(name) || comparedSet() === name;
  try {
    const isDeleted = await deleteIfUnchanged(set);
    await showSets();
    const isProblem = !isDeleted && isListed(name);
    const text = isProblem
      ? `${name} was changed meanwhile and not deleted. Delete again to delete the changed set.`
      : `${name} is deleted.`;
    say("sets-status", text, { isProblem });
    if (isUsed) act.onChange();
  } catch (error) {
    say("sets-status", error.message, { isProblem: true });
    if (error.needsKey) act.onProblem(error);
  }
}

/** Asks before deleting a set; only the confirm button means yes. */
function isConfirmed(set) {
  const question = byId("delete");
  say("sets-status", "");
  byId("delete-title").textContent = `Delete ${set.name}?`;
  byId("delete-labels").textContent = count(set.num_labels, "label");
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
  const row = makeElement("li", "set", "");
  const open = makeButton("open", set.name);
  open.value = set.name;
  open.setAttribute("aria-expanded", String(set.name === viewed));
  open.setAttribute("aria-controls", "set-view");
  const learnt = set.num_learnt ? [`${set.num_learnt} learnt from photos`] : [];
  row.append(open, makeElement("span", "quiet", [count(set.num_labels, "label"), ORIGINS[set.origin], ...learnt].join(", ")));
  if (set.category_counts) {
    const categories = makeElement("span", "categories", "");
    for (const [name, count] of Object.entries(set.category_counts)) {
      categories.append(makeElement("span", "", `${name} ${count.toLocaleString("en")}`), " ");
    }
    row.append(categories);
  }
  if (!set.read_only) {
    const button = makeButton("small", "Delete", `Delete ${set.name}`);
    button.value = set.name;
    row.append(button);
  }
  return row;
}
