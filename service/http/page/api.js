// Requests to the service: return its JSON or throw a `Problem`.
//
// A 429 or 503 is retried after `Retry-After`. The API key, if any, is in the tab's session storage.

import { listFields } from "./scores.js";

const KEY = "ml-decoder-key";
const MOST_TRIES = 3;
const LONGEST_WAIT_SECONDS = 3;
const UNREACHED = "The service cannot be reached.";

/** An error answer (RFC 9457), or that the service is unreachable. */
export class Problem extends Error {
  constructor(status, body) {
    const values = (body.errors ?? []).map((value) => `${value.name}: ${value.reason}`);
    const reason = values.join("; ") || body.detail;
    super([body.title, reason].filter(Boolean).join(": "));
    this.title = body.title;
    this.status = status;
    this.code = body.code ?? "";
  }

  /** Whether the photo is the reason, and not the service or the other parameters. */
  get isOfPhoto() {
    return /_image$|^too_many_pixels$|^body_too_large$/.test(this.code);
  }

  get needsKey() {
    return this.status === 401 || this.code === "forbidden";
  }
}

export function readKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function writeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** Labels of one photo. `query` holds lists of values by parameter; see `reach` for `patience`. */
export async function predict(photo, query, signal, patience) {
  await checkReadable(photo.file);
  // A thousand long labels fit into a form, but not into a query string.
  const body = new FormData();
  for (const [name, value] of listFields(query)) body.append(name, value);
  body.append("image", photo.file, photo.name);
  return (await send("predict", { method: "POST", body, signal, ...patience })).body;
}

/** Throws if the file is gone or a folder; fetch would report it as an unreachable service. */
async function checkReadable(file) {
  await file.slice(0, 1).arrayBuffer().catch(() => {
    const body = { title: "The photo cannot be read: choose it again", code: "unreadable_image" };
    throw Object.assign(new Problem(0, body), { file });
  });
}

/** The file of a sample photo. */
export async function readSample(path) {
  return (await reach(path)).blob();
}

export async function readInfo() {
  return (await send("info")).body;
}

export async function listLabelSets() {
  return (await send("labels")).body.label_sets;
}

export async function readLabelSet(name) {
  return (await send(`labels/${encodeURIComponent(name)}`)).body;
}

/** Registers a set; `replace` overwrites the current version. */
export async function keepLabelSet(name, labels, replace) {
  if (!replace) return (await send("labels", sendJson("POST", { name, labels }))).body;
  const path = `labels/${encodeURIComponent(name)}`;
  const { tag } = await send(path);
  return (await send(path, sendJson("PUT", { labels }, { "If-Match": tag }))).body;
}

/** Teaches a label of a set from files, `{ positive, negative }`; makes the set and the label if they are new. */
export async function teachLabel(name, label, photos, patience) {
  const body = new FormData();
  for (const [kind, files] of Object.entries(photos)) {
    for (const file of files) {
      await checkReadable(file);
      body.append(kind, file, file.name);
    }
  }
  const path = `labels/${encodeURIComponent(name)}/examples?label=${encodeURIComponent(label)}`;
  return (await send(path, { method: "POST", body, ...patience })).body;
}

/** Sets the threshold of one label of `set`, as `readLabelSet` returned it, if it is unchanged. */
export async function keepThreshold(set, label, threshold) {
  const labels = [{ name: label, threshold }];
  const options = sendJson("PATCH", { labels }, { "If-Match": `"${set.version}"` });
  return (await send(`labels/${encodeURIComponent(set.name)}`, options)).body;
}

/** Deletes a set if it still has the given version. */
export async function deleteLabelSet({ name, version }) {
  const headers = { "If-Match": `"${version}"` };
  await reach(`labels/${encodeURIComponent(name)}`, { method: "DELETE", headers });
}

function sendJson(method, value, headers = {}) {
  const body = JSON.stringify(value);
  return { method, body, headers: { "Content-Type": "application/json", ...headers } };
}

async function send(path, options) {
  const response = await reach(path, options);
  const body = await response.json().catch((error) => {
    const isCut = !(error instanceof SyntaxError);
    throw new Problem(0, { title: isCut ? UNREACHED : "The answer is not JSON: a proxy may have answered instead of the service." });
  });
  return { body, tag: response.headers.get("etag") };
}

/** With `isPatient` it tries until the service is not busy; else three times. */
async function reach(path, { isPatient = false, ...options } = {}) {
  const key = readKey();
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  for (let tries = 1; ; tries += 1) {
    const response = await fetch(path, { ...options, headers }).catch(() => {
      throw new Problem(0, { title: UNREACHED });
    });
    if (response.ok) return response;
    const wait = Number(response.headers.get("retry-after"));
    const isOver = wait > LONGEST_WAIT_SECONDS || tries >= MOST_TRIES;
    if (!wait || (isOver && !isPatient)) {
      const body = await readProblem(response);
      throw new Problem(response.status, wait ? { ...body, detail: `Try again in ${wait} s.` } : body);
    }
    await new Promise((resolve) => setTimeout(resolve, wait * 1000));
    options.signal?.throwIfAborted();
  }
}

async function readProblem(response) {
  // A proxy in front of the service may answer with anything.
  return response.json().catch(() =>
    response.status === 413
      ? { title: "A proxy answered 413: raise its limit (nginx: client_max_body_size 20m)", code: "body_too_large" }
      : { title: `The service answered ${response.status}` },
  );
}
