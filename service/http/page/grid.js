// The tab "Many photos": asks for the tags of all the user's photos and shows them as tiles.

import { askAll, isEmpty, readChoice } from "./choice.js";
import { readControls } from "./controls.js";
import { download, writeCsv, writeJson } from "./downloads.js";
import { forgetPhotos, listOwnPhotos } from "./photos.js";
import { findLabels, shorten } from "./scores.js";

const PARALLEL = 2; // requests at a time
const THUMBNAIL_HEIGHT = 160; // in pixels, for two a CSS pixel

const byId = (id) => document.getElementById(id);
const found = new WeakMap(); // photo -> { key, answer, problem }, by the choice of labels that was asked
const tiles = new Map(); // photo -> its element, the latest first
let tagging = new AbortController();
let drawing = Promise.resolve(); // thumbnails are drawn one after the other
let act = {}; // what `startGrid` was given

/**
 * Adds listeners; calls `onOpen` with a photo that is pressed, `onRemove` with photos that were removed,
 * and `onProblem` with an error of the service.
 */
export function startGrid(callbacks) {
  act = callbacks;
  byId("remove-all").addEventListener("click", () => remove(listOwnPhotos()));
  byId("download-csv").addEventListener("click", () => {
    download("labels.csv", "text/csv", writeCsv(listDownloads()));
  });
  byId("download-json").addEventListener("click", () => {
    download("labels.json", "application/json", writeJson(listDownloads()));
  });
}

/** Shows new photos of the user before the others. */
export function addTiles(photos) {
  byId("thumbs").prepend(...photos.map(makeTile));
  redraw();
}

/** Records what the service answered for a photo: `{ answer }` or `{ problem }`, its text. */
export function note(photo, choice, result) {
  // If nothing was chosen, the default sets are ticked now.
  found.set(photo, { key: JSON.stringify(isEmpty(choice) ? readChoice() : choice), ...result });
}

/** The answers or problems of photos for the labels that are chosen now; null if not known yet. */
export function recall(photos) {
  const key = JSON.stringify(readChoice());
  return photos.map((photo) => found.get(photo)).map((each) => (each?.key === key ? each : null));
}

/** Asks for the tags of photos that have none for the present choice; waits while the service is busy. */
export async function tagPhotos() {
  tagging.abort();
  tagging = new AbortController();
  const { signal } = tagging;
  const choice = readChoice();
  const photos = listOwnPhotos();
  const known = recall(photos);
  const waiting = photos.filter((_, i) => !known[i]);
  const work = async () => {
    while (waiting.length > 0 && !signal.aborted) {
      const photo = waiting.shift();
      try {
        note(photo, choice, { answer: await askAll(photo, choice, signal, { isPatient: true }) });
      } catch (error) {
        if (signal.aborted) return;
        if (error.isOfPhoto) {
          note(photo, choice, { problem: error.message });
        } else {
          waiting.length = 0; // the service would refuse the rest too
          act.onProblem(error);
        }
      }
      if (!signal.aborted) renderTiles([photo]);
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, work));
}

/** Stops asking, because the choice changes. */
export function stopTagging() {
  tagging.abort();
}

/** Draws all tiles by the present choice and controls, without a request. */
export function redraw() {
  renderTiles(listOwnPhotos());
}

function renderTiles(photos) {
  const controls = readControls();
  recall(photos).forEach((result, i) => {
    const labels = result?.answer && findLabels(result.answer.labels, controls).map((label) => label.label);
    const text = labels && (labels.slice(0, 3).join(", ") || "nothing found");
    const line = tiles.get(photos[i])?.querySelector("p");
    if (!line) return;
    line.textContent = result?.problem ?? text ?? "";
    line.classList.toggle("problem", Boolean(result?.problem));
  });
  const all = recall(listOwnPhotos());
  const done = all.filter(Boolean);
  const failed = done.filter(({ problem }) => problem).length;
  byId("many-count").textContent = all.length || "";
  byId("downloads").hidden = all.length === 0;
  for (const id of ["download-csv", "download-json"]) byId(id).disabled = done.length < all.length;
  byId("progress").hidden = done.length === all.length;
  [byId("progress").value, byId("progress").max] = [done.length, all.length];
  byId("downloads-status").textContent =
    `${done.length - failed} of ${all.length} photos tagged` + (failed > 0 ? `, ${failed} failed` : "");
}

function listDownloads() {
  const controls = readControls();
  const photos = listOwnPhotos();
  const results = recall(photos);
  return photos.map((photo, i) => {
    const { answer, problem } = results[i];
    return { photo: photo.name, problem, answer: answer && shorten(answer, controls) };
  });
}

function makeTile(photo) {
  const button = makeButton("", () => act.onOpen(photo));
  const image = document.createElement("img");
  image.alt = photo.title;
  image.classList.add("blank"); // the name is below
  drawing = drawing.then(() => drawThumbnail(photo, image));
  const caption = document.createElement("span");
  caption.textContent = photo.name;
  caption.setAttribute("aria-hidden", "true"); // the picture's text is the same
  button.append(image, caption);
  const removeButton = makeButton("Remove", () => remove([photo]));
  removeButton.setAttribute("aria-label", `Remove ${photo.title}`);
  const tile = document.createElement("li");
  tile.append(button, document.createElement("p"), removeButton);
  tiles.set(photo, tile);
  return tile;
}

/** Shows a small copy: a hundred full photos would take gigabytes. */
async function drawThumbnail(photo, image) {
  if (!tiles.has(photo)) return; // removed meanwhile
  try {
    const bitmap = await createImageBitmap(photo.file, { resizeHeight: THUMBNAIL_HEIGHT });
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    image.src = canvas.toDataURL("image/webp"); // needs no revocation, unlike an object URL
    image.classList.remove("blank");
  } catch {
    // The browser cannot read the photo; the service may.
  }
}

function remove(photos) {
  const next = tiles.get(photos.at(-1)).nextElementSibling;
  for (const photo of photos) {
    tiles.get(photo).remove();
    tiles.delete(photo);
  }
  forgetPhotos(photos);
  (next?.querySelector("button") ?? byId("more-files")).focus();
  act.onRemove(photos);
  redraw();
}

function makeButton(text, action) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", action);
  return button;
}
