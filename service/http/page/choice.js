// What is looked for: the ticked label sets and the user's own words.

import { listLabelSets, predict, readLabelSet } from "./api.js";
import { byId, count, makeElement } from "./elements.js";
import { MOST_LABELS, choiceParameters, dropLabels, splitLabels } from "./scores.js";
import { NAMES, remember } from "./words.js";

export const CORRECTIONS = "corrections"; // the set of labels that no set of the user's own has, but learn from corrections
const SHIPPED = new Set(["model", "bundle"]);
const TYPING_PAUSE_MS = 350;
const contents = new Map(); // `name version` -> promise of the labels of a set
let listed = []; // the sets as the service lists them
let listeners = []; // called with the sets after each listing
let isChosen = false; // whether the user or an answer has ticked sets

/**
 * Adds listeners; calls `onChange` after a choice and after a pause in typing, and each of `onListed`
 * with the sets of the service.
 */
export function startChoice(onChange, onListed) {
  listeners = onListed;
  byId("ask").addEventListener("submit", (event) => event.preventDefault());
  byId("choices").addEventListener("change", () => {
    isChosen = true;
    onChange();
  });
  for (const id of ["compare", "language"]) byId(id).addEventListener("change", onChange);
  let pause = 0;
  byId("candidates").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(onChange, TYPING_PAUSE_MS);
  });
}

/** Names of the ticked sets, corrections and the users' first: a label in several is answered by the first. */
export function chosenSets() {
  const ticked = [...document.querySelectorAll("#choices input:checked")].map((box) => box.value);
  const isOwn = (name) => listed.some((set) => set.name === name && !SHIPPED.has(set.origin));
  const rank = (name) => (name === CORRECTIONS ? 0 : isOwn(name) ? 1 : 2);
  return ticked.sort((a, b) => rank(a) - rank(b));
}

export function comparedSet() {
  return byId("compare").value;
}

export function typedLabels() {
  return splitLabels(byId("candidates").value);
}

/** Removes these labels from the words that are typed; the rest of the text stays. */
export function dropTyped(labels) {
  byId("candidates").value = dropLabels(byId("candidates").value, labels);
}

/** The parameters of a request for what is looked for. */
export function readChoice() {
  return choiceParameters(chosenSets(), typedLabels());
}

/** A text of a choice and of the versions of its sets: while it is the same, answers are too. */
export function signChoice(choice) {
  const sets = listed.filter((set) => choice.label_set.includes(set.name));
  return JSON.stringify([choice, ...sets.map((set) => set.version)]);
}

export function isEmpty({ label_set: sets, candidate_labels: typed }) {
  return sets.length + typed.length === 0;
}

/**
 * Ticks the default sets too if words were typed or a set was saved before the first photo: with these, a
 * request is for these alone. Also before a language is asked for, which some of these must have.
 */
export async function tickDefaults(photo, signal, patience) {
  if (isChosen || (isEmpty(readChoice()) && byId("language").value === NAMES)) return;
  try {
    const answer = await predict(photo, { top_k: ["1"] }, signal, patience);
    if (!isChosen) tickSets(answer.label_sets.map((set) => set.name));
  } catch (error) {
    if (error.code !== "unknown_label_set") throw error;
    isChosen = true; // no set is a default
  }
}

/**
 * Asks for all labels of `choice`, so that the controls need no other request. If nothing is chosen, the
 * service uses its default sets, which are ticked then.
 */
export async function askAll(photo, choice, signal, patience) {
  const answer = await predict(photo, { ...choice, min_labels: [String(MOST_LABELS)], parents: ["true"] }, signal, patience);
  remember(answer.labels, choice.lang[0]);
  if (isEmpty(choice) && isEmpty(readChoice())) tickSets(answer.label_sets.map((set) => set.name));
  return answer;
}

/** Names of the labels in the registered ones of these sets, unless they are too many to show. */
export async function ownLabels(sets) {
  const isOwn = (set) => set.origin === "store" && set.name !== CORRECTIONS && set.num_labels <= MOST_LABELS;
  const own = listed.filter((set) => sets.includes(set.name) && isOwn(set));
  const all = own.map((set) => readLabels(set).catch(() => [])); // the answer has the set's labels all the same
  return (await Promise.all(all)).flat().map((label) => label.name);
}

/** The labels of the ticked sets: a Map of each name to the set that answers it. */
export async function findLabels() {
  const sets = chosenSets().map((name) => listed.find((set) => set.name === name));
  const all = await Promise.all(sets.map(readLabels));
  remember(all.flat());
  const known = all.map((labels, i) => labels.map((label) => [label.name, sets[i]]));
  return new Map(known.toReversed().flat()); // the first set last, because the last entry counts
}

function readLabels({ name, version }) {
  const key = `${name} ${version}`;
  const read = () => readLabelSet(name).then(({ labels }) => labels);
  if (!contents.has(key)) {
    contents.set(key, read().catch((error) => {
      contents.delete(key);
      throw error;
    }));
  }
  return contents.get(key);
}

/** Lists the sets; keeps ticked sets ticked and ticks those in `also`. */
export async function showSets(also = []) {
  listed = await listLabelSets();
  const chosen = [...chosenSets(), ...also]; // not before: a box may be ticked meanwhile
  byId("choices").replaceChildren(...listed.map((set) => makeChoice(set, chosen.includes(set.name))));
  const compared = comparedSet();
  const options = listed.map((set) => new Option(set.name, set.name));
  byId("compare").replaceChildren(new Option("none", ""), ...options);
  byId("compare").value = isListed(compared) ? compared : "";
  for (const show of listeners) show(listed);
}

/** What is wrong with the name of a new set; empty if nothing is. */
export function checkName(name) {
  if (!name) return "Give the set a name.";
  return /^[A-Za-z\d][\w.-]*$/.test(name) ? "" : "The name of a set has letters, digits and . _ - without spaces, and begins with a letter or digit.";
}

export function isListed(name) {
  return listed.some((set) => set.name === name);
}

function tickSets(sets) {
  isChosen = true;
  for (const box of document.querySelectorAll("#choices input")) box.checked ||= sets.includes(box.value);
}

function makeChoice(set, isChosen) {
  const label = makeElement("label", "choice", "");
  const box = document.createElement("input");
  [box.type, box.value, box.checked] = ["checkbox", set.name, isChosen];
  const name = makeElement("span", "", `${set.name} `);
  name.append(makeElement("span", "quiet", count(set.num_labels, "label")));
  label.append(box, name);
  return label;
}
