// Type a text, see its labels: one row for each label, one bar for each model.

import { snippets } from "./code.js";
import { close, entries, open, whenChanged } from "./details.js";
import { highlight, render } from "./highlight.js";
import { beginLabels } from "./labels.js";
import { hideNote, mark } from "./note.js";
import { certainty, results } from "./results.js";
import { ask, button, counted, make, percent, rounded, say } from "./service.js";
import { beginTable } from "./table.js";

const DEBOUNCE = 120; // milliseconds without a key press before the service is asked
const LONGEST = 2000; // characters of a text that a link holds
const VIEWS = ["ask", "table", "labels"];
const query = document.getElementById("query");
const count = document.getElementById("k");
const status = document.getElementById("status");
const place = document.getElementById("results");
const code = document.getElementById("code");
let models = []; // { model, info, off }
let timer = 0;
let running = null; // the AbortController of the running request
let view = "ask";
let chosen = null; // the open label: { id, model }

function shownModels() {
  return models.filter(({ off }) => !off);
}

// The address says what is shown, so that it can be shared.
function address() {
  const words = new URLSearchParams();
  if (view !== "ask") words.set("view", view);
  if (query.value.trim() && query.value.length <= LONGEST) words.set("q", query.value);
  if (count.value !== "10") words.set("k", count.value);
  if (chosen) words.set("label", chosen.id);
  if (chosen && chosen.model !== models[0]?.model) words.set("model", chosen.model);
  const text = words.toString();
  history.replaceState(null, "", text ? `?${text}` : location.pathname);
}

function truthOf(text) {
  const same = models.flatMap(({ info }) => info.examples ?? []).find((example) => example.text === text.trim());
  return same ? new Set(same.labels.map((label) => label.text)) : null;
}

function choose(row, answers, from) {
  const cells = answers.flatMap(({ model }, at) => (row.cells[at] ? [{ model, id: row.cells[at].id }] : []));
  open({ ...cells[0], text: row.text, query: query.value, from, use, cells, explained: (words) => highlight(words) });
}

function summary(answers, truth) {
  const best = answers.find(({ labels }) => labels.length);
  if (!best) return "No labels";
  const sure = certainty(answers);
  const score = best.info.probabilities ? percent(best.labels[0].score) : rounded(best.labels[0].score);
  const parts = [`${sure !== null && sure < 0.5 ? "Not sure. " : ""}Best: ${best.labels[0].text} (${score})`];
  if (truth) {
    const hits = [...truth].filter((name) => answers.some(({ labels }) => labels.some(({ text }) => text === name)));
    parts.push(`${hits.length} of ${counted(truth.size, "true label")} found`);
  }
  return parts.join(" · ");
}

async function predict({ keep = false } = {}) {
  running?.abort();
  clearTimeout(timer);
  const text = query.value;
  if (!keep) close({ back: false });
  render();
  address();
  document.getElementById("welcome").hidden = Boolean(text.trim());
  if (!text.trim() || !shownModels().length) {
    running = null;
    place.replaceChildren();
    code.hidden = true;
    highlight([]);
    say(status, text.trim() ? "Choose a model." : "");
    return;
  }
  const controller = (running = new AbortController());
  const began = performance.now();
  try {
    const requests = shownModels().map(async ({ model, info }) => {
      const body = {
        texts: [text],
        k: Number(count.value),
        model,
        details: true,
        probabilities: info.probabilities === true,
      };
      const answer = await ask("/v1/predict", { body, signal: controller.signal });
      return { model, info, labels: answer.predictions[0].labels };
    });
    const answers = await Promise.all(requests);
    if (running !== controller) return;
    const truth = truthOf(text);
    place.replaceChildren(...results(answers, { text, truth, choose }));
    code.hidden = false;
    document.getElementById("snippets").replaceChildren(...snippets(text, Number(count.value), answers));
    say(status, `${summary(answers, truth)} · ${Math.round(performance.now() - began)} ms`);
    await explain(answers, text, controller);
  } catch (reason) {
    if (reason.name === "AbortError" || running !== controller) return;
    say(status, reason.message, true);
  }
}

// Mark the words behind the best label; an open label marks its own.
async function explain(answers, text, controller) {
  const best = answers.find(({ labels }) => labels.length);
  if (!best) return highlight([]);
  if (chosen) return;
  const body = { text, label: best.labels[0].id, model: best.model };
  const found = await ask("/v1/explain", { body, signal: controller.signal }).catch(() => ({}));
  if (running === controller && !chosen) highlight(entries(found.words));
}

function schedule() {
  clearTimeout(timer);
  timer = setTimeout(predict, DEBOUNCE);
}

// Put a text into the query, as if it had been typed.
function use(text) {
  select("ask");
  query.value = text;
  query.focus();
  predict();
}

