// The panel next to the photographs: filters for classes and findings.

import { NONE, OUT } from "./data_state.js";
import { dialog, el, fill, finding, keyOf, verdict } from "./dom.js";
import { stage } from "./progress.js";

export class Panel {
  /** tell: { filtered(how), edit(path, body), check(), again() } */
  constructor(photos, tell) {
    this.photos = photos;
    this.tell = tell;
    this.classes = el("ul", { class: "filters" });
    this.others = el("ul", { class: "filters" });
    this.found = el("div");
    this.more = el("div");
    this.notes = el("div", { class: "small soft" });
    const name = el("input", { type: "text", maxlength: 200, placeholder: "New class", "aria-label": "Name of a new class" });
    const add = el("form", { class: "row add-class", onsubmit: (event) => {
      event.preventDefault();
      const named = name.value.trim();
      if (named && photos.place(named) < 0) photos.classes.push({ name: named, count: 0 });
      name.value = "";
      tell.filtered();
    } }, name, el("button", {}, "Add"));
    const inside = [el("h2", {}, "Classes"), this.classes, add, this.others, this.more, this.found, this.notes,
      el("button", { type: "button", class: "quiet small", title: "The list was read when the studio was started", onclick: () => tell.again() }, "Look for new photographs")];
    this.element = el("details", { class: "data-panel panel", open: innerWidth > 640 }, el("summary", {}, "Classes and findings"), inside);
  }

  /** A further section. */
  add(element) {
    this.more.append(element);
  }

  say(lines) {
    fill(this.notes, lines.map((line) => el("p", { class: "wrap" }, line)));
  }

  draw() {
    const { photos } = this;
    if (this.told && this.old !== photos.isCheckOld) this.checking(this.told, false);
    const counts = photos.counts();
    fill(this.classes, this.choice("All", counts.all, "label", null),
      photos.classes.map((own, i) => this.choice(own.name, own.count, "label", own.name, keyOf(i), own)));
    fill(this.others,
      counts.none > 0 && this.choice("Without a class", counts.none, "label", NONE),
      counts.out > 0 && this.choice("Left out", counts.out, "label", OUT),
      photos.findings().map((own) => this.choice(own.title, own.count, "finding", own.key)));
  }

  choice(title, count, kind, value, key = null, named = null) {
    const { filter } = this.photos;
    const isOn = filter[kind] === value;
    const pressed = () => {
      if (kind === "label") filter.label = value;
      else filter[kind] = isOn ? "" : value;
      this.tell.filtered({ top: true, leaveOrder: true });
    };
    return el("li", {},
      el("button", { type: "button", class: "filter", "aria-pressed": String(isOn), title, onclick: pressed },
        key, el("span", { class: "cut" }, title), el("span", { class: "number soft" }, count.toLocaleString("en"))),
      named && el("button", { type: "button", class: "quiet more", "aria-label": `Rename, merge or remove ${title}`, onclick: () => this.change(named) }, "…"));
  }

  change(named) {
    const others = this.photos.classes.filter((own) => own.name !== named.name);
    const name = el("input", { type: "text", id: "new-name", list: "other-classes", maxlength: 200, value: named.name });
    const list = el("datalist", { id: "other-classes" }, others.map((own) => el("option", { value: own.name })));
    const rename = async (to) => {
      if (named.count && !await this.tell.edit("classes/rename", { old: named.name, new: to })) return;
      if (this.photos.filter.label === named.name) this.photos.filter.label = null;
      this.photos.renamed(named.name, to && !others.some((own) => own.name === to) ? to : null);
      this.tell.filtered({ top: true });
      made.close();
    };
    const made = dialog(`Class ${named.name}`,
      named.count > 0 && el("form", { class: "field", onsubmit: (event) => { event.preventDefault(); rename(name.value.trim()); } },
        el("label", { for: "new-name" }, "Call it; the name of another class merges both"), el("div", { class: "row" }, name, list, el("button", {}, "Rename"))),
      !named.count && el("button", { type: "button", onclick: () => rename("") }, "Remove this class"),
      el("p", { class: "small soft" }, "Undo takes it back. Only the label file changes: no photograph is moved or renamed."));
    name.select();
  }

  /** The progress of the doctor, and its findings. */
  checking(told, asked) {
    const found = this.photos.check;
    this.told = told;
    this.old = this.photos.isCheckOld;
    const button = el("button", { type: "button", disabled: told.running, onclick: () => this.tell.check() }, found ? "Check again" : "Check the photographs");
    fill(this.found, el("h2", {}, "Findings"),
      found ? [verdict(this.old ? { level: "note", sentence: "The labels have changed since this check" } : found.verdict), el("div", { class: "small" }, found.findings.map((own) => finding(own.severity, own.text)))]
        : el("p", { class: "small soft" }, "Looks for files that cannot be read, and for pictures that occur more than once."),
      button, told.running && el("p", { class: "small", role: "status" }, stage(told, "Checking")),
      told.error && el("p", { class: "small bad" }, told.error));
    if (asked && !told.running && found) this.found.scrollIntoView({ block: "nearest" });
  }
}
