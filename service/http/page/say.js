// Lines that say what came of an action; screen readers announce them.

/** Writes into a line by its id; problems differ from other text. */
export function say(id, text, { isProblem = false } = {}) {
  const line = document.getElementById(id);
  line.textContent = text;
  line.classList.toggle("problem", isProblem);
}
