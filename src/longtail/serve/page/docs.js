// /openapi.json as a page: every path, what it takes and what it answers. Nothing from elsewhere is loaded.

import { ask, button, copy, hasKey, make, say } from "./service.js";

const status = document.getElementById("status");
let schemas = {};

function resolved(schema) {
  const name = schema?.$ref?.split("/").at(-1);
  return name ? { name, ...schemas[name] } : (schema ?? {});
}

// Say in a few words what a schema takes.
function kind(schema) {
  const one = resolved(schema);
  const choices = one.anyOf ?? one.oneOf;
  if (choices)
    return choices
      .map(kind)
      .filter((text) => text !== "null")
      .join(" or ");
  if (one.type === "array") return `list of ${kind(one.items)}`;
  if (one.name && one.type === "object") return one.name;
  return one.type ?? "anything";
}

function bounds(schema) {
  const one = resolved(schema);
  const inner = (one.anyOf ?? []).map(resolved).find((choice) => choice.type !== "null") ?? one;
  const found = [];
  const low = inner.minimum ?? inner.minLength ?? inner.minItems;
  const high = inner.maximum ?? inner.maxLength ?? inner.maxItems;
  if (low !== undefined || high !== undefined) found.push(`${low ?? ""} to ${high ?? ""}`.trim());
  if (one.default !== undefined && one.default !== null) found.push(`default ${JSON.stringify(one.default)}`);
  return found.join(", ");
}

function fields(rows, caption) {
  const heads = ["name", "takes", "limits", "what it is"].map((text) => make("th", { scope: "col", text }));
  const body = rows.map(({ name, required, schema, description }) =>
    make(
      "tr",
      {},
      make(
        "th",
        { scope: "row" },
        make("code", { text: name }),
        required ? make("span", { class: "need", text: " needed" }) : "",
      ),
      make("td", { text: kind(schema) }),
      make("td", { text: bounds(schema) }),
      make("td", { text: description ?? resolved(schema).description ?? "" }),
    ),
  );
  const table = make(
    "table",
    {},
    make("caption", { text: caption }),
    make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...body),
  );
  return make("div", { class: "wide", role: "group", "aria-label": caption, tabindex: "0" }, table);
}

function properties(schema, caption) {
  const one = resolved(schema);
  const needed = new Set(one.required ?? []);
  const rows = Object.entries(one.properties ?? {}).map(([name, own]) => ({
    name,
    schema: own,
    required: needed.has(name),
    description: own.description,
  }));
  return rows.length ? [fields(rows, caption)] : [make("p", { class: "hint", text: `${caption}: any JSON object.` })];
}

// A value that a schema takes.
function sample(schema) {
  const one = resolved(schema);
  if (one.examples) return one.examples[0];
  if (one.anyOf) return sample(one.anyOf[0]);
  if (one.type === "array") return [sample(one.items)];
  if (one.type === "object")
    return Object.fromEntries((one.required ?? []).map((name) => [name, sample(one.properties[name])]));
  return { integer: one.minimum ?? 0, number: 0, boolean: true, string: "sort a list" }[one.type] ?? null;
}

function command(method, path, body) {
  const parts = [`curl '${location.origin}${path.replace(/\{.*?\}/g, "0")}'`];
  if (method !== "get" && method !== "post") parts.push(`-X ${method.toUpperCase()}`);
  if (hasKey()) parts.push('-H "Authorization: Bearer $LONGTAIL_API_KEY"');
  if (body)
    parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(sample(body)).replaceAll("'", "'\\''")}'`);
  return parts.join(" ");
}

function operation(method, path, one) {
  const id = one.operationId;
  const body = one.requestBody?.content["application/json"]?.schema;
  const answer = one.responses?.["200"]?.content?.["application/json"]?.schema;
  const text = command(method, path, body);
  const errors = Object.entries(one.responses ?? {}).filter(([number]) => number !== "200");
  return make(
    "section",
    { class: "card path", "aria-labelledby": id },
    make(
      "h2",
      { id },
      make("span", { class: `method ${method}`, text: method.toUpperCase() }),
      make("code", { text: path }),
    ),
    make("p", { text: one.summary ?? "" }),
    make(
      "div",
      { class: "snippet" },
      make("pre", { tabindex: "0", "aria-label": "curl", text }),
      button("Copy", (element) => copy(text, element)),
    ),
    ...(one.parameters?.length ? [fields(one.parameters, "Parameters")] : []),
    ...(body ? properties(body, `Body: ${resolved(body).name}`) : []),
    ...(answer ? properties(answer, `Answer: ${resolved(answer).name}`) : []),
    ...(errors.length
      ? [
          make(
            "details",
            {},
            make("summary", { text: "Errors" }),
            make(
              "ul",
              {},
              ...errors.map(([number, { description }]) =>
                make("li", {}, make("code", { text: number }), ` ${description}`),
              ),
            ),
          ),
        ]
      : []),
  );
}

async function begin() {
  try {
    const document_ = await ask("/openapi.json");
    schemas = document_.components?.schemas ?? {};
    document.getElementById("about").textContent = `${document_.info.title} ${document_.info.version}`;
    const found = Object.entries(document_.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, one]) => [method, path, one]),
    );
    document.getElementById("paths").replaceChildren(...found.map((entry) => operation(...entry)));
    const links = found.map(([method, path, one]) =>
      make("a", { class: "chip", href: `#${one.operationId}`, text: `${method.toUpperCase()} ${path}` }),
    );
    document.getElementById("contents").replaceChildren(...links);
    say(status, document_.info.summary ?? "");
  } catch (reason) {
    say(status, reason.message, true);
  }
}

begin();
