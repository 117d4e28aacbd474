// Ranked labels: one row for each, with a bar for each model that has it.

import { mark } from "./note.js";
import { ask, button, draw, make, percent, rounded } from "./service.js";

const THUMB = "M3 10h4v11H3zM9 20V10l4-8c1.8 0 2.6 1.3 2.3 2.9L14.6 8.5H20a2 2 0 0 1 2 2.3l-1.2 7.5a2 2 0 0 1-2 1.7z";

// Join the answers of several models: a label is the same where its text is. Labels stand by their mean probability, or
// by their places where a model has none.
export function join(answers) {
  const rows = new Map();
  const probable = answers.every(({ info }) => info.probabilities);
  answers.forEach(({ labels }, column) => {
    const seen = new Map(); // two labels of a model may have the same text
    labels.forEach((label, place) => {
      const before = seen.get(label.text) ?? 0;
      seen.set(label.text, before + 1);
      const name = `${label.text}\n${before}`;
      if (!rows.has(name)) rows.set(name, { text: label.text, cells: answers.map(() => null), worth: 0 });
      const row = rows.get(name);
      row.cells[column] = { ...label, place };
      row.worth += probable ? label.score : 1 / (place + 1);
    });
  });
  return [...rows.values()].sort((one, other) => other.worth - one.worth);
}

function shown({ info }, label) {
  return info.probabilities ? percent(label.score) : rounded(label.score);
}

// Bars of probabilities are absolute: a full one is certain. Other scores have no scale, so theirs is the best label's.
function meter(answer, label, several) {
  const { model, info, labels } = answer;
  const who = make("span", { class: several ? "who" : "hidden", text: model });
  if (!label)
    return make("div", { class: "meter none" }, who, make("span", { class: "score", text: "not in its list" }));
  const most = info.probabilities ? 1 : Math.max(labels[0].score, 1e-9);
  const fill = make("span", { class: "fill" });
  fill.style.width = `${(100 * Math.max(0, Math.min(1, label.score / most))).toFixed(1)}%`;
  const track = make("span", { class: info.probabilities ? "track" : "track relative", "aria-hidden": "true" }, fill);
  const place = several ? make("span", { class: "place", text: `#${label.place + 1}` }) : "";
  return make(
    "div",
    { class: "meter" },
    who,
    track,
    place,
    make("span", { class: "score", text: shown(answer, label) }),
  );
}

function judge(row, answer, text) {
  const label = row.cells[answer.column];
  const box = make("div", { class: "judge" });
  for (const [good, name] of [
    [true, "Right"],
    [false, "Wrong"],
  ]) {
    const icon = draw(
      "svg",
      { viewBox: "0 0 24 24", class: good ? "" : "down", "aria-hidden": "true" },
      draw("path", { d: THUMB }),
    );
    const element = button(
      "",
      async () => {
        try {
          await ask("/v1/feedback", { body: { text, label: label.id, good, model: answer.model } });
          box.querySelectorAll("button").forEach((other) => other.setAttribute("aria-pressed", other === element));
        } catch (reason) {
          element.title = reason.message;
          element.classList.add("wrong");
        }
      },
      { class: "thumb", "aria-label": `${name}: ${row.text}`, "aria-pressed": "false", title: name },
    );
    element.append(icon);
    box.append(element);
  }
  return box;
}

function line(row, place, answers, { text, truth, choose }) {
  const several = answers.length > 1;
  const column = row.cells.findIndex(Boolean);
  const label = row.cells[column];
  const right = truth?.has(row.text);
  const kind = label.frequency === 0 ? "new" : (label.bin ?? "");
  const values = answers.map((answer, at) => {
    const value = row.cells[at] ? shown(answer, row.cells[at]) : "not in its list";
    return several ? `${answer.model} ${value}` : value;
  });
  const name = [`${place + 1}: ${row.text}`, ...values, kind, right ? "true label" : ""].filter(Boolean).join(", ");
  const opener = button(row.text, (element) => choose(row, answers, element), {
    class: "label",
    "aria-label": name,
    "aria-expanded": "false",
    "aria-controls": "details",
  });
  const found = row.cells.filter(Boolean).length;
  const only = several && found < answers.length ? " only" : "";
  return make(
    "li",
    { class: `row-label${only}${right ? " right" : ""}` },
    make("span", { class: "rank", text: place + 1, "aria-hidden": "true" }),
    make("div", { class: "what" }, opener, right ? make("span", { class: "true", text: "✓ true" }) : "", mark(label)),
    answers[0].info.feedback ? judge(row, { ...answers[column], column }, text) : "",
    make("div", { class: "meters" }, ...answers.map((answer, at) => meter(answer, row.cells[at], several))),
  );
}

// The best probability of all models that have one; null where none has.
export function certainty(answers) {
  const best = answers
    .filter(({ info, labels }) => info.probabilities && labels.length)
    .map(({ labels }) => labels[0].score);
  return best.length ? Math.max(...best) : null;
}

function doubts(answers) {
  const best = certainty(answers);
  if (best === null || best >= 0.5) return [];
  return [
    make(
      "div",
      { class: "doubt" },
      make("strong", { text: "Not sure." }),
      ` The best label has ${percent(best)}: of such predictions more were wrong than right.`,
    ),
  ];
}

function missed(rows, truth) {
  const names = truth ? [...truth].filter((name) => !rows.some((row) => row.text === name)) : [];
  return names.length
    ? [make("p", { class: "hint", text: `True labels that are not here: ${names.join(" · ")}` })]
    : [];
}

export function results(answers, context) {
  const rows = join(answers);
  if (!rows.length)
    return [make("p", { class: "card empty", text: "No label: no model here knows any of these words." })];
  const several = answers.length > 1;
  const heads = several
    ? [
        make(
          "div",
          { class: "heads", "aria-hidden": "true" },
          ...answers.map(({ model }) => make("span", { text: model })),
        ),
      ]
    : [];
  const list = make(
    "ol",
    { class: "rows", "aria-label": "Labels" },
    ...rows.map((row, place) => line(row, place, answers, context)),
  );
  const scores = answers.filter(({ info }) => !info.probabilities).map(({ model }) => model);
  const scale = scores.length
    ? [
        make("p", {
          class: "hint",
          text: `${scores.join(", ")}: scores, not probabilities. Bars are relative to the best label.`,
        }),
      ]
    : [];
  const card = make(
    "section",
    { class: "card ranked", "aria-label": "Labels of the text" },
    ...heads,
    list,
    ...missed(rows, context.truth),
    ...scale,
  );
  card.classList.toggle("unsure", doubts(answers).length > 0);
  card.style.setProperty("--models", answers.length);
  return [...doubts(answers), card];
}
