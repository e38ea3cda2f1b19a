// The page: its tabs, the model card and the API key.
//
// `photos.js` takes photos, `choice.js` what is looked for, `controls.js` which scores are shown. Tabs:
// `try.js` (drawn by `results.js` and `map.js`), `grid.js` (`tiles.js`, `filter.js`; files: `downloads.js`;
// corrections of tags: `corrections.js`, and `learning.js`, which sends them),
// `sets.js` (the labels of a set: `labellist.js`), `teach.js` and `calibrate.js` (their photos and scores:
// `picker.js`, `strip.js`), and `request.js` (texts: `snippets.js`). `api.js` sends one request;
// `scores.js` sorts an answer; `words.js` has labels in the user's language; `elements.js` makes elements.

import { readInfo, readKey, writeKey } from "./api.js";
import { showCalibrated, startCalibration } from "./calibrate.js";
import { fillCard } from "./card.js";
import { CORRECTIONS, chosenSets, showSets, startChoice } from "./choice.js";
import { startControls } from "./controls.js";
import { hasCorrections } from "./corrections.js";
import { byId } from "./elements.js";
import { addTiles, listTags, startGrid, tagPhotos } from "./grid.js";
import { startLearning } from "./learning.js";
import { startPhotos } from "./photos.js";
import { startRequest } from "./request.js";
import { listSets, startSets } from "./sets.js";
import { isOpen, openTab, startTabs } from "./tabs.js";
import { showTeachable, startTeaching } from "./teach.js";
import { ask, forgetPhoto, render, showInfo, showPhoto, startTry } from "./try.js";
import { showLanguages } from "./words.js";

const MULTILINGUAL = /siglip-?2|multilingual|xlm/i; // text encoders that learnt from many languages

function start() {
  startTabs();
  startKey();
  startChoice(ask, [showLanguages, listSets, showCalibrated, showTeachable]);
  startControls(render);
  startTry({ greet, onProblem: showProblem });
  startGrid({ onOpen: open, onRemove: forgetPhoto, onCorrect: render, onProblem: showProblem });
  startLearning({ listTags, onLearnt: (names) => showSets(names).then(ask), onForgotten: render, onProblem: showProblem });
  startSets(ask, showProblem);
  startTeaching((name) => showSets([name]).then(ask, showProblem), showProblem);
  startCalibration(() => showSets().then(ask, showProblem), showProblem);
  startRequest();
  byId("card-open").addEventListener("click", () => byId("card").showModal());
  byId("card-close").addEventListener("click", () => byId("card").close());
  startPhotos({ onAdd: add, onSample: open, onProblem: showProblem });
  greet().then(() => (chosenSets().length > 0 ? ask() : isOpen("many") && tagPhotos()), showProblem); // also for photos that came before the sets
}

function open(photo) {
  openTab("try");
  showPhoto(photo);
}

/** A photo is shown on Try; several, or those that are added to others, on Many photos. */
function add(photos) {
  addTiles();
  if (photos.length > 1) openTab("many");
  if (isOpen("many")) tagPhotos();
  else open(photos[0]);
}

/** Reads the model card and the label sets. */
async function greet() {
  const info = await readInfo();
  fillCard(byId("card-body"), info);
  for (const id of ["card-open", "options", "calibrate-side"]) byId(id).hidden = false;
  byId("own").hidden = !info.open_head?.encodes_text;
  const isMultilingual = MULTILINGUAL.test(info.open_head?.embedding_space.encoder);
  for (const element of document.querySelectorAll(".languages")) element.hidden = !isMultilingual;
  await showSets(hasCorrections() ? [CORRECTIONS] : []); // if there is such a set
  byId("alert").hidden = true;
  showInfo(info);
}

function startKey() {
  byId("key").value = readKey();
  byId("key-open").hidden = readKey() === "";
  byId("key-open").addEventListener("click", () => openKey(byId("key-form").hidden));
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    writeKey(byId("key").value.trim());
    byId("key").removeAttribute("aria-invalid");
    openKey(false);
    greet().then(ask, showProblem);
  });
}

function openKey(isOpen) {
  byId("key-open").hidden = false;
  byId("key-form").hidden = !isOpen;
  byId("key-open").setAttribute("aria-expanded", String(isOpen));
  (isOpen ? byId("key") : byId("key-open")).focus();
}

/** Shows an error; `photo` is the photo of Try that it may be about. */
function showProblem(error, photo) {
  const wanted = error.code === "forbidden" ? "an admin key" : readKey() ? "another one" : "it";
  byId("alert").textContent = error.needsKey
    ? `${error.title}: type ${wanted} into the field “API key”.`
    : error.isOfPhoto && photo ? `${photo.name}: ${error.message}` : error.message;
  byId("alert").classList.toggle("of-photo", Boolean(error.isOfPhoto && photo));
  byId("alert").hidden = false;
  if (/^unknown_(label_set|language)$/.test(error.code)) dropMissing();
  if (!error.needsKey) return;
  byId("key").setAttribute("aria-invalid", "true");
  openKey(true);
}

/** Lists the sets again if one of them or its language is gone, and asks for the others. */
async function dropMissing() {
  const { length } = chosenSets();
  await showSets().catch(() => null); // the alert has the reason already
  if (chosenSets().length < length) ask();
}

start();
