// The state of the Data tab: the photographs, and which of them are shown.

import { get } from "./api.js";

export const NONE = -1; // has no class
export const OUT = -2; // is left out

const FINDINGS = { doubt: "Label looks wrong", suggested: "A class is suggested", copy: "Duplicates", conflict: "Copies with two classes", broken: "Cannot be read" };

const HARMLESS = "there is a copy of it";

export class Photos {
  constructor() {
    this.filter = { label: null, finding: "", text: "" };
    this.order = null; // photographs in a special order, for example by similarity
    this.check = null;
    this.pending = []; // labels that are on their way to the label file: [{ paths, label }]
    this.suggestions = new Map(); // [class, confidence] of photographs without a class
    this.suggestedBy = "";
  }

  async load(anew = false) {
    const told = await get(`/api/data/all${anew ? "?anew=true" : ""}`);
    if (told.version !== this.version) this.suggestions.clear(); // their numbers belong to the photographs of the version before
    Object.assign(this, told);
    this.doubts = new Map(Object.entries(told.doubts).map(([id, doubt]) => [Number(id), doubt]));
    this.lower = told.paths.map((path) => path.toLowerCase());
    this.numbers = new Map(told.paths.map((path, id) => [path, id]));
    this.take(told);
  }

  /** Applies the studio's response to an edit. */
  take(told) {
    if (told.version !== this.version) throw new Error("The photographs in the folder have changed: load them again.");
    const { names, labels, can_undo, unmatched, news, decided } = told;
    const counts = new Map(told.classes.map((own) => [own.name, own.count]));
    const before = (this.classes ?? []).map((own) => own.name); // a class without photographs keeps its number key
    const classes = [...new Set([...before, ...counts.keys()])].map((name) => ({ name, count: counts.get(name) ?? 0 }));
    Object.assign(this, { classes, names, labels, can_undo, unmatched, news, decided: new Set(decided) });
    for (const { paths, label } of this.pending) this.apply(paths.map((path) => this.numbers.get(path)).filter((id) => id !== undefined), label);
  }

  /** Gives photographs a class (empty: left out, null: none) in the page alone. */
  apply(ids, label) {
    const counts = new Map(this.classes.map((own) => [own.name, own.count]));
    const count = (name, more) => { for (const part of name ? this.classesIn(name) : []) counts.set(part, (counts.get(part) ?? 0) + more); };
    if (label && !this.names.includes(label)) this.names.push(label);
    const number = label === null ? NONE : label === "" ? OUT : this.names.indexOf(label);
    for (const id of ids) {
      if (this.labels[id] === number) {
        if (this.doubt(id)) this.decided.add(id); // a label that is confirmed
        continue;
      }
      count(this.label(id), -1);
      this.labels[id] = number;
      count(this.label(id), 1);
    }
    this.classes = [...counts].map(([name, own]) => ({ name, count: own })); // a new class comes last: no number key moves
    this.can_undo = true;
  }

  /** A class has a new name, which takes its place, or is gone (null). */
  renamed(old, name) {
    const now = this.classes.find((own) => own.name === name);
    const others = this.classes.filter((own) => own !== now);
    this.classes = now ? others.map((own) => (own.name === old ? now : own)) : others.filter((own) => own.name !== old);
  }

  classesIn(label) {
    return this.multi ? label.split(";").filter(Boolean) : [label];
  }

  takeSuggestions({ run, found }) {
    this.suggestedBy = run;
    this.suggestions = new Map(Object.entries(found).map(([id, told]) => [Number(id), told]));
  }

  /** The class that a model suggests for a photograph without one, and its confidence. */
  suggestion(id) {
    return this.labels[id] === NONE ? this.suggestions.get(id) ?? null : null;
  }

  isSuggested(id, label) {
    return Boolean(label) && this.suggestion(id)?.[0] === label;
  }

  /** The place of a class among all classes, which decides on its number key and its colour; -1 for none. */
  place(name) {
    return this.classes.findIndex((own) => own.name === name);
  }

  /** The name of a photograph's class; empty if it has none. */
  label(id) {
    return this.labels[id] >= 0 ? this.names[this.labels[id]] : "";
  }

