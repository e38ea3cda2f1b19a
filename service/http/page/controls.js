// The controls that choose which labels of an answer are shown: on Try, on Many photos and in the request.

import { byId } from "./elements.js";

/** `{ mode, threshold, topK }`: `mode` is `calibrated`, `number`, `best` or `filled`. */
export function readControls() {
  const topK = Number.parseInt(byId("top-k").value, 10);
  return {
    mode: document.querySelector("[name=mode]:checked").value,
    threshold: Number(byId("threshold").value),
    topK: Math.min(Math.max(topK || 1, 1), 200),
  };
}

export function chooseMode(mode) {
  document.querySelector(`[name=mode][value=${mode}]`).checked = true;
}

/** Calls `onChange` after each change. */
export function startControls(onChange) {
  const radios = document.querySelectorAll("[name=mode]");
  for (const radio of radios) radio.addEventListener("change", onChange);
  for (const id of ["top-k", "threshold"]) byId(id).addEventListener("input", onChange);
}
