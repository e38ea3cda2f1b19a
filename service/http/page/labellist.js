// The labels of one set: searched, and drawn some hundred at a time, so that 50,000 stay fast.

import { readLabelSet } from "./api.js";
import { byId, count, makeButton, makeElement, say } from "./elements.js";
import { writeScore } from "./strip.js";
import { explain, remember, translationOf, wordOf, writeParents } from "./words.js";

const AT_ONCE = 200; // rows that are added by "Show more"

const state = { set: null, limit: AT_ONCE }; // the set as `readLabelSet` returns it
let act = {}; // what `startLabelList` was given
let wanted = ""; // the name of the set that was opened last

/** Adds listeners; calls `onTeach` and `onThreshold` with the names of a set and of its label. */
export function startLabelList(callbacks) {
  act = callbacks;
  for (const id of ["view-search", "view-category", "language"]) {
    byId(id).addEventListener("input", () => {
      state.limit = AT_ONCE;
      draw();
    });
  }
  byId("view-more").addEventListener("click", () => {
    const first = byId("view-rows").rows.length;
    state.limit += AT_ONCE;
    draw();
    byId("view-rows").rows[first].cells[0].focus(); // the button may be hidden now
  });
  byId("view-rows").addEventListener("click", ({ target }) => {
    const label = target.closest("tr").dataset.label;
    act[target.dataset.act]?.(state.set.name, label);
  });
}

/** Shows the labels of a set; another version of the shown set keeps the search. */
export async function viewLabels(name) {
  wanted = name;
  say("view-status", "");
  if (state.set?.name !== name) {
    state.set = null;
    byId("view-search").value = "";
    byId("view-title").textContent = name;
    draw();
  }
  try {
    const set = await readLabelSet(name);
    if (wanted !== name) return;
    if (!state.set) state.limit = AT_ONCE;
    state.set = set;
    showCategories(set);
    remember(set.labels);
    draw();
  } catch (error) {
    if (wanted === name) say("view-status", error.message, { isProblem: true });
  }
}

function showCategories({ category_counts: counts }) {
  const options = Object.entries(counts ?? {}).map(([name, count]) => {
    return new Option(`${name} (${count.toLocaleString("en")})`, name);
  });
  const { value } = byId("view-category");
  byId("view-category").replaceChildren(new Option("All categories", ""), ...options);
  byId("view-category").value = counts && value in counts ? value : "";
  byId("view-categories").hidden = !counts;
}

function draw() {
  const labels = state.set?.labels ?? [];
  const text = byId("view-search").value.trim().toLowerCase();
  const category = byId("view-category").value;
  const matching = labels.filter((label) => {
    const isNamed = [label.name, wordOf(label.name), ...(label.aliases ?? [])].some((word) => word.toLowerCase().includes(text));
    return isNamed && (!category || label.category === category);
  });
  byId("view-body").hidden = !state.set;
  byId("view-rows").replaceChildren(...matching.slice(0, state.limit).map(makeRow));
  byId("view-more").hidden = matching.length <= state.limit;
  byId("view-more").textContent = `Show ${Math.min(AT_ONCE, matching.length - state.limit)} more`;
  if (!state.set) return;
  const isAll = matching.length === labels.length;
  const first = matching.length > state.limit ? `, the first ${state.limit.toLocaleString("en")} shown` : "";
  const part = isAll ? "" : `${matching.length.toLocaleString("en")} of `;
  say("view-count", `${part}${count(state.set.num_labels, "label")}${first}`);
}

function makeRow(label) {
  const row = document.createElement("tr");
  row.dataset.label = label.name;
  const name = explain(makeElement("th", "", wordOf(label.name)), label.name);
  [name.scope, name.tabIndex] = ["row", -1];
  name.append(...listFacts(label).map((fact) => makeElement("span", "quiet", fact)));
  const threshold = row.insertCell();
  threshold.textContent = writeScore(label.threshold);
  if (!label.calibrated) threshold.append(" ", makeElement("span", "quiet", "default"));
  row.prepend(name);
  if (state.set.read_only) return row;
  const buttons = [
    makeButton("small", "Threshold", `Set the threshold of ${label.name}`),
    makeButton("small", "Teach", `Teach ${label.name} from photos`),
  ];
  [buttons[0].dataset.act, buttons[1].dataset.act] = ["onThreshold", "onTeach"];
  row.insertCell().append(...buttons);
  return row;
}

function listFacts({ name, aliases, category, prompt, fit, examples }) {
  const words = [translationOf(name) && name, aliases && `also ${aliases.join(", ")}`, writeParents(name)];
  return [...words, category, prompt && `“${prompt}”`, ...(fit ? describeFit(fit) : []), examples && describeExamples(examples, fit)].filter(Boolean);
}

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

/** Shares are null if too few photos were left to measure them. */
function describeFit({ photos, positive, negative, text_ap: text, learnt_ap: learnt, precision, recall, precise }) {
  const deleted = negative > 0 ? `, and from ${negative} of which you deleted it` : "";
  const byName = text === null ? "" : ` (${percent(text)} by its name alone)`;
  return [
    `learnt from ${positive.toLocaleString("en")} of ${count(photos, "tagged photo")}${deleted}`,
    learnt !== null && `average precision ${percent(learnt)}${byName}`,
    precision === null ? "too few photos to measure its threshold" : `at its threshold ${percent(precision)} right, finds ${percent(recall ?? 0)}`,
    precise ? `90 % right: from ${writeScore(precise.threshold)}, finds ${percent(precise.recall)}` : "90 % right: not reached",
  ];
}

function describeExamples({ positive, negative, separation: { meaning } }, fit) {
  const quality = meaning.startsWith("unknown") ? `how well it is told apart is ${meaning}` : meaning;
  return `${fit ? "then" : "learnt"} from ${count(positive + negative, "photo")}: ${quality}`;
}
