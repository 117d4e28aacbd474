// Type a text, see its labels; one column per model.

import { close, open } from "./details.js";
import { ask, make, mark, rounded } from "./service.js";

const DEBOUNCE = 120; // milliseconds without a key press before the service is asked
const query = document.getElementById("query");
const count = document.getElementById("k");
const status = document.getElementById("status");
const results = document.getElementById("results");
const grown = document.getElementById("grown");
const undo = document.getElementById("undo");
let models = [];
let timer = 0;
let running = null; // the AbortController of the running request
let changes = 0; // labels added in this tab that can be undone

function say(place, text, wrong = false) {
  place.textContent = text;
  place.classList.toggle("wrong", wrong);
}

function row(label, place, most, only, model) {
  const share = most > 0 ? Math.max(0, Math.min(1, label.score / most)) : 0;
  const fill = make("span", { class: "fill" });
  fill.style.width = `${(100 * share).toFixed(1)}%`;
  const kind = label.frequency === 0 ? "new" : label.bin ?? "";
  const button = make(
    "button",
    {
      type: "button",
      class: only ? "label only" : "label",
      "aria-expanded": "false",
      "aria-controls": "details",
      "aria-label": `${place + 1}: ${label.text}, score ${rounded(label.score)}, ${kind}${only ? ", only this model" : ""}`,
    },
    make("span", { class: "rank", text: place + 1 }),
    make("span", { class: "text", text: label.text }),
    mark(label),
    make("span", { class: "score", text: rounded(label.score) }),
    make("span", { class: "track", "aria-hidden": "true" }, fill),
  );
  button.addEventListener("click", () =>
    open({ id: label.id, text: label.text, model, query: query.value, from: button, use }),
  );
  return make("li", {}, button);
}

function column(model, labels, others) {
  const most = labels.length ? labels[0].score : 0;
  const unique = labels.filter((label) => others && !others.has(label.text)).length;
  const note = others && labels.length ? `${unique} only here${unique ? ", in bold" : ""}` : "";
  const head = make("header", {}, make("h2", { text: model }), make("span", { text: note }));
  const rows = labels.map((label, place) => row(label, place, most, others && !others.has(label.text), model));
  const body = rows.length
    ? make("ol", { "aria-label": `Labels of ${model}` }, ...rows)
    : make("p", { class: "empty", text: "No label: the model knows none of these words." });
  return make("section", { class: "column" }, head, body);
}

function draw(answers) {
  const texts = answers.map((labels) => new Set(labels.map((label) => label.text)));
  const columns = models.map((model, place) =>
    column(model, answers[place], models.length > 1 ? texts[(place + 1) % models.length] : null),
  );
  results.replaceChildren(...columns);
}

async function predict() {
  running?.abort();
  const text = query.value;
  close();
  if (!text.trim()) {
    running = null;
    results.replaceChildren();
    say(status, "");
    return;
  }
  const controller = (running = new AbortController());
  const began = performance.now();
  try {
    const requests = models.map((model) =>
      ask("/v1/predict", { body: { texts: [text], k: Number(count.value), model, details: true }, signal: controller.signal }),
    );
    const answers = (await Promise.all(requests)).map((answer) => answer.predictions[0].labels);
    if (running !== controller) return;
    draw(answers);
    const best = answers[0][0];
    const summary = best ? `Best: ${best.text} (${rounded(best.score)})` : "No labels";
    say(status, `${summary} · ${Math.round(performance.now() - began)} ms`);
  } catch (reason) {
    if (reason.name === "AbortError" || running !== controller) return;
    say(status, reason.message, true);
  }
}

function schedule() {
  clearTimeout(timer);
  timer = setTimeout(predict, DEBOUNCE);
}

// Put a text into the query, as if it had been typed.
function use(text) {
  query.value = text;
  query.focus();
  predict();
}

async function change(work, done) {
  try {
    for (const model of models) await work(model);
    say(grown, done);
    return true;
  } catch (reason) {
    say(grown, reason.message, true);
    return false;
  }
}

document.getElementById("add").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = document.getElementById("new-label");
  const text = field.value.trim();
  if (!text) return;
  const add = (model) => ask("/v1/labels", { body: { labels: [{ text }], model } });
  if (!(await change(add, `Added “${text}”. It can be predicted now.`))) return;
  changes += 1;
  undo.disabled = false;
  field.value = "";
  if (query.value.trim()) predict();
  else use(text);
});

undo.addEventListener("click", async () => {
  const undoLast = (model) => ask("/v1/labels/undo", { body: { model } });
  if (!(await change(undoLast, "Took the last label back."))) return;
  changes -= 1;
  undo.disabled = changes === 0;
  predict();
});

query.addEventListener("input", schedule);
count.addEventListener("change", predict);
document.getElementById("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  predict();
});

document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(document.activeElement?.tagName);
  if (event.key === "/" && !typing) {
    event.preventDefault();
    query.focus();
  } else if (event.key === "Escape") {
    close();
  } else if (event.key === "Enter" && event.target === query && !event.shiftKey) {
    event.preventDefault();
    clearTimeout(timer);
    predict();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    moveFocus(event);
  }
});

// The arrows go from the text to the labels and back; inside a text of several lines they stay there.
function moveFocus(event) {
  const buttons = [...results.querySelectorAll(".label")];
  const here = buttons.indexOf(document.activeElement);
  if (here < 0 && (document.activeElement !== query || event.key === "ArrowUp" || query.value.includes("\n"))) return;
  const next = here + (event.key === "ArrowDown" ? 1 : -1);
  event.preventDefault();
  (next < 0 ? query : buttons[Math.min(next, buttons.length - 1)])?.focus();
}

async function begin() {
  try {
    const info = await ask("/v1/model");
    models = info.models.slice(0, 2);
    const size = typeof info.labels === "number" ? `${info.labels.toLocaleString()} labels` : "";
    const parts = [models.join(" and "), info.data ?? info.dataset, size];
    document.getElementById("about").textContent = parts.filter((part) => typeof part === "string" && part).join(" · ");
    query.focus();
    if (query.value.trim()) predict();
  } catch (reason) {
    say(status, reason.message, true);
  }
}

begin();
