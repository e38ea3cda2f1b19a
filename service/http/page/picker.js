// An area for photos: dropped or chosen, with thumbnails, each of which can be removed.

import { makeButton, makeElement } from "./elements.js";
import { writeScore } from "./strip.js";

/**
 * Makes the area around a file field work; calls `onChange` after photos were added or removed.
 *
 * Returns `photos`, a list of `{ name, file, score }` in the order of adding, where `score` is null until
 * it is set, and functions to change it. `captions` writes the scores below the thumbnails.
 */
export function makePicker(input, onChange) {
  const zone = input.closest(".picker");
  const list = zone.querySelector("ul");
  const photos = [];
  const items = new Map(); // photo -> its element
  const remove = (photo) => {
    const item = items.get(photo);
    if (item.contains(document.activeElement)) {
      const next = item.nextElementSibling ?? item.previousElementSibling;
      (next?.querySelector("button") ?? input).focus();
    }
    URL.revokeObjectURL(item.querySelector("img")?.src);
    item.remove();
    items.delete(photo);
    photos.splice(photos.indexOf(photo), 1);
  };
  const add = (files) => {
    for (const file of files) {
      const photo = { name: file.name, file, score: null };
      const item = makeItem(photo, () => {
        remove(photo);
        onChange();
      });
      photos.push(photo);
      items.set(photo, item);
      list.append(item);
    }
    onChange();
  };
  listenForFiles(input, zone, add);
  return {
    photos,
    add,
    remove,
    clear: () => {
      for (const photo of [...photos]) remove(photo);
      onChange();
    },
    captions: () => photos.forEach((photo) => {
      items.get(photo).querySelector(".caption").textContent = photo.score === null ? "" : writeScore(photo.score);
    }),
  };
}

function makeItem(photo, onRemove) {
  const image = document.createElement("img");
  [image.alt, image.title, image.loading, image.decoding] = [photo.name, photo.name, "lazy", "async"];
  image.src = URL.createObjectURL(photo.file);
  image.addEventListener("error", () => {
    URL.revokeObjectURL(image.src);
    image.replaceWith(makeElement("span", "unseen", photo.name)); // the service may know more formats
  });
  const button = makeButton("", "×", `Remove ${photo.name}`);
  button.title = "Remove";
  button.addEventListener("click", onRemove);
  const item = document.createElement("li");
  item.append(image, button, makeElement("span", "caption", ""));
  return item;
}

/** Calls `take` with files that are chosen in the field or dropped on the zone. */
function listenForFiles(input, zone, take) {
  const mark = (isOver) => zone.classList.toggle("over", isOver);
  input.addEventListener("change", () => {
    take([...input.files]);
    input.value = "";
  });
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    event.stopPropagation(); // else the page would offer to tag the photos
    document.body.classList.remove("dropping");
    mark(true);
  });
  zone.addEventListener("dragleave", () => mark(false));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    mark(false);
    take([...event.dataTransfer.files]);
  });
}
