// The classes as buttons in an enlarged photograph of Results, so that a label is corrected where it is seen.

import { get, post } from "./api.js";
import { el, fill, keyOf } from "./dom.js";

const KEYS = 9; // classes with a button and a number key; further ones are in a list

export class Corrections {
  /** told: the labels since the run, as the studio sends them; classes: those of the studio; changed(): called after each label. */
  constructor(address, { images, version }, told, classes, changed) {
    Object.assign(this, { address, images, version, told, classes, changed, given: null });
  }

  /** The label that an image has now. */
  label(i) {
    return this.told.now[this.images.path[i]] ?? [this.images.true[i]].flat().map((number) => this.images.classes[number]).join(";");
  }

  /** The buttons for an image. */
  of(i) {
    if (this.told.why_not) return el("p", { class: "small soft wrap" }, this.told.why_not);
    this.i = i;
    const button = (name, ...inside) => el("button", { type: "button", "data-label": name, onclick: () => this.give(name) }, inside);
    const more = this.classes.slice(KEYS);
    this.list = more.length > 0 && el("select", { "aria-label": "Another class", onchange: () => this.list.value && this.give(this.list.value) }, el("option", { value: "" }, "It is …"), more.map((own) => el("option", { value: own.name }, own.name)));
    this.undoing = el("button", { type: "button", title: "Ctrl+Z", onclick: () => this.undo() }, "Undo");
    this.said = el("p", { role: "status" });
    this.element = el("div", {}, el("div", { class: "row", role: "group", "aria-label": "Your label" },
      this.classes.slice(0, KEYS).map((own, place) => button(own.name, keyOf(place), el("span", { class: "cut class-name" }, own.name))), this.list,
      button("", "Leave out"), this.undoing), this.said);
    this.draw();
    return this.element;
  }

  draw(error = null) {
    const label = this.label(this.i);
    const parts = Array.isArray(this.images.true[this.i]) ? label.split(";") : [label];
    for (const button of this.element.querySelectorAll("[data-label]")) button.setAttribute("aria-pressed", String(parts.includes(button.dataset.label)));
    if (this.list) this.list.value = "";
    this.undoing.hidden = this.given !== this.i;
    const now = this.told.now[this.images.path[this.i]];
    this.said.className = error ? "bad wrap" : "good";
    fill(this.said, error ? error.message : now === undefined ? "" : `your label now: ${now || "left out"}; it counts when you train again`);
  }

  /** Gives the image a class; where an image may have several, adds or takes away the class. */
  give(name) {
    let label = name;
    if (name && Array.isArray(this.images.true[this.i])) {
      const parts = this.label(this.i).split(";").filter(Boolean);
      label = (parts.includes(name) ? parts.filter((own) => own !== name) : [...parts, name]).join(";");
    }
    return this.change(this.i, () => post(`${this.address}/photographs/${this.i}/label`, { version: this.version, label }));
  }

  undo() {
    return this.change(null, async () => {
      await post("/api/data/undo");
      return get(`${this.address}/labels`);
    });
  }

  async change(given, work) {
    let error = null;
    try {
      this.told = await work();
      this.given = given;
      this.changed();
    } catch (raised) {
      error = raised;
    }
    this.draw(error);
  }

  pressed(event) {
    if (!this.element?.isConnected) return;
    const place = /^[1-9]$/.test(event.key) && !event.ctrlKey && !event.metaKey && !event.altKey ? Number(event.key) - 1 : -1;
    if (this.classes[place]) this.give(this.classes[place].name);
    else if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !this.undoing.hidden) this.undo();
    else return;
    event.preventDefault();
  }
}
