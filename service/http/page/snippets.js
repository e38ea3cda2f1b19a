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

export function makePython(url, photoName, query, hasKey) {
  const given = Object.entries(query).filter(([, values]) => values.length > 0);
  const key = hasKey ? `, api_key=os.environ["${KEY_VARIABLE}"]` : "";
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from ml_decoder_client import Client",
    "",
    `with Client(${quotePython(url.replace(/\/$/, ""))}${key}) as client:`,
    "    answer = client.predict(",
    `        ${quotePython(photoName)},`,
    ...given.map(([name, values]) => `        ${name}=${writeValue(name, values)},`),
    "    )",
    "for label in answer.labels:",
    '    print(f"{label.label}: {label.score:.3f}")',
  ].join("\n");
}

function writeValue(name, values) {
  const isOne = ["lang", "top_k", "min_labels", "threshold"].includes(name);
  if (!isOne) return `[${values.map(quotePython).join(", ")}]`;
  return Number.isNaN(Number(values[0])) ? quotePython(values[0]) : values[0];
}

function quoteShell(text) {
  const isPlain = /^[\w./:@=-]+$/.test(text);
  return isPlain ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function quotePython(text) {
  return JSON.stringify(text); // a JSON string is a Python string too
}