  /** The last part of its path. */
  file(id) {
    return this.paths[id].slice(this.paths[id].lastIndexOf("/") + 1);
  }

  describe(id) {
    const parts = [this.file(id), this.labels[id] === OUT ? "left out" : this.label(id) || "no class"];
    const suggestion = this.suggestion(id);
    if (suggestion) parts.push(`${this.suggestedBy} suggests ${suggestion[0]} (${percent(suggestion[1])})`);
    parts.push(...this.troubles(id));
    return parts.join(", ");
  }

  /** Sentences about the problems of a photograph. */
  troubles(id) {
    const told = [];
    const found = this.check;
    if (found?.unreadable[id]) told.push(`cannot be read: ${found.unreadable[id]}`);
    if (found?.copied.has(id)) told.push(...found.copied.get(id));
    const doubt = this.doubt(id);
    if (doubt) told.push(`may be ${doubt.suggested} (by ${Number(doubt.score).toFixed(2)})`);
    return told;
  }

  /** How serious the problems of a photograph are. */
  level(id) {
    const copies = this.check?.copied.get(id);
    if (this.check?.unreadable[id] || (copies && !copies.includes(HARMLESS))) return "problem";
    return this.doubt(id) ? "warning" : "note";
  }

  /** The suspected label error of a photograph, while nobody has decided about it. */
  doubt(id) {
    const doubt = this.doubts.get(id);
    return doubt && doubt.label === this.label(id) && !this.decided.has(id) ? doubt : null;
  }

  takeCheck(found) {
    const copied = new Map();
    for (const own of found.copies) {
      const told = [];
      if (own.conflict) told.push("a copy has another class");
      if (own.leak) told.push("a copy is in another split");
      if (!told.length) told.push(HARMLESS);
      for (const id of own.images) copied.set(id, told);
    }
    this.check = { ...found, copied, labels: found.is_old || this.pending.length ? "" : String(this.labels) };
  }

  /** Whether labels have changed since the photographs were checked. */
  get isCheckOld() {
    return this.check !== null && this.check.labels !== String(this.labels);
  }

  /** The number of photographs of each finding. */
  findings() {
    const kinds = [
      ["doubt", (id) => this.doubt(id)],
      ["suggested", (id) => this.suggestion(id)],
      ["copy", (id) => this.check?.copied.has(id)],
      ["conflict", (id) => this.check?.copied.get(id)?.includes("a copy has another class")],
      ["broken", (id) => this.check?.unreadable[id] !== undefined],
    ];
    return kinds.map(([key, has]) => {
      let count = 0;
      for (let id = 0; id < this.paths.length; id++) if (this.labels[id] !== OUT && has(id)) count++;
      return { key, title: FINDINGS[key], has, count };
    }).filter((own) => own.count);
  }

  /** The photographs that are shown, in their order. */
  shown() {
    const { label, finding, text } = this.filter;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const has = finding ? this.findings().find((own) => own.key === finding)?.has ?? (() => false) : null;
    const wanted = (id) => (label === null ? this.labels[id] !== OUT || Boolean(this.order) : this.ofClass(id, label))
      && (!has || has(id))
      && words.every((word) => this.lower[id].includes(word));
    const all = this.order ? this.order.images : [...this.paths.keys()];
    const found = all.filter(wanted);
    if (finding === "copy" || finding === "conflict") return this.together(found);
    if (finding === "suggested") return found.sort((a, b) => this.suggestion(b)[1] - this.suggestion(a)[1] || a - b);
    return found;
  }

  ofClass(id, label) {
    if (label === NONE || label === OUT) return this.labels[id] === label;
    return this.label(id) === label || (this.multi && this.classesIn(this.label(id)).includes(label));
  }

  /** Sorts copies of one picture next to each other. */
  together(ids) {
    const place = new Map();
    this.check.copies.forEach((own, group) => own.images.forEach((id) => place.set(id, group)));
    return [...ids].sort((a, b) => place.get(a) - place.get(b) || a - b);
  }

  counts() {
    let [none, out] = [0, 0];
    for (const label of this.labels) {
      if (label === NONE) none++;
      if (label === OUT) out++;
    }
    return { none, out, all: this.labels.length - out };
  }
}

export function percent(part) {
  return `${Math.floor(100 * part)} %`;
}
