// A label learnt from photos: `POST /labels/{name}/examples`.

import { teachLabel } from "./api.js";
import { openThreshold } from "./calibrate.js";
import { checkName } from "./choice.js";
import { byId, count, say } from "./elements.js";
import { makePicker } from "./picker.js";
import { drawStrip } from "./strip.js";

const KINDS = { "teach-with": "positive", "teach-without": "negative" }; // id of a field -> its part of the form
const MOST_PHOTOS = 200; // of a request
const MOST_BYTES = 20_000_000; // of its photos; the default limit of a body is 20 MiB
const pickers = {}; // by part of the form
let isTeaching = false;
let taught = null; // { name, label }: what was taught last

/** Adds listeners; calls `onTaught` with the name of the set after a label was taught. */
export function startTeaching(onTaught, onProblem) {
  for (const [id, kind] of Object.entries(KINDS)) pickers[kind] = makePicker(byId(id), showPhotos);
  byId("teach-clear").addEventListener("click", () => {
    forgetPhotos();
    byId("teach-with").focus();
  });
  byId("teach-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!isTeaching) teach(onTaught, onProblem);
  });
  byId("teach-next").addEventListener("click", () => openThreshold(taught.name, taught.label));
}

/** Offers the names of the sets that can be taught: the user's own. */
export function showTeachable(sets) {
  const names = sets.filter((set) => !set.read_only).map((set) => set.name);
  byId("teach-sets").replaceChildren(...names.map((name) => new Option(name, name)));
}

/** Fills in the names of a set and of a label to teach. */
export function openTeaching(name, label) {
  [byId("teach-set").value, byId("teach-label").value] = [name, label];
  byId("teach-title").focus();
}

function forgetPhotos() {
  for (const picker of Object.values(pickers)) picker.clear();
}

function showPhotos() {
  const [positive, negative] = Object.values(KINDS).map((kind) => pickers[kind].photos.length);
  say("teach-counts", positive + negative > 0 ? `To send: ${positive} of it, ${negative} without it` : "");
  byId("teach-clear").hidden = positive + negative === 0;
}

async function teach(onTaught, onProblem) {
  const [name, label] = [byId("teach-set"), byId("teach-label")].map((field) => field.value.trim());
  const sent = listFiles();
  const isEmpty = Object.values(sent).every((files) => files.length === 0);
  const [missing, hint] =
    (!label && ["teach-label", "Name the label."]) ||
    (checkName(name) && ["teach-set", checkName(name)]) ||
    (isEmpty && ["teach-with", "Choose photos of it first."]) || [];
  if (missing) {
    say("teach-status", hint, { isProblem: true });
    byId(missing).focus();
    return;
  }
  isTeaching = true;
  forgetPhotos();
  say("teach-status", "Learning…");
  byId("teach-result").hidden = true;
  try {
    const { answer, repeated, photos } = await sendPhotos(name, label, sent);
    taught = { name, label };
    say("teach-status", describe(answer, repeated));
    say("teach-advice", answer.advice ?? "");
    byId("teach-result").hidden = false;
    drawStrip(byId("teach-strip"), photos, answer.threshold);
    onTaught(name);
  } catch (error) {
    const text = error.file ? `${error.file.name}: ${error.title}. Remove it and teach the others.` : error.message;
    say("teach-status", text, { isProblem: true });
    const chosen = listFiles(); // meanwhile
    forgetPhotos();
    for (const kind of Object.values(KINDS)) pickers[kind].add([...sent[kind], ...chosen[kind]]); // to send them again
    if (error.needsKey) onProblem(error);
  } finally {
    isTeaching = false;
  }
}

/** The chosen files by part of the form. */
function listFiles() {
  const list = ([kind, { photos }]) => [kind, photos.map((photo) => photo.file)];
  return Object.fromEntries(Object.entries(pickers).map(list));
}

/** Teaches a label from files of both kinds, in several requests if they are many; an error may have its `file`. */
export async function sendPhotos(name, label, sent, patience) {
  const photos = [];
  let [answer, repeated] = [null, 0];
  for (const part of split(sent)) {
    answer = await teachLabel(name, label, part, patience).catch((error) => {
      error.file ??= findFile(error.message, part);
      throw error;
    });
    repeated += answer.examples.repeated;
    for (const kind of Object.values(KINDS)) {
      const isShown = kind === "positive";
      part[kind].forEach((file, i) => photos.push({ name: file.name, file, isShown, ...answer[kind][i] }));
    }
  }
  return { answer, repeated, photos };
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

/** Returns the file that a problem counts: "Photo 2 of 3 `positive` photos". */
function findFile(message, part) {
  const [, number, kind] = /Photo (\d+) of (?:\d+ )?`(\w+)`/.exec(message) ?? [];
  return part[kind]?.[number - 1];
}

function describe({ label, label_set: set, examples, separation: { meaning } }, repeated) {
  const { positive, negative } = examples;
  return (
    `“${label}” in ${set.name} has learnt from ${count(positive, "photo")} of it and ${negative} without it` +
    (repeated > 0 ? ` (${repeated} left out: the same as another, or nearly so)` : "") +
    (meaning.startsWith("unknown") ? `. How well it is told apart is ${meaning}.` : `. It is ${meaning}.`)
  );
}
