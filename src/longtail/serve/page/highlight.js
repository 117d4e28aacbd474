// The words that mattered, marked behind the text that is typed.

import { make } from "./service.js";

const query = document.getElementById("query");
const echo = document.getElementById("echo");
// As data/unspaced.py cuts texts: letters of languages without spaces one by one with their marks, and words.
const LETTERS =
  "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3040-\\u30ff\\u31f0-\\u31ff\\uff66-\\uff9f" +
  "\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}";
const MARKS =
  "\\u0300-\\u036f\\u0591-\\u05bd\\u0610-\\u061a\\u064b-\\u065f\\u0670\\u0900-\\u0963\\u0966-\\u0dff";
const PIECE = new RegExp(
  `[${LETTERS}](?:(?=[${LETTERS}])\\p{M})*|(?:(?![${LETTERS}])[\\p{L}\\p{N}_]|[${MARKS}])+`,
  "gu",
);
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
  for (const found of text.matchAll(PIECE)) {
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
