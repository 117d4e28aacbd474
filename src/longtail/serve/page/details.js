// The panel beside the results: what is known of a label, and why the text gets it.

import { ask, make, mark, rounded } from "./service.js";

const panel = document.getElementById("details");
let opener = null;
let opened = null; // { id, model }, so that a late answer for another label is dropped

export function close() {
  if (panel.hidden) return;
  panel.hidden = true;
  opened = null;
  opener?.setAttribute("aria-expanded", "false");
  opener?.focus();
  opener = null;
}

// Lists come as texts, as [text, score] or as objects.
function entries(value) {
  return (Array.isArray(value) ? value : []).map((item) => {
    if (Array.isArray(item)) return { text: String(item[0]), score: item[1] };
    if (item === null || typeof item !== "object") return { text: String(item) };
    const text = item.text ?? item.word ?? item.name ?? "";
    return { ...item, text: String(text), score: item.score ?? item.weight ?? item.similarity, id: item.id ?? item.label };
  });
}

function section(title, ...content) {
  return [make("h3", { text: title }), ...content];
}

function words(entries) {
  const largest = Math.max(...entries.map((word) => Math.abs(word.score ?? 1)), 1e-9);
  const box = make("div", { class: "words" });
  for (const word of entries) {
    const element = make("span", { class: "word", text: word.text, title: rounded(word.score) });
    element.style.setProperty("--share", `${Math.round((100 * Math.abs(word.score ?? 1)) / largest)}%`);
    box.append(element);
  }
  return box;
}

function has(point) {
  return { ...point, note: point.has ? " has this label" : "" };
}

function list(entries, choose) {
  const items = entries.map((entry) => {
    if (!choose) return make("li", { text: entry.text });
    const button = make("button", { type: "button", class: "link", text: entry.text });
    button.addEventListener("click", () => choose(entry));
    return make("li", {}, button, make("span", { class: "hint", text: entry.note ?? "" }));
  });
  return make("ul", {}, ...items);
}

export async function open({ id, text, model, query, from, use }) {
  if (from) {
    opener?.setAttribute("aria-expanded", "false");
    opener = from;
    opener.setAttribute("aria-expanded", "true");
  }
  const request = (opened = { id, model });
  const title = make("h2", { id: "details-title", text });
  const closeButton = make("button", { type: "button", class: "close", text: "Close" });
  closeButton.addEventListener("click", close);
  const facts = make("div", { class: "facts", text: "…" });
  panel.replaceChildren(make("header", {}, title, closeButton), facts);
  panel.hidden = false;
  panel.focus();
  const parameters = `?model=${encodeURIComponent(model)}`;
  try {
    const [label, explanation] = await Promise.all([
      ask(`/v1/labels/${id}${parameters}`),
      query.trim() ? ask("/v1/explain", { body: { text: query, label: id, model } }).catch(() => ({})) : {},
    ]);
    if (opened !== request) return;
    show(label, explanation, facts, { model, query, use });
  } catch (reason) {
    if (opened === request) facts.textContent = reason.message;
  }
}

function show(label, explanation, facts, { model, query, use }) {
  const frequency = label.frequency ?? 0;
  const points = `${frequency.toLocaleString()} training ${frequency === 1 ? "point" : "points"}`;
  facts.replaceChildren(mark(label), make("span", { text: points }), make("span", { text: `label ${label.id}` }));
  if (typeof explanation.probability === "number") {
    facts.append(make("span", { text: `right in ${Math.round(100 * explanation.probability)} % of such cases` }));
  }
  const other = (entry) => open({ id: entry.id, text: entry.text, model, query, use });
  const weighted = entries(explanation.words);
  const near = entries(explanation.points ?? explanation.nearest);
  const similar = entries(explanation.label_texts);
  const neighbours = entries(label.neighbours ?? explanation.neighbours);
  const examples = entries(label.examples);
  const looked = entries(explanation.looked);
  if (looked.length) panel.append(...section("Words that this label looks at", words(looked)));
  if (weighted.length) panel.append(...section("Words that carried it", words(weighted)));
  if (near.length) panel.append(...section("Nearest training texts", list(near.map(has), (entry) => use(entry.text))));
  if (similar.length) panel.append(...section("Nearest label texts", list(similar, other)));
  if (neighbours.length) {
    panel.append(...section("Neighbours", list(neighbours, neighbours.every((entry) => entry.id >= 0) ? other : null)));
  }
  if (examples.length) panel.append(...section("Texts that have it", list(examples, (entry) => use(entry.text))));
  if (!neighbours.length && !examples.length) panel.append(make("p", { class: "hint", text: "No neighbours and no examples." }));
}
