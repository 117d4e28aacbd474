// A label and the labels that share texts with it: a line is the thicker the more they share. Neighbours that are
// neighbours of each other are joined as well.

import { ask, draw } from "./service.js";

const MOST = 7;
const STEP = 30;
const WIDTH = 380;
const HUB = 26; // where the label stands, from the left
const COLUMN = 150; // and its neighbours

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

export async function graph(place, label, neighbours, model, choose) {
  const shown = neighbours.slice(0, MOST);
  const height = STEP * shown.length + 10;
  const middle = height / 2;
  const at = (number) => 5 + STEP * (number + 0.5);
  const most = Math.max(...shown.map((entry) => entry.score), 1e-9);
  const picture = draw("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`,
    role: "img",
    "aria-label": `${label.text} and ${shown.length} labels of the same texts`,
  });
  const between = draw("g", { class: "between" });
  picture.append(between);
  shown.forEach((entry, number) => {
    const bend = (HUB + COLUMN) / 2;
    picture.append(
      draw("path", {
        class: "edge",
        d: `M${HUB} ${middle}C${bend} ${middle} ${bend} ${at(number)} ${COLUMN} ${at(number)}`,
        "stroke-width": (1 + (5 * entry.score) / most).toFixed(1),
      }),
    );
  });
  picture.append(draw("circle", { class: "hub", cx: HUB, cy: middle, r: 11 }));
  shown.forEach((entry, number) => {
    const node = draw(
      "g",
      { class: "node" },
      draw("title", {
        text: `${entry.text}: ${Math.round(100 * entry.score)} % of the texts of this label have it too`,
      }),
      draw("circle", { cx: COLUMN, cy: at(number), r: 6 }),
      draw("text", { x: COLUMN + 12, y: at(number) + 4, text: shortened(entry.text, 28) }),
    );
    node.addEventListener("click", () => choose(entry));
    picture.append(node);
  });
  place.replaceChildren(picture);
  const numbers = new Map(shown.map((entry, number) => [entry.id, number]));
  const pairs = new Set();
  const found = await Promise.all(
    shown.map((entry) => ask(`/v1/labels/${entry.id}?model=${encodeURIComponent(model)}`).catch(() => ({}))),
  );
  found.forEach(({ neighbours: others }, number) => {
    for (const other of Array.isArray(others) ? others : []) {
      const to = numbers.get(other.id);
      const pair = [number, to].sort((one, two) => one - two).join();
      if (to === undefined || to === number || pairs.has(pair)) continue;
      pairs.add(pair);
      const bulge = COLUMN - 14 - 9 * Math.abs(to - number);
      between.append(
        draw("path", { d: `M${COLUMN} ${at(number)}C${bulge} ${at(number)} ${bulge} ${at(to)} ${COLUMN} ${at(to)}` }),
      );
    }
  });
}
