// The words of labels in the user's language. Requests, corrections and keys have the labels' own names.

import { byId } from "./elements.js";

const KEY = "ml-decoder-lang";
export const NAMES = "en"; // in requests: the labels' own names, in any language

const words = new Map(); // label or parent -> { translations, parents, aliases }
const recall = (label) => words.get(label) ?? { translations: {}, aliases: [], parents: [] };
let sets = []; // as the service lists them

/** The most specific of the languages that answers for another: `de` for `de-AT`. */
const find = (languages, tag) => languages.filter((language) => `${tag}-`.startsWith(`${language}-`)).sort().at(-1);
const listLanguages = (some) => [...new Set([NAMES, ...some.flatMap((set) => set.languages ?? [])])];

byId("language").addEventListener("change", ({ target }) => localStorage.setItem(KEY, target.value));

/** Offers the languages of the sets; takes the one that was chosen, or the browser's first that there is. */
export function showLanguages(listed) {
  sets = listed;
  const [field, languages] = [byId("language"), listLanguages(sets).sort()];
  field.replaceChildren(...languages.map((language) => new Option(nameLanguage(language), language)));
  field.value = [localStorage.getItem(KEY), ...navigator.languages].map((tag) => find(languages, tag)).find(Boolean) ?? NAMES;
  field.hidden = languages.length === 1;
}

function nameLanguage(language) {
  try {
    return language === NAMES ? "English (names)" : new Intl.DisplayNames([language], { type: "language" }).of(language);
  } catch {
    return language; // browsers know fewer than the service takes
  }
}

/** The value of `lang`, as a list, in a request for these sets; words may be of the bundle's languages too. */
export function askedLanguage(names, hasWords) {
  const isAsked = ({ name, origin }) => names.includes(name) || (hasWords && ["model", "bundle"].includes(origin));
  const languages = listLanguages(sets.filter(isAsked));
  return languages.length > 1 ? [find(languages, byId("language").value) ?? NAMES] : [];
}

/** Keeps the words of labels, as sets have them or an answer in a language. */
export function remember(labels, language) {
  for (const { label, name = label, translation, translations, aliases, parents, parent_translations: above } of labels) {
    if (translation || translations || aliases || parents) add(name, translations ?? { [language]: translation }, aliases, parents);
    above?.forEach((word, i) => add(parents[i], { [language]: word }));
  }
}

function add(label, translations, aliases, parents) {
  const known = recall(label);
  words.set(label, { translations: { ...known.translations, ...translations }, aliases: aliases ?? known.aliases, parents: parents ?? known.parents });
}

export const parentsOf = (label) => recall(label).parents;

export function translationOf(label) {
  const { translations } = recall(label);
  return translations[find(Object.keys(translations), byId("language").value)];
}

/** What is shown in place of a label. */
export const wordOf = (label) => translationOf(label) ?? label;

/** `animal > mammal`: a label's parents, the nearest last. */
export const writeParents = (label) => parentsOf(label).map(wordOf).toReversed().join(" > ");

/** Names on hover the label and its parents, as `cat — animal > mammal`, and what pressing the element does. */
export function explain(element, label, action) {
  const path = writeParents(label);
  const facts = [(path || translationOf(label)) && label, path].filter(Boolean).join(" — ");
  element.title = [facts, action].filter(Boolean).join("\n");
  element.lang = translationOf(label) ? byId("language").value : "";
  return element;
}

/** The label that a text means: by its word in the language, its name or an alias; else the text. */
export function findMeant(labels, text) {
  const isSame = (word) => word.toLowerCase() === text.toLowerCase();
  return labels.find((label) => isSame(wordOf(label))) ?? labels.find(isSame) ?? labels.find((label) => recall(label).aliases.some(isSame)) ?? text;
}
