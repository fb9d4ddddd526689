// The table of classes: sorted by any column, filtered by name; a click on a name shows its photographs.
//
// Format: columns [{key, title, help, digits}], rows {name, KEY: number or null}. `pick(number of the class)`.

import { el, plural, search, whole } from "./dom.js";

const FIRST = 30; // rows; the rest on demand

export class ClassTable {
  constructor({ columns, rows }, { pick }) {
    Object.assign(this, { columns, pick, word: "", by: null, isDown: false, most: FIRST });
    this.rows = rows.map((row, number) => ({ ...row, number }));
    this.heads = [{ key: "name", title: "class", help: "" }, ...columns].map((column) => this.head(column));
    this.body = el("tbody");
    this.count = el("p", { class: "soft", "aria-live": "polite" });
    this.more = el("button", { type: "button", onclick: () => this.set({ most: Infinity }) });
    const table = el("table", { class: "sortable" }, el("thead", {}, el("tr", {}, ...this.heads)), this.body);
    const wide = el("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Table of classes" }, table);
    const find = search("Class", (value) => this.set({ word: value.trim().toLowerCase() }));
    this.element = el("div", {}, ...(rows.length > 12 ? [find] : []), this.count, wide, this.more);
    this.update();
  }

  head({ key, title, help }) {
    const button = el("button", { type: "button", title: help, onclick: () => this.sort(key) }, title);
    return el("th", { scope: "col", "data-key": key, class: key === "name" ? "" : "number" }, button);
  }

  /** Sort by a column, the worst first; in the opposite order if the table is sorted like this already. */
  sort(key) {
    this.set(this.by === key ? { isDown: !this.isDown } : { by: key, isDown: key === "support" });
  }

  set(changes) {
    Object.assign(this, changes);
    this.update();
  }

  update() {
    const found = this.rows.filter((row) => row.name.toLowerCase().includes(this.word));
    if (this.by !== null) found.sort((a, b) => compare(a[this.by], b[this.by], this.isDown));
    this.body.replaceChildren(...found.slice(0, this.most).map((row) => this.row(row)));
    for (const head of this.heads) {
      const state = head.dataset.key !== this.by ? null : this.isDown ? "descending" : "ascending";
      if (state === null) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", state);
    }
    this.count.textContent = plural(found.length, "class", "classes");
    this.more.hidden = found.length <= this.most;
    this.more.textContent = `Show all ${whole(found.length)}`;
  }

  row(row) {
    const name = el("button", { type: "button", class: "link", onclick: () => this.pick(row.number) }, row.name || "\u00a0");
    const cells = this.columns.map(({ key, digits }) => {
      const value = row[key];
      return el("td", { class: "number" }, value === null ? "-" : digits === 0 ? whole(value) : value.toFixed(digits));
    });
    return el("tr", {}, el("th", { scope: "row" }, name), ...cells);
  }
}

/** Compare two values; unknown values come last in both orders. */
function compare(a, b, isDown) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? a.localeCompare(b) : a - b;
  return isDown ? -order : order;
}
