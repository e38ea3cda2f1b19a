// The user's photos, dropped, pasted or chosen, and the samples. A photo is `{ name, title, file, isOwn }`.

import { readSample } from "./api.js";
import { byId, count, makeButton, makeElement } from "./elements.js";

const SAMPLES = {
  "chelsea.jpg": "cat",
  "coffee.jpg": "cup of coffee",
  "astronaut.jpg": "astronaut",
  "rocket.jpg": "rocket at night",
};

const RAW = /\.(3fr|arw|cr[23w]|dng|mrw|nef|nrw|orf|pef|raf|rw[2l]|srw|x3f)$/i;
const UNTYPED = /\.(hei[cf]|hif|avif)$/i; // photos of which a browser may not know the type
const MOST_NAMED = 3;

let own = []; // the latest first
let wanted = null; // the sample that was pressed last: another may load slowly

export function listOwnPhotos() {
  return [...own];
}

/** Replaces the list, to remove photos or to bring them back. */
export function keepPhotos(photos) {
  own = [...photos];
}

/**
 * Draws the samples and adds listeners; calls `onAdd` with the user's new photos, and `onSample` with a
 * chosen sample.
 */
export function startPhotos({ onAdd, onSample, onProblem }) {
  const add = (files) => {
    const taken = [...files].filter((file) => !whySkipped(file));
    const photos = taken.map((file, i) => {
      const name = pathOf(file) || file.name || `pasted-${i + 1}.png`;
      return { name, title: name, file, isOwn: true };
    });
    own = [...photos, ...own];
    const others = describeSkipped([...files].filter(whySkipped));
    if (photos.length > 0) onAdd(photos);
    else if (others) onProblem(new Error(`No photos: ${others}`));
    byId("skipped").textContent = others;
  };
  for (const input of document.querySelectorAll("#files, #more-files, #folder")) {
    input.addEventListener("change", () => {
      add(input.files);
      input.value = "";
    });
  }
  document.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData ?? { files: [], types: [] };
    // Spreadsheet cells are pasted as text and as a picture; a text field wants the text.
    const isText = types.includes("text/plain") && event.target.matches?.("input, textarea");
    if (!isText) add(files);
  });
  listenForDrops(add);
  for (const [name, title] of Object.entries(SAMPLES)) {
    const photo = { name, title: `Sample: ${title}`, url: `page/samples/${name}` };
    byId("samples").append(makeSample(photo, title, onSample, onProblem));
  }
}

const paths = new WeakMap(); // file of a dropped folder -> its path
const pathOf = (file) => file.webkitRelativePath || paths.get(file);

/** Folders have other files too; a file that was chosen itself is left to the service, unless it is RAW. */
function whySkipped(file) {
  if (RAW.test(file.name)) return "RAW, export it as JPEG";
  return !pathOf(file) || file.type.startsWith("image/") || UNTYPED.test(file.name) ? "" : "no photo";
}

function describeSkipped(files) {
  const reasons = [...new Set(files.map(whySkipped))].map((reason) => {
    const names = files.filter((file) => whySkipped(file) === reason).map((file) => pathOf(file) || file.name);
    const more = names.length - MOST_NAMED;
    return `${reason} (${names.slice(0, MOST_NAMED).join(", ")}${more > 0 ? ` and ${more} more` : ""})`;
  });
  return files.length > 0 ? `${count(files.length, "other file")} skipped: ${reasons.join("; ")}.` : "";
}

function makeSample(photo, caption, onSample, onProblem) {
  const button = makeButton("", "");
  const image = document.createElement("img");
  [image.src, image.alt] = [photo.url, photo.title];
  const text = makeElement("span", "", caption);
  text.setAttribute("aria-hidden", "true"); // the picture's text is the same
  button.append(image, text);
  button.addEventListener("click", async () => {
    wanted = photo;
    try {
      photo.file ??= await readSample(photo.url);
      if (wanted === photo) onSample(photo);
    } catch (error) {
      if (wanted === photo) onProblem(error);
    }
  });
  const item = document.createElement("li");
  item.append(button);
  return item;
}

function listenForDrops(add) {
  const mark = (on) => document.body.classList.toggle("dropping", on);
  const hasFiles = (event) => event.dataTransfer.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault(); // else the browser leaves the page for the photo
    mark(true);
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) mark(false);
  });
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(false);
    readDrop(event.dataTransfer).then(add);
  });
}

/** The dropped files and those of dropped folders; items are lost once the event is over. */
async function readDrop({ items }) {
  const files = [...items].map((item) => {
    const entry = item.webkitGetAsEntry?.();
    return entry?.isDirectory ? listFiles(entry) : item.getAsFile();
  });
  return (await Promise.all(files)).flat().filter(Boolean);
}

async function listFiles(entry) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject)).catch(() => null);
    if (file) paths.set(file, entry.fullPath.slice(1));
    return [file];
  }
  const reader = entry.createReader();
  const files = [];
  for (;;) {
    const entries = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([]))); // 100 at a time
    if (entries.length === 0) return files;
    for (const child of entries) files.push(...(await listFiles(child)));
  }
}
