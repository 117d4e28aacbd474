// A column of texts in, a table of labels out, as CSV too.

import { ask, button, copy, counted, make, percent, rounded, say } from "./service.js";

const MOST = 10_000; // texts
const BLOCK = 200; // texts of a request
const SHOWN = 300; // rows on the page; the file has all
const told = document.getElementById("told");
const which = document.getElementById("which");
const sure = document.getElementById("sure");
let csv = "";
let turn = 0;

function cell(value) {
  const text = String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function toCsv(rows, each) {
  const places = Array.from({ length: each }, (_, place) => place);
  const head = ["text", ...places.flatMap((place) => [`label_${place + 1}`, `score_${place + 1}`])];
  const lines = rows.map(({ text, labels }) => [
    text,
    ...places.flatMap((place) => (labels[place] ? [labels[place].text, labels[place].score] : ["", ""])),
  ]);
  return [head, ...lines].map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

function table(rows, each, probable, use) {
  const heads = ["Text", ...Array.from({ length: each }, (_, place) => `Label ${place + 1}`)];
  const body = rows.slice(0, SHOWN).map(({ text, labels }) => {
    const cells = Array.from({ length: each }, (_, place) => {
      const label = labels[place];
      if (!label) return make("td", {}, make("span", { class: "hint", text: place ? "" : "not sure of any" }));
      const score = probable ? percent(label.score) : rounded(label.score);
      return make("td", {}, label.text, make("span", { class: "score", text: ` ${score}` }));
    });
    return make(
      "tr",
      {},
      make(
        "th",
        { scope: "row" },
        button(text, () => use(text), { class: "link" }),
      ),
      ...cells,
    );
  });
  return make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...body),
  );
}

async function fill(models, use) {
  const own = ++turn;
  const lines = document
    .getElementById("lines")
    .value.split(/\r?\n/)
    .map((line) => line.trim());
  const texts = lines.filter(Boolean);
  const filled = document.getElementById("filled");
  filled.hidden = true;
  if (!texts.length) return say(told, "Paste some texts first.", true);
  if (texts.length > MOST)
    return say(told, `At most ${counted(MOST, "text")} at once; \`longtail predict\` takes any number.`, true);
  const { model, info } = models.find((one) => one.model === which.value) ?? models[0];
  const each = Number(document.getElementById("each").value);
  const more = {
    ...(info.probabilities ? { probabilities: true } : {}),
    ...(sure.checked && info.thresholds ? { decide: "global" } : {}),
  };
  const rows = [];
  try {
    for (let start = 0; start < texts.length; start += BLOCK) {
      say(told, `${start.toLocaleString("en")} of ${counted(texts.length, "text")} …`);
      const block = texts.slice(start, start + BLOCK);
      const answer = await ask("/v1/predict", { body: { texts: block, k: each, model, ...more } });
      if (own !== turn) return;
      answer.predictions.forEach(({ labels }, place) => rows.push({ text: block[place], labels }));
    }
  } catch (reason) {
    return say(told, reason.message, true);
  }
  csv = toCsv(rows, each);
  document.getElementById("sheet").replaceChildren(table(rows, each, info.probabilities, use));
  filled.hidden = false;
  const rest = rows.length > SHOWN ? `, the first ${SHOWN} below, all in the CSV` : "";
  say(told, `${counted(rows.length, "text")} with their labels${rest}.`);
}

export function beginTable(models, use) {
  which.replaceChildren(...models.map(({ model }) => make("option", { text: model, value: model })));
  document.getElementById("which-label").hidden = models.length < 2;
  document.getElementById("sure-label").hidden = !models.some(({ info }) => info.thresholds);
  document.getElementById("many").addEventListener("submit", (event) => {
    event.preventDefault();
    fill(models, use);
  });
  document.getElementById("copy-csv").addEventListener("click", (event) => copy(csv, event.currentTarget));
  document.getElementById("download").addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
    make("a", { href: address, download: "labels.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
}
