// Hints for people who are here for the first time, one at a time: each stays until it is followed or closed.

import { el, fill, finding } from "./dom.js";

const KEPT = "vitkit-hints"; // in localStorage: the names of the hints that are not shown again

export class Hints {
  /** hints: [{ name, fits(), says }] in the order of the work; `says` has texts and elements. */
  constructor(hints) {
    this.hints = hints;
    this.element = el("div", { role: "status" });
    try {
      this.known = new Set(JSON.parse(localStorage.getItem(KEPT) || "[]"));
    } catch { // browsers may forbid it
      this.known = new Set();
    }
  }

  draw() {
    const hint = this.hints.find((own) => !this.known.has(own.name) && own.fits());
    if (hint === this.shown) return;
    this.shown = hint;
    fill(this.element, hint && finding("note", el("div", { class: "row hint" }, el("span", {}, hint.says), el("button", { type: "button", class: "quiet", "aria-label": "Hide this hint", onclick: () => this.done(hint.name) }, "✕"))));
  }

  /** The hint was followed or closed, and is never shown again. */
  done(name) {
    if (this.known.has(name)) return;
    this.known.add(name);
    try {
      localStorage.setItem(KEPT, JSON.stringify([...this.known]));
    } catch { /* it is shown again the next time */ }
    this.draw();
  }
}
