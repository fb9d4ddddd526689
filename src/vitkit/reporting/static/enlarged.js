// Dialogs: one photograph enlarged, and the photographs that belong to a clicked element.

import { el } from "./dom.js";
import { Gallery, photograph } from "./gallery.js";

/** One photograph after another: arrow keys turn, Escape closes. `mapsOf(i)`: [caption, address] of pictures beside it. */
export class Enlarged {
  constructor(images, mapsOf = () => [], actionsOf = () => []) {
    Object.assign(this, { images, mapsOf, actionsOf });
    this.body = el("div", { class: "enlarged" });
    this.where = el("p", { class: "soft", "aria-live": "polite" });
    this.back = el("button", { type: "button", onclick: () => this.turn(-1) }, "Previous");
    this.next = el("button", { type: "button", onclick: () => this.turn(1) }, "Next");
    this.element = dialog("Photograph", this.where, this.body, el("p", { class: "buttons" }, this.back, this.next));
    this.element.addEventListener("keydown", (event) => {
      if (event.target.closest("input, select, textarea")) return; // which use the arrow keys themselves
      if (event.key === "ArrowLeft") this.turn(-1);
      if (event.key === "ArrowRight") this.turn(1);
    });
  }

  /** Show the image at this position of a list. */
  open(list, place) {
    Object.assign(this, { list, place });
    this.show();
    if (!this.element.open) this.element.showModal();
  }

  turn(by) {
    if (this.list[this.place + by] === undefined) return;
    this.place += by;
    this.show();
  }

  show() {
    const i = this.list[this.place];
    const { images } = this;
    const lines = images.lines(i).map((line) => el("p", {}, line));
    const maps = this.mapsOf(i).map(([caption, address]) =>
      el("figure", {}, photograph(address, caption), el("figcaption", {}, caption)),
    );
    const main = el("figure", {}, photograph(images.largeOf(i), `photograph ${images.path[i]}`));
    const legend = el("p", { class: "small soft" }, "Bright parts speak for the class. The model sees only what is inside the frame.");
    this.body.replaceChildren(el("div", { class: "maps" }, main, ...maps), ...(maps.length ? [legend] : []), ...lines, el("p", {}, images.path[i]), ...this.actionsOf(i));
    this.where.textContent = `${this.place + 1} of ${this.list.length}`;
    this.back.disabled = this.place === 0;
    this.next.disabled = this.place === this.list.length - 1;
    if (document.activeElement === document.body || document.activeElement?.disabled) this.element.focus(); // keys go on turning
  }
}

/** A gallery of the photographs that belong to a clicked element. */
export class Selected {
  constructor(images, enlarge) {
    Object.assign(this, { images, enlarge });
    this.body = el("div");
    this.note = el("p", { class: "soft" });
    this.element = dialog("Photographs", this.note, this.body);
  }

  /** Show these images under a title; `expected` is how many there are, listed here or not. */
  open(title, chosen, expected = chosen.length) {
    this.element.querySelector("h2").textContent = title;
    const here = chosen.length;
    this.note.textContent = here < expected ? `${here} of these ${expected} images are listed in this page.` : "";
    this.body.replaceChildren(new Gallery(this.images, { chosen, page: 24, enlarge: this.enlarge }).element);
    this.element.showModal();
  }
}

function dialog(title, ...children) {
  const close = el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => element.close() }, "\u00d7");
  const id = `dialog-${document.querySelectorAll("dialog").length}`;
  const head = el("div", { class: "head" }, el("h2", { id }, title), close);
  const element = el("dialog", { "aria-labelledby": id, tabindex: "-1" }, head, ...children);
  element.addEventListener("click", (event) => {
    if (event.target === element) element.close(); // beside it
  });
  return element;
}
