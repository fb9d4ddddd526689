// Elements, made of names and text. Text is always a text node: names of files and classes are not HTML.

import { el, there, tint } from "./views/dom.js"; // those of the report

export { chip, choice, el, percent, plural as count, search, shareBar, svg, takeDrops, tint } from "./views/dom.js";

/** Replaces the content of an element; the focus stays on what has the same `data-focus` as what had it. */
export function fill(parent, ...children) {
  const had = parent.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  parent.replaceChildren(...there(children));
  if (had !== undefined) parent.querySelector(`[data-focus="${CSS.escape(had)}"]`)?.focus();
  return parent;
}

/** Adds a style sheet to the page; resolves once it is there, since sizes that are measured before would be wrong. */
export async function styleSheet(href) {
  const sheet = el("link", { rel: "stylesheet", href });
  const loaded = new Promise((done) => { sheet.onload = sheet.onerror = done; });
  document.head.append(sheet);
  await loaded;
  return sheet;
}

/** The number key of a class, in the colour of the class; its name stands beside it. */
export function keyOf(place) {
  return tint(el("kbd", { "aria-hidden": "true" }, place < 9 ? String(place + 1) : ""), place);
}

/** A sentence to act on with its level, a large figure, and what stands beside it. */
export function verdict({ level, sentence }, figure = null, beside = [], name = "Verdict") {
  return el("section", { class: "panel verdict", "data-level": level, "aria-label": name }, figure && el("span", { class: "figure" }, figure), el("div", {}, el("p", { class: "sentence wrap" }, sentence), beside.flat()));
}

/** A finding, with the colour and the icon of its level: problem, warning, note or good. */
export function finding(level, ...inside) {
  return el("div", { class: "finding", "data-level": level }, el("div", { class: "wrap" }, ["problem", "warning"].includes(level) && el("span", { class: "unseen" }, `${level}: `), inside));
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
