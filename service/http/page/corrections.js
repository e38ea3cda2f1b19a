// What the user says of photos, against the model: tags that a photo has or does not have. Kept in this browser.

const KEY = "ml-decoder-corrections";
const MOST_PHOTOS = 5000; // the latest: about 1 MB of the 5 that a browser keeps

let kept = new Map(); // key of a photo -> Map of label -> { isShown, isDone }
let isStored = true; // else the browser has older ones, or none
read();

const keyOf = ({ name, file }) => `${name} ${file.size} ${file.lastModified}`;

export const hasCorrections = () => kept.size > 0;

/** Reads what the browser keeps; without a storage, corrections last as long as the page. */
function read() {
  if (!isStored) return;
  try {
    kept = new Map(JSON.parse(localStorage.getItem(KEY) ?? "[]").map(([key, marks]) => [key, new Map(marks)]));
  } catch {}
}

/** Returns whether the browser keeps them. */
function keep(photos) {
  kept = photos;
  try {
    localStorage.setItem(KEY, JSON.stringify([...kept].map(([key, marks]) => [key, [...marks]])));
    isStored = true;
  } catch {
    isStored = false;
  }
  return isStored;
}

/** The corrections of a photo: a Map of each label to `{ isShown, isDone }`; nothing is to be learnt from those done. */
export function correctionsOf(photo) {
  return kept.get(keyOf(photo)) ?? new Map();
}

/** Records `{ photo, label, isShown, isDone }`; an `isShown` of null takes a correction back. Returns as `keep`. */
export function correct(corrections) {
  read(); // another tab may have changed them
  for (const { photo, label, isShown, isDone } of corrections) {
    const [key, marks] = [keyOf(photo), correctionsOf(photo)];
    if (isShown === null) marks.delete(label);
    else marks.set(label, { isShown, isDone });
    kept.delete(key);
    if (marks.size > 0) kept.set(key, marks); // the latest is the last
  }
  return keep(new Map([...kept].slice(-MOST_PHOTOS)));
}

/** Forgets all corrections; returns a function that brings them back. */
export function forgetCorrections() {
  const before = kept;
  keep(new Map());
  return () => keep(new Map([...before, ...kept]));
}

/** The labels that are not crossed out on a photo. */
export function leaveCrossed(photo, labels) {
  return labels.filter(({ label }) => correctionsOf(photo).get(label)?.isShown !== false);
}

/** The labels that `choose` takes of those that are not crossed out, after those that the user added. */
export function correctLabels(photo, labels, choose) {
  const marks = correctionsOf(photo);
  const chosen = choose(leaveCrossed(photo, labels));
  const names = new Set(chosen.map(({ label }) => label));
  const added = [...marks.keys()].filter((label) => marks.get(label).isShown && !names.has(label));
  const shared = { score: null, threshold: null, found: true, source: "correction", calibrated: false };
  return [...added.map((label) => ({ label, ...shared })), ...chosen];
}
