// Photos: dropped, pasted, picked or bundled samples. `startPhotos` passes the chosen one to its
// callback as `{ name, file, url }`.

import { readSample } from "./api.js";

const SAMPLES = {
  "chelsea.jpg": "cat",
  "coffee.jpg": "cup of coffee",
  "astronaut.jpg": "astronaut",
  "rocket.jpg": "rocket at night",
};

let pressed = null; // the thumb that was pressed last

/** Fills the strip of samples and adds listeners; calls `onChoose` with each chosen photo. */
export function startPhotos(onChoose, onProblem) {
  const make = (photo, title) => makeThumb(photo, title, onChoose, onProblem);
  const strip = document.getElementById("thumbs");
  for (const [name, title] of Object.entries(SAMPLES)) {
    strip.append(make({ name, url: `page/samples/${name}` }, `Sample: ${title}`));
  }
  const take = (files) => takeFiles(files, strip, make);
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
  return { chooseFirst: () => strip.querySelector("button").click() };
}

function takeFiles(files, strip, make) {
  const thumbs = [...files].map((file, i) => {
    const name = file.name || `pasted-${i + 1}.png`;
    return make({ name, file, url: URL.createObjectURL(file) }, name);
  });
  strip.prepend(...thumbs);
  thumbs[0]?.querySelector("button").click();
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

function makeThumb(photo, title, onChoose, onProblem) {
  const button = document.createElement("button");
  button.type = "button";
  button.title = title;
  const image = document.createElement("img");
  image.src = photo.url;
  image.alt = title;
  button.append(image);
  button.addEventListener("click", async () => {
    pressed = button;
    try {
      photo.file ??= await readSample(photo.url);
    } catch (error) {
      if (pressed === button) onProblem(error);
      return;
    }
    // The user may have chosen another photo during the download.
    if (pressed !== button) return;
    for (const other of document.querySelectorAll("#thumbs [aria-current]")) {
      other.removeAttribute("aria-current");
    }
    button.setAttribute("aria-current", "true");
    onChoose({ title, ...photo });
  });
  const item = document.createElement("li");
  item.append(button);
  return item;
}
