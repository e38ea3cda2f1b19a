// One tile of "Many photos": picture, name, and the tags or what is wrong; the pictures are drawn one after the other.

import { makeButton, makeElement } from "./elements.js";
import { explain, wordOf } from "./words.js";

const THUMBNAIL_HEIGHT = 320; // in pixels, for two a CSS pixel
const MOST_TAGS = 4;
const NAME_END = 8; // characters of a name that stay if it is too long

const undrawn = new Map(); // tile -> { photo, image } without a picture
const near = new Set(); // tiles in view, or less than a screen away
const watch = new IntersectionObserver(
  (entries) => entries.forEach(({ target, isIntersecting }) => near[isIntersecting ? "add" : "delete"](target)),
  { rootMargin: "100%" },
);
let isDrawing = false;

/** Makes the tile of a photo that waits for its tags; `onSelect` gets the click on its checkbox, `onTag` a pressed tag. */
export function makeTile(photo, { onOpen, onSelect, onRemove, onTag }) {
  const tile = document.createElement("li");
  const image = document.createElement("img");
  image.alt = photo.title;
  image.classList.add("blank"); // the name is below
  const picture = makeButton("picture", "");
  picture.addEventListener("click", onOpen);
  picture.append(image);
  const box = document.createElement("input");
  box.type = "checkbox";
  box.setAttribute("aria-label", `Select ${photo.title}`);
  box.addEventListener("click", onSelect);
  const remove = makeButton("remove", "×", `Remove ${photo.title}`);
  remove.title = "Remove";
  remove.addEventListener("click", onRemove);
  const name = makeElement("p", "name", "");
  name.title = photo.name;
  name.setAttribute("aria-hidden", "true"); // the picture's text is the same
  const short = photo.name.split("/").at(-1);
  name.append(makeElement("span", "", short.slice(0, -NAME_END)), makeElement("span", "", short.slice(-NAME_END)));
  tile.addEventListener("click", ({ target }) => target.matches(".tag") && onTag(target.dataset.label));
  tile.append(picture, box, remove, name, document.createElement("div"));
  undrawn.set(tile, { photo, image });
  watch.observe(tile);
  return tile;
}

/** Shows what is known of a photo: `{ state, text, tags, crossed }`; `own` are names of the user's labels. */
export function drawTile(tile, { state, text, tags, crossed }, own, isOpen) {
  const drawn = JSON.stringify([state, text, tags, crossed, isOpen, tags.map((tag) => own.has(tag)), [...tags, ...crossed].map(wordOf)]);
  if (tile.dataset.drawn === drawn) return;
  tile.dataset.drawn = drawn;
  tile.dataset.state = state;
  const focused = tile.lastChild.contains(document.activeElement) && document.activeElement.dataset.label;
  const answer = document.createElement("div");
  if (text || state === "waiting") answer.append(makeElement("p", "state", text));
  if (tags.length + crossed.length > 0) answer.append(makeTags(tags, crossed, own, isOpen));
  tile.lastChild.replaceWith(answer);
  if (focused) ([...answer.querySelectorAll(".tag")].find((tag) => tag.dataset.label === focused) ?? tile.firstChild).focus();
}

export function dropTile(tile) {
  tile.remove();
  watch.unobserve(tile);
  near.delete(tile);
  undrawn.delete(tile);
}

/** Draws the missing pictures, those in view first. */
export async function drawPictures() {
  if (isDrawing) return;
  isDrawing = true;
  while (undrawn.size > 0) {
    const tile = [...near].find((other) => undrawn.has(other)) ?? undrawn.keys().next().value;
    const { photo, image } = undrawn.get(tile);
    undrawn.delete(tile);
    watch.unobserve(tile);
    near.delete(tile);
    await drawPicture(photo, image);
  }
  isDrawing = false;
}

/** Shows a small copy: a hundred full photos would take gigabytes. */
async function drawPicture(photo, image) {
  try {
    const bitmap = await createImageBitmap(photo.file, { resizeHeight: THUMBNAIL_HEIGHT, resizeQuality: "medium" });
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    // Encoded in another thread: `toDataURL` took 17 ms of this one.
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/webp"));
    const url = URL.createObjectURL(blob);
    image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    image.src = url; // not `decode()`: it holds 0.5 MB a picture that is out of view
    image.classList.remove("blank");
  } catch {
    // The browser cannot read the photo; the service may.
  }
}

/** The user's own tags first, because a tile has room for a few unless it is open; the crossed out last. */
function makeTags(tags, crossed, own, isOpen) {
  const list = makeElement("ul", "tags", "");
  const sorted = [...tags.filter((tag) => own.has(tag)), ...tags.filter((tag) => !own.has(tag))];
  const few = isOpen ? sorted : sorted.slice(0, MOST_TAGS);
  const more = sorted.slice(few.length);
  list.append(...few.map((tag) => makeTag(own.has(tag) ? "own" : "", tag, `Cross out ${wordOf(tag)}${own.has(tag) ? " (your own)" : ""}`)));
  if (more.length > 0) {
    const item = makeElement("li", "more", `+${more.length}`);
    item.title = `${more.map(wordOf).join(", ")}: select the photo to see all`;
    list.append(item);
  }
  list.append(...crossed.map((tag) => makeTag("crossed", tag, `Take back that ${wordOf(tag)} is crossed out`)));
  return list;
}

function makeTag(className, tag, action) {
  const button = explain(makeButton("tag", wordOf(tag), action), tag, action);
  button.dataset.label = tag;
  const item = makeElement("li", className, "");
  item.append(button);
  return item;
}