function select(name, { focus = false } = {}) {
  view = name;
  for (const other of VIEWS) {
    const tab = document.getElementById(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
    if (other === name && focus) tab.focus();
    document.getElementById(`view-${other}`).hidden = other !== name;
  }
  address();
}

for (const [number, name] of VIEWS.entries()) {
  const tab = document.getElementById(`tab-${name}`);
  tab.addEventListener("click", () => select(name));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) select(VIEWS[(number + step + VIEWS.length) % VIEWS.length], { focus: true });
  });
}

query.addEventListener("input", schedule);
count.addEventListener("change", () => predict());
document.getElementById("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  predict();
});

document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(document.activeElement?.tagName);
  if (event.key === "/" && !typing && view === "ask") {
    event.preventDefault();
    query.focus();
  } else if (event.key === "Escape") {
    if (!hideNote()) close();
  } else if (event.key === "Enter" && event.target === query && !event.shiftKey) {
    event.preventDefault();
    predict();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    moveFocus(event);
  }
});

// The arrows go from the text to the labels and back; inside a text of several lines they stay there.
function moveFocus(event) {
  const buttons = [...place.querySelectorAll(".label")];
  const here = buttons.indexOf(document.activeElement);
  if (here < 0 && (document.activeElement !== query || event.key === "ArrowUp" || query.value.includes("\n"))) return;
  const next = here + (event.key === "ArrowDown" ? 1 : -1);
  event.preventDefault();
  (next < 0 ? query : buttons[Math.min(next, buttons.length - 1)])?.focus();
}

// What the models do, and texts to try them with.
function welcome() {
  const { model, info } = models[0];
  const who = models.length > 1 ? model : "It";
  const measured = info.evaluated ?? {};
  const learnt = info.points
    ? `${who} learnt from ${counted(info.points, "text")}${info.dataset ? ` of ${info.dataset}` : ""}. `
    : "";
  const first = info.metrics?.["P@1"];
  const share =
    measured.split && measured.split !== "train" && typeof first === "number"
      ? ` On ${counted(measured.points ?? 0, "text")} that it had not seen, the first label was right ${Math.round(first)} times out of 100.`
      : "";
  const worth = info.probabilities ? "how likely it is" : "its score";
  const parts = [
    make("h2", { text: `Which of ${counted(info.labels, "label")} does a text have?` }),
    make("p", { text: `${learnt}Type a text: the labels that fit best come first, each with ${worth}.${share}` }),
  ];
  const examples = info.examples ?? [];
  if (examples.length) {
    const title = examples.every((example) => example.held_out)
      ? "Texts that it has not seen"
      : "Texts from its training";
    const chips = examples.map((example) => button(example.text, () => use(example.text), { class: "chip" }));
    parts.push(
      make("h3", { id: "try", text: title }),
      make("div", { class: "chips", role: "group", "aria-labelledby": "try" }, ...chips),
    );
  }
  const marks = ["head", "torso", "tail"].map((bin) => mark({ bin, frequency: 1 }, { count: false }));
  parts.push(make("p", { class: "hint legend" }, "How frequent a label was in training: ", ...marks));
  document.getElementById("welcome").replaceChildren(...parts);
}

function chips() {
  const box = document.getElementById("models");
  box.hidden = models.length < 2;
  const made = models.map((one) =>
    button(
      one.model,
      (element) => {
        one.off = !one.off;
        element.setAttribute("aria-pressed", String(!one.off));
        predict();
      },
      { class: "chip", "aria-pressed": "true" },
    ),
  );
  box.replaceChildren(...made);
}

async function begin() {
  const words = new URLSearchParams(location.search);
  if (VIEWS.includes(words.get("view"))) select(words.get("view"));
  query.value = words.get("q") ?? query.value;
  if ([...count.options].some((option) => option.value === words.get("k"))) count.value = words.get("k");
  const label = words.get("label");
  try {
    const first = await ask("/v1/model");
    const others = first.models.filter((name) => name !== first.name);
    const infos = await Promise.all(others.map((name) => ask(`/v1/model?model=${encodeURIComponent(name)}`)));
    models = [first, ...infos].map((info) => ({ model: info.name, info, off: false }));
    const about = [models.map(({ model }) => model).join(", "), first.dataset, counted(first.labels, "label")];
    document.getElementById("about").textContent = about.filter(Boolean).join(" · ");
    welcome();
    chips();
    const names = models.map(({ model }) => model);
    const show = (entry, model, from) => open({ id: entry.id, text: entry.text, model, query: query.value, from, use });
    beginTable(models, use);
    beginLabels(names, { show, use, changed: () => query.value.trim() && predict({ keep: true }) });
    if (view === "ask") query.focus();
    const asked = predict();
    const model = names.includes(words.get("model")) ? words.get("model") : names[0];
    if (/^\d{1,10}$/.test(label ?? "")) {
      await asked;
      await open({ id: Number(label), model, query: query.value, use, explained: (found) => highlight(found) });
    }
  } catch (reason) {
    say(status, reason.message, true);
  }
}

whenChanged((label) => {
  chosen = label;
  address();
});
begin();
