// The shown request as a curl command and a Python script. Both read the API key from the
// environment; it is never written out.

import { listFields } from "./scores.js";

const KEY_VARIABLE = "ML_DECODER_API_KEY";

export function makeCurl(url, photoName, query, hasKey) {
  // Without quotes curl splits names at commas and semicolons.
  const file = photoName.replace(/["\\]/g, "\\$&");
  return [
    `curl ${quoteShell(`${url}predict`)}`,
    ...(hasKey ? [`  -H "Authorization: Bearer $${KEY_VARIABLE}"`] : []),
    ...listFields(query).map(([name, value]) => `  --form-string ${quoteShell(`${name}=${value}`)}`),
    `  -F ${quoteShell(`image=@"${file}"`)}`,
  ].join(" \\\n");
}

/** Prints the labels that the page shows by its controls. */
export function makePython(url, photoName, query, controls, hasKey) {
  const given = Object.entries(query).filter(([, values]) => values.length > 0);
  const values = given.map(([name, list]) => `    ${name}=${writeValue(name, list)},\n`);
  const key = hasKey ? `, api_key=os.environ["${KEY_VARIABLE}"]` : "";
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from ml_decoder_client import Client",
    "",
    `with Client(${quotePython(url.replace(/\/$/, ""))}${key}) as client:`,
    `    answer = client.predict(`,
    `        ${quotePython(photoName)},`,
    ...values.map((value) => `    ${value.trimEnd()}`),
    "    )",
    ...writeChoice(controls),
    '    print(f"{label.label}: {label.score:.3f}")',
  ].join("\n");
}

function writeChoice({ mode, threshold, topK }) {
  if (mode === "best") return [`for label in answer.labels[:${topK}]:`];
  const least = mode === "number" ? threshold : "label.threshold";
  return [
    "found = [",
    "    label for label in answer.labels",
    `    if label.score >= ${least}`,
    "]",
    `for label in found[:${topK}]:`,
  ];
}

function writeValue(name, values) {
  if (name === "top_k") return values[0];
  return `[${values.map(quotePython).join(", ")}]`;
}

function quoteShell(text) {
  const isPlain = /^[\w./:@=-]+$/.test(text);
  return isPlain ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function quotePython(text) {
  return JSON.stringify(text); // a JSON string is a Python string too
}
