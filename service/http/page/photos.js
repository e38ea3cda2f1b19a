// Photos: dropped, pasted, picked or bundled samples, as tiles with names. `startPhotos` passes the
// chosen one to its callback as `{ name, title, file, isOwn }`.

import { readSample } from "./api.js";

const SAMPLES = {
  "chelsea.jpg": "cat",
  "coffee.jpg": "cup of coffee",
  "astronaut.jpg": "astronaut",
  "rocket.jpg": "rocket at night",
};

const THUMBNAIL_HEIGHT = 160; // in pixels, for two a CSS pixel

const tiles = new Map(); // photo -> its element, the user's own ones first
let pressed = null; // the photo that was pressed last
let drawing = Promise.resolve(); // thumbnails are drawn one after the other

/** The user's own photos, as the page shows them. */
export function listOwnPhotos() {
  return [...tiles.keys()].filter((photo) => photo.isOwn);
}

/** Shows a line below the name of a photo: its labels, or why it has none. */
export function showBelow(photo, text, isProblem) {
  const line = tiles.get(photo)?.querySelector("p");
  if (!line) return; // removed meanwhile
  line.textContent = text;
  line.classList.toggle("problem", isProblem);
}

/**
 * Fills the samples and adds listeners; calls `onChoose` with each chosen photo, and `onRemove` after
 * photos were removed.
 */
export function startPhotos(onChoose, onRemove, onProblem) {
  const choose = (photo) => choosePhoto(photo, onChoose, onProblem);
  for (const [name, title] of Object.entries(SAMPLES)) {
    const photo = { name, caption: title, title: `Sample: ${title}`, url: `page/samples/${name}` };
    addTile(photo, choose, onRemove);
  }
  const take = (files) => takeFiles(files, choose, onRemove);
  const input = document.getElementById("files");
  input.addEventListener("change", () => {
    take(input.files);
    input.value = "";
  });
  document.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData ?? { files: [], types: [] };
    // Spreadsheet cells are pasted as text and as a picture; a text field wants the text.
    const isText = types.includes("text/plain") && event.target.matches?.("input, textarea");
    if (!isText) take(files);
  });
  listenForDrops(take);
  const removeAll = document.getElementById("remove-all");
  removeAll.addEventListener("click", () => removePhotos(listOwnPhotos(), choose, onRemove));
  return { chooseFirst: () => choose([...tiles.keys()][0]) };
}

function takeFiles(files, choose, onRemove) {
  const photos = [...files].map((file, i) => {
    const name = file.name || `pasted-${i + 1}.png`;
    return { name, caption: name, title: name, file, isOwn: true };
  });
  const others = [...tiles];
  tiles.clear();
  for (const photo of photos) addTile(photo, choose, onRemove);
  for (const [photo, tile] of others) {
    tiles.set(photo, tile);
    document.getElementById("thumbs").append(tile);
  }
  if (photos.length > 0) choose(photos[0]);
}

async function choosePhoto(photo, onChoose, onProblem) {
  pressed = photo;
  try {
    photo.file ??= await readSample(photo.url);
  } catch (error) {
    if (pressed === photo) onProblem(error);
    return;
  }
  // The user may have chosen another photo during the download.
  if (pressed !== photo) return;
  for (const tile of tiles.values()) tile.querySelector("button").removeAttribute("aria-current");
  tiles.get(photo).querySelector("button").setAttribute("aria-current", "true");
  onChoose(photo);
}

function listenForDrops(take) {
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
    take(event.dataTransfer.files);
  });
}

function addTile(photo, choose, onRemove) {
  const button = makeButton("", () => choose(photo));
  const image = document.createElement("img");
  image.alt = photo.title;
  if (photo.isOwn) {
    image.classList.add("blank"); // the name is below
    drawing = drawing.then(() => drawThumbnail(photo, image));
  } else {
    image.src = photo.url;
  }
  const caption = document.createElement("span");
  caption.textContent = photo.caption;
  caption.setAttribute("aria-hidden", "true"); // the picture's text is the same
  button.append(image, caption);
  const tile = document.createElement("li");
  tile.append(button, document.createElement("p"));
  if (photo.isOwn) {
    const remove = makeButton("Remove", () => removePhotos([photo], choose, onRemove));
    remove.setAttribute("aria-label", `Remove ${photo.title}`);
    tile.append(remove);
  }
  tiles.set(photo, tile);
  document.getElementById("thumbs").append(tile);
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

/** Removes photos that follow each other; the focus, and the choice if it was one of them, go to the next. */
function removePhotos(photos, choose, onRemove) {
  const all = [...tiles.keys()];
  const next = all[all.indexOf(photos.at(-1)) + 1]; // samples are never removed and come last
  for (const photo of photos) {
    tiles.get(photo).remove();
    tiles.delete(photo);
  }
  tiles.get(next).querySelector("button").focus();
  if (photos.includes(pressed)) choose(next);
  onRemove();
}

function makeButton(text, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", act);
  return button;
}
