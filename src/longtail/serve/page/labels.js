// All labels: searched, browsed, added, taken back.

import { mark } from "./note.js";
import { ask, button, counted, make, say } from "./service.js";

const PAGE = 50;
const DEBOUNCE = 150; // milliseconds
const list = document.getElementById("label-list");
const more = document.getElementById("more");
const words = document.getElementById("words");
const whose = document.getElementById("whose");
const found = document.getElementById("found");
const grown = document.getElementById("grown");
const undo = document.getElementById("undo");
let changes = 0; // labels added in this tab that can be undone
let turn = 0;
let timer = 0;

async function load(show, { onward = false } = {}) {
  const own = ++turn;
  const offset = onward ? list.children.length : 0;
  const model = whose.value;
  const text = words.value.trim();
  const parameters = new URLSearchParams({ model, limit: PAGE, offset, ...(text ? { text } : {}) });
  try {
    const { labels, count } = await ask(`/v1/labels?${parameters}`);
    if (own !== turn) return;
    const items = labels.map((label) => {
      const opener = button(label.text, (element) => show(label, model, element), {
        class: "label",
        "aria-expanded": "false",
      });
      return make("li", { class: "row-label" }, make("div", { class: "what" }, opener, mark(label)));
    });
    if (onward) list.append(...items);
    else list.replaceChildren(...items);
    more.hidden = labels.length < PAGE;
    const total = list.children.length;
    const all = `${counted(count, "label")} in all.`;
    const some = more.hidden ? counted(total, "label") : `The first ${counted(total, "label")}`;
    say(found, text ? `${some} with these words; ${all}` : all);
    if (onward) items[0]?.querySelector("button").focus();
  } catch (reason) {
    say(found, reason.message, true);
  }
}

async function change(names, work, done) {
  try {
    for (const model of names) await work(model);
    say(grown, done);
    return true;
  } catch (reason) {
    say(grown, reason.message, true);
    return false;
  }
}

export function beginLabels(names, { show, use, changed }) {
  whose.replaceChildren(...names.map((name) => make("option", { text: name, value: name })));
  document.getElementById("whose-label").hidden = names.length < 2;
  const reload = () => load(show);
  document.getElementById("find").addEventListener("submit", (event) => {
    event.preventDefault();
    reload();
  });
  words.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(reload, DEBOUNCE);
  });
  whose.addEventListener("change", reload);
  more.addEventListener("click", () => load(show, { onward: true }));
  document.getElementById("tab-labels").addEventListener("click", () => list.children.length || reload());
  document.getElementById("tab-labels").addEventListener("focus", () => list.children.length || reload());
  if (!document.getElementById("view-labels").hidden) reload();

  document.getElementById("add").addEventListener("submit", async (event) => {
    event.preventDefault();
    const field = document.getElementById("new-label");
    const text = field.value.trim();
    if (!text) return;
    const add = (model) => ask("/v1/labels", { body: { labels: [{ text }], model } });
    if (!(await change(names, add, `Added “${text}”. It can be predicted now.`))) return;
    grown.append(
      " ",
      button("Try it", () => use(text), { class: "link" }),
    );
    changes += 1;
    undo.disabled = false;
    field.value = "";
    reload();
    changed();
  });
  undo.addEventListener("click", async () => {
    const undoLast = (model) => ask("/v1/labels/undo", { body: { model } });
    if (!(await change(names, undoLast, "Took the last label back."))) return;
    changes -= 1;
    undo.disabled = changes === 0;
    reload();
    changed();
  });
}
