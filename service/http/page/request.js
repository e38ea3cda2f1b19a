// The tab "API": the request of Try as curl and Python, and its answer.

import { readKey } from "./api.js";
import { shorten, showParameters } from "./scores.js";
import { makeCurl, makePython } from "./snippets.js";

const byId = (id) => document.getElementById(id);

export function startRequest() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copy(button.dataset.copy));
  }
}

/** Shows the request that returns the found labels of a column of Try, and its answer; null for none. */
export function showRequest(column, controls) {
  byId("request").hidden = column === null;
  byId("request-none").hidden = column !== null;
  if (column === null) return;
  const { photo, choice, answer } = column;
  const query = { ...choice, ...showParameters(controls) };
  const url = new URL(".", document.baseURI).href;
  const hasKey = readKey() !== "";
  byId("curl").textContent = makeCurl(url, photo.name, query, hasKey);
  byId("python").textContent = makePython(url, photo.name, query, hasKey);
  byId("answer").textContent = JSON.stringify(shorten(answer, controls), null, 2);
}

async function copy(id) {
  const element = byId(id);
  if (await copyText(element.textContent)) {
    byId("copied").textContent = id === "answer" ? "Copied the answer." : `Copied the ${id} request.`;
    return;
  }
  getSelection().selectAllChildren(element);
  byId("copied").textContent = "Selected: copy it with Ctrl+C.";
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
