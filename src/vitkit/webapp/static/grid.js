// A grid of any number of pictures; only the visible ones are in the page. For screen readers, it is a listbox.

import { el } from "./dom.js";

const AHEAD = 2; // rows above and below what is in sight
const GAP = 8;
const EDGE = 4; // padding, as the style sheet has it

export class Grid {
  /**
   * tell: { draw(cell, id), picture(id), name(id), onselect(), onopen(id), onkey(event) }; ids are the caller's.
   */
  constructor(label, tell) {
    this.tell = tell;
    this.ids = [];
    this.size = 150;
    this.selected = new Set();
    this.focus = 0;
    this.anchor = 0;
    this.cells = new Map();
    this.spare = [];
    this.sheet = el("div", { class: "grid-sheet", role: "presentation" });
    this.element = el("div", { class: "grid", role: "listbox", tabindex: 0, "aria-multiselectable": "true", "aria-label": label }, this.sheet);
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.pressed(event));
    this.element.addEventListener("pointerdown", (event) => {
      this.touch = event.pointerType === "touch";
      const at = this.at(event);
      this.down = at === null ? null : this.ids[at];
    });
    this.element.addEventListener("click", (event) => this.clicked(event));
    this.element.addEventListener("dblclick", (event) => { const at = this.at(event); if (at !== null) tell.onopen(this.ids[at]); });
    this.watch = new ResizeObserver(() => this.arrange());
    this.watch.observe(this.element);
  }

  stop() {
    this.watch.disconnect();
  }

  /** Shows these; what is selected and no longer shown is no longer selected. */
  show(ids, { top = false } = {}) {
    const focused = this.ids[this.focus];
    this.ids = ids;
    const shown = new Set(ids);
    this.selected = new Set([...this.selected].filter((id) => shown.has(id)));
    const place = shown.has(focused) ? ids.indexOf(focused) : this.focus;
    this.focus = Math.max(0, Math.min(place, ids.length - 1));
    this.anchor = this.focus;
    if (top) {
      this.focus = this.anchor = 0;
      this.element.scrollTop = 0;
    }
    this.arrange();
    this.tell.onselect();
  }

  resize(size) {
    this.size = size;
    this.arrange();
  }

  /** The targets of an action: the selected items, or the item with the focus if nothing is selected. */
  chosen() {
    if (this.selected.size) return this.ids.filter((id) => this.selected.has(id));
    return this.ids.length && this.active ? [this.ids[this.focus]] : [];
  }

  get focused() {
    return this.ids.length ? this.ids[this.focus] : null;
  }

  arrange() {
    const width = this.element.clientWidth - 2 * EDGE;
    if (width <= 0) return;
    this.columns = Math.max(1, Math.floor((width + GAP) / (this.size + GAP)));
    this.side = Math.floor((width - GAP * (this.columns - 1)) / this.columns);
    this.pitch = this.side + 26 + GAP; // a line of text below the picture
    this.rows = Math.ceil(this.ids.length / this.columns);
    this.sheet.style.height = `${Math.max(0, this.rows * this.pitch - GAP)}px`;
    this.sheet.style.setProperty("--side", `${this.side}px`);
    const { first, last } = this.inSight();
    const places = new Map(this.ids.slice(first, last).map((id, i) => [id, first + i]));
    const before = [...this.cells];
    this.cells.clear();
    for (const [, cell] of before) { // a photograph keeps its element, so that what was begun there ends there
      const place = places.get(cell.of);
      if (place === undefined || this.cells.has(place)) this.spareCell(cell);
      else this.cells.set(place, cell);
    }
    let next = null;
    for (const place of [...this.cells.keys()].sort((a, b) => b - a)) next = this.put(place, this.cells.get(place), next);
    this.draw();
  }

  /** The positions that are in the page: the visible ones, and some above and below. */
  inSight() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.pitch) - AHEAD) * this.columns;
    const rows = Math.ceil(Math.min(this.element.clientHeight, innerHeight) / this.pitch) + 1 + 2 * AHEAD;
    return { first, last: Math.min(this.ids.length, first + rows * this.columns) };
  }

  scrolled() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  /** Adds the visible cells to the page, and removes the others. */
  draw() {
    if (!this.columns) return;
    const { first, last } = this.inSight();
    for (const place of [...this.cells.keys()]) if (place < first || place >= last) this.drop(place);
    for (let place = last - 1; place >= first; place--) if (!this.cells.has(place)) this.put(place);
    this.load();
    this.mark();
  }

  /** Updates the visible cells. */
  refresh() {
    for (const [place, cell] of this.cells) this.describe(cell, place);
    this.mark();
  }

  /** Inserts a cell before the next one, so that screen readers read them in the visible order. */
  put(place, cell = this.spare.pop() || this.make(), next = this.cells.get(place + 1) ?? null) {
    const [row, column] = [Math.floor(place / this.columns), place % this.columns];
    cell.style.transform = `translate(${column * (this.side + GAP)}px, ${row * this.pitch}px)`;
    cell.id = `cell-${place}`;
    cell.setAttribute("aria-posinset", place + 1);
    cell.setAttribute("aria-setsize", this.ids.length);
    this.describe(cell, place);
    if (cell.parentNode !== this.sheet || cell.nextSibling !== next) this.sheet.insertBefore(cell, next);
    this.cells.set(place, cell);
    return cell;
  }

  make() {
    const image = el("img", { alt: "", decoding: "async", draggable: "false" });
    const cell = el("div", { class: "cell", role: "option" }, el("span", { class: "frame" }, image), el("span", { class: "caption" }));
    [cell.image, cell.caption] = [image, cell.lastChild];
    image.addEventListener("load", () => image.classList.add("there"));
    return cell;
  }

  describe(cell, place) {
    const id = this.ids[place];
    cell.of = id;
    cell.setAttribute("aria-label", this.tell.name(id));
    this.tell.draw(cell, id);
  }

  drop(place) {
    const cell = this.cells.get(place);
    this.cells.delete(place);
    this.spareCell(cell);
  }

  spareCell(cell) {
    cell.remove();
    cell.shown = null;
    cell.image.removeAttribute("src"); // what is still on its way is given up
    cell.image.classList.remove("there");
    this.spare.push(cell);
  }

  load() {
    for (const [place, cell] of [...this.cells].sort(([a], [b]) => a - b)) {
      const address = this.tell.picture(this.ids[place]);
      if (cell.shown === address) continue;
      cell.shown = address;
      cell.image.src = address;
    }
  }

  mark() {
    for (const [place, cell] of this.cells) {
      const chosen = this.selected.has(this.ids[place]);
      cell.setAttribute("aria-selected", String(chosen));
      cell.classList.toggle("focus", Boolean(this.active) && place === this.focus);
    }
    const there = this.cells.get(this.focus);
    if (there && this.active) this.element.setAttribute("aria-activedescendant", there.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  // --- Choosing ---------------------------------------------------------------------------------------

  at(event) {
    const cell = event.target.closest(".cell");
    if (!cell) return null;
    return Number(cell.id.slice("cell-".length));
  }

  /** The photograph on which the button was pressed is meant, also if others have taken its place before the release. */
  clicked(event) {
    let place = this.at(event);
    if (this.down !== null && this.down !== undefined && this.ids[place] !== this.down) {
      place = this.ids.indexOf(this.down);
      if (place < 0) return;
    }
    this.active = true;
    if (place === null) {
      this.select([]);
      return;
    }
    if (event.shiftKey) this.select(this.between(this.anchor, place), event.ctrlKey || event.metaKey);
    else if (event.ctrlKey || event.metaKey || this.touch) this.toggle(place);
    else this.select([this.ids[place]]);
    this.focus = place;
    if (!event.shiftKey) this.anchor = place;
    this.mark();
  }

  between(a, b) {
    return this.ids.slice(Math.min(a, b), Math.max(a, b) + 1);
  }

  select(ids, more = false) {
    this.selected = new Set(more ? [...this.selected, ...ids] : ids);
    this.mark();
    this.tell.onselect();
  }

  toggle(place) {
    const id = this.ids[place];
    if (!this.selected.delete(id)) this.selected.add(id);
    this.tell.onselect();
  }

  move(place, event) {
    place = Math.max(0, Math.min(place, this.ids.length - 1));
    this.active = true;
    this.focus = place;
    if (event?.shiftKey) this.select(this.between(this.anchor, place));
    else if (!event?.ctrlKey) {
      this.anchor = place;
      if (this.selected.size) this.select([]);
    }
    this.reveal();
    this.mark();
    this.tell.onselect();
  }

  reveal() {
    if (!this.columns) return;
    const top = Math.floor(this.focus / this.columns) * this.pitch;
    const view = this.element;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + this.pitch > view.scrollTop + view.clientHeight) view.scrollTop = top + this.pitch - view.clientHeight;
    this.draw();
  }

  pressed(event) {
    if (event.target !== this.element || !this.ids.length) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.pitch)) * this.columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity };
    const command = event.ctrlKey || event.metaKey;
    if (event.key in steps && !event.altKey) this.move(this.active ? this.focus + steps[event.key] : this.focus, event);
    else if (event.key === " " && !command) { this.active = true; this.toggle(this.focus); this.anchor = this.focus; this.mark(); }
    else if (event.key === "Enter") this.tell.onopen(this.ids[this.focus]);
    else if (event.key === "Escape") this.select([]);
    else if (command && event.key.toLowerCase() === "a") this.select(this.ids);
    else if (!this.tell.onkey(event)) return;
    event.preventDefault();
  }
}
