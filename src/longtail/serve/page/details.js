// The sheet beside the results, or below on a phone: what is known of a label, and why the text gets it.

import { graph } from "./graph.js";
import { mark } from "./note.js";
import { ask, button, copy, counted, make, percent } from "./service.js";

const sheet = document.getElementById("details");
let opener = null;
let opened = null; // { id, model }, so that a late answer for another label is dropped
let changed = () => {}; // told which label is open, or null

export function whenChanged(work) {
  changed = work;
}

// Whoever types on keeps the focus; else it goes back to where the sheet was opened.
export function close({ back = true } = {}) {
  if (sheet.hidden) return false;
  sheet.hidden = true;
  document.body.classList.remove("beside");
  opened = null;
  opener?.setAttribute("aria-expanded", "false");
  if (back) opener?.focus();
  opener = null;
  changed(null);
  return true;
}

// Words, points and labels have their numbers under different names.
export function entries(value) {
  return (Array.isArray(value) ? value : []).map((item) => {
    if (item === null || typeof item !== "object") return { text: String(item) };
    const text = item.text ?? item.word ?? "";
    return { ...item, text: String(text), score: item.score ?? item.weight ?? item.similarity };
  });
}

function section(title, ...content) {
  return make("section", {}, make("h3", { text: title }), ...content);
}

function words(entries) {
  const largest = Math.max(...entries.map((word) => Math.abs(word.score ?? 1)), 1e-9);
  const box = make("ul", { class: "words" });
  for (const word of entries) {
    const share = Math.round((100 * Math.max(0, word.score ?? 1)) / largest);
    const element = make(
      "li",
      { class: "word" },
      word.text,
      make("span", { class: "hidden", text: ` ${share} of 100` }),
    );
    element.style.setProperty("--share", `${share}%`);
    box.append(element);
  }
  return box;
}

function list(entries, choose) {
  const items = entries.map((entry) =>
    make(
      "li",
      {},
      button(entry.text, () => choose(entry), { class: "link" }),
      make("span", { class: "hint", text: entry.note ?? "" }),
    ),
  );
  return make("ul", {}, ...items);
}

// `cells` are the models that found the label, each with the label's number there.
export async function open({ id, text, model, query, from, use, cells = [], explained = () => {} }) {
  if (from) {
    opener?.setAttribute("aria-expanded", "false");
    opener = from;
    opener.setAttribute("aria-expanded", "true");
  }
  const request = (opened = { id, model });
  const title = make("h2", { id: "details-title", text: text ?? "…" });
  const facts = make("div", { class: "facts", text: "…" });
  sheet.replaceChildren(
    make(
      "header",
      {},
      title,
      button("Close", () => close(), { class: "close" }),
    ),
    facts,
  );
  sheet.hidden = false;
  document.body.classList.add("beside");
  sheet.scrollTop = 0;
  sheet.focus();
  changed({ id, model });
  const again = (other) => open({ ...other, query, use, explained });
  const parameters = `?model=${encodeURIComponent(model)}`;
  try {
    const [label, explanation] = await Promise.all([
      ask(`/v1/labels/${id}${parameters}`),
      query.trim() ? ask("/v1/explain", { body: { text: query, label: id, model } }).catch(() => ({})) : {},
    ]);
    if (opened !== request) return;
    title.textContent = label.text;
    explained(entries(explanation.words), label.text);
    show(label, explanation, facts, { model, use, again, cells });
  } catch (reason) {
    if (opened === request) facts.textContent = reason.message;
  }
}

function show(label, explanation, facts, { model, use, again, cells }) {
  facts.replaceChildren(mark(label), make("span", { text: counted(label.frequency ?? 0, "training text") }));
  facts.append(make("span", { text: `label ${label.raw_id ?? label.id}` }));
  if (typeof explanation.probability === "number")
    facts.prepend(make("strong", { text: percent(explanation.probability) }));
  if (explanation.rank) facts.append(make("span", { text: `place ${explanation.rank}` }));
  facts.append(button("Copy link", (element) => copy(location.href, element), { class: "link" }));
  if (cells.length > 1) {
    const chips = cells.map((cell) =>
      button(cell.model, () => again({ id: cell.id, text: label.text, model: cell.model, cells }), {
        class: "chip",
        "aria-pressed": String(cell.model === model),
      }),
    );
    sheet.append(make("div", { class: "chips", role: "group", "aria-label": "As seen by" }, ...chips));
  }
  const other = (entry) => again({ id: entry.id, text: entry.text, model });
  const weighted = entries(explanation.words);
  const looked = entries(explanation.looked);
  const near = entries(explanation.points).map((point) => ({ ...point, note: point.has ? " has this label" : "" }));
  const similar = entries(explanation.label_texts);
  const neighbours = entries(label.neighbours).filter((entry) => entry.id >= 0);
  const examples = entries(label.examples);
  if (weighted.length) sheet.append(section("Words that carried it", words(weighted)));
  if (looked.length) sheet.append(section("Words that this label looks at", words(looked)));
  if (neighbours.length) {
    const place = make("div", { class: "graph" });
    const shared = neighbours.map((entry) => ({ ...entry, note: ` ${Math.round(100 * entry.score)} %` }));
    sheet.append(section("Labels of the same texts", place, list(shared, other)));
    graph(place, label, neighbours, model, other);
  }
  if (near.length)
    sheet.append(
      section(
        "Nearest training texts",
        list(near, (entry) => use(entry.text)),
      ),
    );
  if (similar.length) sheet.append(section("Nearest label texts", list(similar, other)));
  if (examples.length)
    sheet.append(
      section(
        "Texts that have it",
        list(examples, (entry) => use(entry.text)),
      ),
    );
  if (!neighbours.length && !examples.length)
    sheet.append(make("p", { class: "hint", text: "No neighbours and no examples." }));
}
