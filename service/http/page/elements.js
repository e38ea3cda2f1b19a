// Elements, buttons, and lines that say what came of an action.

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
  const line = document.getElementById(id);
  line.textContent = text;
  line.classList.toggle("problem", isProblem);
}
