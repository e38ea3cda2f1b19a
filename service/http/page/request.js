// The tab "API": the request of Try as curl and Python, and its answer.

import { readKey } from "./api.js";
import { byId, copyText, toast } from "./elements.js";
import { shorten, showParameters } from "./scores.js";
import { makeCurl, makePython } from "./snippets.js";
import { NAMES } from "./words.js";

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
  const query = { ...choice, lang: choice.lang.filter((lang) => lang !== NAMES), ...showParameters(answer.labels, controls) };
  const url = new URL(".", document.baseURI).href;
  const hasKey = readKey() !== "";
  byId("curl").textContent = makeCurl(url, photo.name, query, hasKey);
  byId("python").textContent = makePython(url, photo.name, query, hasKey);
  const leaveUnasked = (key, value) => (Array.isArray(value) && key.startsWith("parent") ? undefined : value); // as the request does
  byId("answer").textContent = JSON.stringify(shorten(answer, controls), leaveUnasked, 2);
}

async function copy(id) {
  const element = byId(id);
  if (await copyText(element.textContent)) {
    toast(id === "answer" ? "Copied the answer." : `Copied the ${id} request.`);
    return;
  }
  getSelection().selectAllChildren(element);
  toast("Selected: copy it with Ctrl+C.");
}
