// Elements, made of names and text. Text is always a text node: names of files and classes are not HTML.

import { el, there, tint } from "./views/dom.js"; // those of the report

export { chip, el, plural as count, shareBar, tint } from "./views/dom.js";

/** Replaces the content of an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...there(children));
  return parent;
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
