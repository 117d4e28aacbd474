// The words that mattered, marked behind the text that is typed.

import { make } from "./service.js";

const query = document.getElementById("query");
const echo = document.getElementById("echo");
const WORD = /[\p{L}\p{M}\p{N}_]+/gu;
let weights = new Map(); // word → share of the largest

export function highlight(words) {
  const largest = Math.max(0, ...words.map((word) => word.score));
  const carried = words.filter((word) => word.score > 0.02 * largest);
  weights = new Map(carried.map((word) => [word.text, word.score / largest]));
  render();
}

export function render() {
  const text = query.value;
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(WORD)) {
    const share = weights.get(found[0].toLowerCase());
    if (share === undefined) continue;
    const marked = make("mark", { text: found[0] });
    marked.style.setProperty("--share", `${Math.round(20 + 80 * share)}%`);
    parts.push(text.slice(end, found.index), marked);
    end = found.index + found[0].length;
  }
  echo.replaceChildren(...parts, `${text.slice(end)}\n`);
  echo.scrollTop = query.scrollTop;
}

query.addEventListener("input", render);
query.addEventListener("scroll", () => (echo.scrollTop = query.scrollTop));
