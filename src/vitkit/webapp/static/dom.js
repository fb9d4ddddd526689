// Elements, made of names and text. Text is always a text node: names of files and classes are not HTML.

import { el, there } from "./views/dom.js"; // those of the report

export { el, plural as count } from "./views/dom.js";

/** Replaces the content of an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...there(children));
  return parent;
}

const TONES = 10; // colours of classes, as in the style sheet

/** Shows the colour of a class by its place among the classes (-1: none). */
export function tint(node, place) {
  if (place < 0) delete node.dataset.tone;
  else node.dataset.tone = place % TONES;
  return node;
}

/** The number key of a class, in the colour of the class; its name stands beside it. */
export function keyOf(place) {
  return tint(el("kbd", { "aria-hidden": "true" }, place < 9 ? String(place + 1) : ""), place);
}

/** Shows a dialog that closes on Escape and on its button; returns the element. */
export function dialog(title, ...children) {
  const made = el("dialog", { class: "dialog", "aria-label": title },
    el("header", {}, el("h2", {}, title), el("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => made.close() }, "✕")),
    ...children);
  made.addEventListener("close", () => made.remove());
  made.addEventListener("click", (event) => { if (event.target === made) made.close(); });
  document.body.append(made);
  made.showModal();
  return made;
}
