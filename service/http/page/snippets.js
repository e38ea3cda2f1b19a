// The shown request as a curl command and a Python script. Both read the API key from the
// environment; it is never written out.

const KEY_VARIABLE = "ML_DECODER_API_KEY";

export function makeCurl(url, photoName, query, hasKey) {
  // Without quotes curl splits names at commas and semicolons.
  const file = photoName.replace(/["\\]/g, "\\$&");
  const fields = Object.entries(query).flatMap(([name, values]) =>
    values.map((value) => `  --form-string ${quoteShell(`${name}=${value}`)}`),
  );
  return [
    `curl ${quoteShell(`${url}predict`)}`,
    ...(hasKey ? [`  -H "Authorization: Bearer $${KEY_VARIABLE}"`] : []),
    `  -F ${quoteShell(`image=@"${file}"`)}`,
    ...fields,
  ].join(" \\\n");
}

export function makePython(url, photoName, query, hasKey) {
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
    "for label in answer.labels:",
    '    print(f"{label.label}: {label.score:.3f}")',
  ].join("\n");
}

function writeValue(name, values) {
  if (name === "top_k") return values[0];
  if (name === "threshold") return values[0] === "calibrated" ? '"calibrated"' : values[0];
  return `[${values.map(quotePython).join(", ")}]`;
}

function quoteShell(text) {
  const isPlain = /^[\w./:@=-]+$/.test(text);
  return isPlain ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function quotePython(text) {
  return JSON.stringify(text); // a JSON string is a Python string too
}
