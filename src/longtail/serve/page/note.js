// Head, torso, tail, new: what a mark means, when the pointer is over it, and when it is tapped or pressed.

import { counted, make } from "./service.js";

const MEANING = {
  head: "Head: the most frequent labels, which together hold about a third of all training pairs.",
  torso: "Torso: labels of middling frequency. The frequent and the rare ones hold about a third of the pairs each.",
  tail: "Tail: the rarest labels. There are many, and together they hold about a third of all training pairs.",
  new: "New: added after training. It is found by the words of its text alone.",
};
const note = document.getElementById("note");
let shown = null; // the mark whose note is open
let pinned = false; // by a tap: it stays when the pointer leaves

function show(mark, text) {
  shown?.removeAttribute("aria-describedby");
  shown = mark;
  mark.setAttribute("aria-describedby", "note");
  note.textContent = text;
  note.hidden = false;
  const place = mark.getBoundingClientRect();
  const left = Math.min(place.left, document.documentElement.clientWidth - note.offsetWidth - 8);
  const below = place.bottom + 6 + note.offsetHeight < window.innerHeight;
  note.style.left = `${Math.max(8, left)}px`;
  note.style.top = `${below ? place.bottom + 6 : place.top - note.offsetHeight - 6}px`;
}

export function hideNote() {
  const was = !note.hidden;
  note.hidden = true;
  pinned = false;
  shown?.removeAttribute("aria-describedby");
  shown = null;
  return was;
}

export function mark({ frequency, bin }, { count = true } = {}) {
  const kind = frequency === 0 ? "new" : bin;
  if (!MEANING[kind]) return make("span");
  const own = count && frequency > 0 ? ` This one has ${counted(frequency, "training text")}.` : "";
  const text = MEANING[kind] + own;
  const element = make("button", { type: "button", class: `mark ${kind}`, text: kind });
  element.addEventListener("mouseenter", () => pinned || show(element, text));
  element.addEventListener("mouseleave", () => pinned || hideNote());
  element.addEventListener("focus", () => element.matches(":focus-visible") && show(element, text));
  element.addEventListener("blur", hideNote);
  element.addEventListener("click", (event) => {
    event.stopPropagation();
    if (pinned && shown === element) return hideNote();
    show(element, text);
    pinned = true;
  });
  return element;
}

document.addEventListener("click", hideNote);
document.addEventListener("scroll", hideNote, { capture: true, passive: true });
