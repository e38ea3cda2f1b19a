// Elements, buttons, numbers as text, and messages that say what came of an action.

const TOAST_MS = 10_000;
export const NO_CLIPBOARD = "The browser offers no clipboard here.";

let hiding = 0; // timer that hides the message

export const byId = (id) => document.getElementById(id);

export function makeElement(name, className, text) {
  const element = document.createElement(name);
  [element.className, element.textContent] = [className, text];
  return element;
}

/** Makes a button; `spoken` is its name if the text is short because of its place. */
export function makeButton(className, text, spoken) {
  const button = makeElement("button", className, text);
  button.type = "button";
  if (spoken) button.setAttribute("aria-label", spoken);
  return button;
}

/** Writes into a line by its id, which screen readers announce; problems look different. */
export function say(id, text, { isProblem = false } = {}) {
  byId(id).textContent = text;
  byId(id).classList.toggle("problem", isProblem);
}

/** Shows a message over the page for a while; `onUndo` takes back what was done. */
export function toast(text, onUndo = null) {
  clearTimeout(hiding);
  hiding = setTimeout(() => byId("undo").matches(":focus") || toast(""), TOAST_MS);
  byId("toast-text").textContent = text;
  byId("undo").hidden = !onUndo;
  byId("undo").onclick = () => {
    toast("");
    onUndo();
  };
}

/** `2 photos`. */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** Returns whether the text is in the clipboard: browsers offer none to plain-http pages of other hosts. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
