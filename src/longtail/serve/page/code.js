// The same question as a command and as a program, and a link to it.

import { button, copy, hasKey, make } from "./service.js";

function body(text, k, model, info, several) {
  return { texts: [text], k, ...(info.probabilities ? { probabilities: true } : {}), ...(several ? { model } : {}) };
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function curl(request) {
  const key = hasKey() ? ' -H "Authorization: Bearer $LONGTAIL_API_KEY"' : "";
  return `curl ${quoted(`${location.origin}/v1/predict`)} -H 'Content-Type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(request))}`;
}

// Strings of JSON are strings of Python too; of the other values only true has another name.
function literal(request) {
  const pairs = Object.entries(request).map(
    ([name, value]) => `"${name}": ${value === true ? "True" : JSON.stringify(value)}`,
  );
  return `{${pairs.join(", ")}}`;
}

function python(request) {
  const key = hasKey() ? `, "Authorization": f"Bearer {os.environ['LONGTAIL_API_KEY']}"` : "";
  return `import json
${hasKey() ? "import os\n" : ""}from urllib.request import Request, urlopen

body = ${literal(request)}
headers = {"Content-Type": "application/json"${key}}
request = Request(${JSON.stringify(`${location.origin}/v1/predict`)}, json.dumps(body).encode(), headers)
for label in json.load(urlopen(request))["predictions"][0]["labels"]:
    print(label["score"], label["text"])
`;
}

function snippet(name, text) {
  return make(
    "section",
    {},
    make(
      "header",
      {},
      make("h2", { text: name }),
      button(`Copy ${name}`, (element) => copy(text, element)),
    ),
    make("pre", { tabindex: "0", "aria-label": name, text }),
  );
}

export function snippets(text, k, answers) {
  const { model, info } = answers[0];
  const request = body(text, k, model, info, answers.length > 1);
  const link = button("Copy link", (element) => copy(location.href, element));
  return [snippet("curl", curl(request)), snippet("Python", python(request)), link];
}
