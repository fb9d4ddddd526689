// The bar below the photographs, which assigns a class to the chosen ones.

import { count, el, fill, keyOf } from "./dom.js";

export class LabelBar {
  /** tell: { label(text), undo(), given(), keep(), follow(), alike(), look(), back() } */
  constructor(photos, tell) {
    this.photos = photos;
    this.tell = tell;
    this.list = el("datalist", { id: "class-names" });
    this.input = el("input", { type: "text", list: "class-names", maxlength: 200, autocomplete: "off", placeholder: "Class + Enter", "aria-label": "Class for the chosen photographs", oninput: () => this.hint(), onkeydown: (event) => this.pressed(event) });
    this.meant = el("span", { class: "small soft", "aria-live": "polite" });
    this.count = el("span", { class: "chosen-count" });
    this.look = el("button", { type: "button", onclick: tell.look }, "Enlarge");
    this.alike = el("button", { type: "button", onclick: tell.alike, title: "Sort the photographs by their similarity to this one" }, "More like this");
    this.out = el("button", { type: "button", title: "Use it neither for training nor for the test; the file stays where it is (Delete)", onclick: () => this.press(() => tell.label("")) }, "Leave out");
    this.none = el("button", { type: "button", title: "Back to photographs without a class", onclick: () => this.press(() => tell.label(null)) }, "No class");
    this.keep = el("button", { type: "button", title: "The label is right; it is no longer listed as suspected", onclick: () => this.press(tell.keep) }, "Keep the label");
    this.follow = el("button", { type: "button", title: "Recorded as proposed by a model", onclick: () => this.press(tell.follow) });
    this.chips = el("div", { class: "chips", role: "group", "aria-label": "Classes to give" });
    this.undo = el("button", { type: "button", title: "Ctrl+Z", onclick: () => this.press(tell.undo) }, el("span", { class: "cut given" }));
    this.element = el("div", { class: "label-bar row", role: "group", "aria-label": "Class of the chosen photographs" },
      this.chips, this.undo, this.count, this.keep, this.follow, this.input, this.list, this.meant, this.out, this.none, this.alike, this.look);
  }

  draw(ids, selected) {
    this.count.textContent = selected ? `${count(selected, "chosen", "chosen")}` : ids.length ? this.photos.file(ids[0]) : "None chosen";
    for (const button of [this.out, this.none]) button.disabled = !ids.length;
    for (const button of [this.look, this.alike]) button.disabled = ids.length !== 1;
    const { photos } = this;
    const given = this.tell.given();
    this.undo.hidden = !given;
    this.undo.firstChild.textContent = given && `Undo: ${given}`;
    const names = JSON.stringify(photos.classes.map((own) => own.name));
    if (names !== this.names) {
      this.names = names;
      fill(this.list, photos.classes.map((own) => el("option", { value: own.name })));
      fill(this.chips, photos.classes.map((own, i) => el("button", { type: "button", class: "class-chip", onclick: () => this.press(() => this.tell.label(own.name)) }, keyOf(i), el("span", { class: "cut class-name" }, own.name))));
    }
    this.keep.hidden = !ids.some((id) => photos.doubt(id));
    const classes = new Set(ids.map((id) => photos.doubt(id)?.suggested ?? photos.suggestion(id)?.[0]).filter(Boolean));
    this.follow.hidden = !classes.size;
    this.follow.textContent = classes.size === 1 ? `It is ${[...classes][0]}` : "Accept the suggestions";
  }

  press(work) {
    work();
    this.tell.back();
  }

  begin(letter) {
    this.input.focus();
    this.input.value = letter;
    this.hint();
  }

  /** The class for a text: the class with this name, the only one that begins with it, or a new one. */
  target() {
    const text = this.input.value.trim();
    const names = this.photos.classes.map((own) => own.name);
    if (!text || names.includes(text)) return text;
    const small = text.toLowerCase();
    const same = names.filter((name) => name.toLowerCase() === small);
    if (same.length === 1) return same[0];
    const begin = names.filter((name) => name.toLowerCase().startsWith(small));
    return begin.length === 1 ? begin[0] : text;
  }

  hint() {
    const target = this.target();
    const isNew = target && !this.photos.classes.some((own) => own.name === target);
    this.meant.textContent = !target ? "" : isNew ? "a new class" : target === this.input.value ? "" : `→ ${target}`;
  }

  pressed(event) {
    if (event.key === "Enter" && this.target()) {
      event.preventDefault();
      const target = this.target();
      this.input.value = "";
      this.hint();
      this.tell.label(target);
      this.tell.back();
    } else if (event.key === "Escape") {
      this.input.value = "";
      this.hint();
      this.tell.back();
    }
  }
}
