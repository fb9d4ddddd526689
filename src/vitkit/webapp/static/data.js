// The Data tab: the photographs in a grid, their labels, and the photographs to label next.

import { fail, get, post, say } from "./api.js";
import { LabelBar } from "./data_label.js";
import { lookAt } from "./data_look.js";
import { Panel } from "./data_panel.js";
import { Saver } from "./data_save.js";
import { NONE, OUT, percent, Photos } from "./data_state.js";
import { Suggestions } from "./data_suggest.js";
import { count, dialog, el, fill, finding, keyOf, tint } from "./dom.js";
import { Grid } from "./grid.js";
import { stage } from "./progress.js";

const BATCH = 24; // photographs that are labelled next
const ENOUGH = 10; // photographs in each of two classes, after which training is proposed

export async function show(main, studio) {
  const page = new DataPage(studio);
  await page.photos.load();
  page.build(main);
  return () => page.stop();
}

class DataPage {
  constructor(studio) {
    this.studio = studio;
    this.photos = new Photos();
    this.saver = new Saver(this.photos, {
      saved: () => this.filtered(),
      pending: (count, unreachable) => this.pending(count, unreachable),
    });
  }

  build(main) {
    const { photos } = this;
    this.grid = new Grid("Photographs", {
      draw: (cell, id) => this.drawCell(cell, id),
      picture: (id) => `/api/data/thumbnail/${photos.version}/${id}`,
      name: (id) => photos.describe(id),
      onselect: () => this.selected(),
      onopen: (id) => this.look(id),
      onkey: (event) => this.pressed(event),
    });
    this.bar = new LabelBar(photos, { label: (text) => this.label(text), undo: () => this.undo(), given: () => this.given(), keep: () => this.keep(), follow: () => this.follow(), alike: () => this.alike(this.grid.focused), look: () => this.look(this.grid.chosen()[0]), back: () => this.grid.element.focus() });
    this.panel = new Panel(photos, { filtered: (how) => this.filtered(how), edit: (path, body) => this.edit(path, body), check: () => this.check(), again: () => this.again() });
    this.suggestions = new Suggestions(photos, { filtered: (how) => this.filtered(how), edit: (path, body) => this.edit(path, body), train: () => this.studio.goto("train") });
    this.panel.add(this.suggestions.element);
    this.hint = el("div", { role: "status" });
    this.unsaved = el("p", { class: "warn unsaved", role: "alert" });
    this.head = el("p", { class: "data-head", role: "status" });
    this.ordered = el("div");
    this.working = el("p", { class: "small soft", role: "status" });
    const size = el("input", { type: "range", min: 80, max: 320, step: 10, value: innerWidth < 640 ? 100 : 150, oninput: () => this.grid.resize(Number(size.value)) });
    this.undoButton = el("button", { type: "button", title: "Ctrl+Z", onclick: () => this.undo() }, "Undo");
    const find = this.find = el("input", { type: "search", placeholder: "part of it", oninput: () => { photos.filter.text = find.value; this.filtered({ top: true }); } });
    const tools = el("div", { class: "row data-tools" },
      el("button", { type: "button", class: "primary", onclick: () => this.next() }, "Label these next"),
      this.undoButton, el("button", { type: "button", class: "quiet", onclick: keys }, "Keys"),
      el("label", { class: "row" }, "File or folder name", find), el("label", { class: "row size" }, "Picture size", size));
    fill(main, el("div", { class: "data" }, this.panel.element,
      el("section", { class: "data-main", "aria-label": "Photographs" }, tools, this.working, this.head, this.unsaved, this.ordered, this.grid.element, this.hint, this.bar.element)));
    main.classList.add("wide-page");
    this.grid.size = Number(size.value);
    this.keydown = (event) => this.command(event);
    addEventListener("keydown", this.keydown);
    requestAnimationFrame(() => this.filtered({ top: true }));
    for (const line of photos.unmatched) say(line);
    this.checked();
    this.suggestions.follow();
  }

  async stop() {
    this.stopped = true;
    this.grid?.stop();
    this.suggestions?.stop();
    clearTimeout(this.timer);
    removeEventListener("keydown", this.keydown);
    await this.saver.stop();
  }

  pending(count, unreachable) {
    if (!this.grid) return;
    this.grid.element.dataset.pending = count;
    const text = count && unreachable ? `${count === 1 ? "1 label is" : `${count} labels are`} not saved yet: the studio does not answer. They are sent again as soon as it does; leave this page open.` : "";
    if (this.unsaved.textContent !== text) this.unsaved.textContent = text;
  }

  // --- What is shown ------------------------------------------------------------------------------------

  drawCell(cell, id) {
    const { photos } = this;
    const label = photos.labels[id];
    const doubt = photos.doubt(id);
    const suggestion = photos.suggestion(id);
    const caption = label === OUT ? "left out" : label === NONE ? "no class" : photos.label(id);
    const places = label >= 0 ? photos.classesIn(photos.label(id)).map((name) => photos.place(name)) : [];
    fill(cell.caption, places.map(keyOf), doubt ? `${doubt.suggested}? ${Number(doubt.score).toFixed(2)}, now ${caption}`
      : suggestion ? `${suggestion[0]}? ${percent(suggestion[1])}` : caption);
    tint(cell, places[0] ?? -1);
    cell.classList.toggle("out", label === OUT);
    cell.classList.toggle("none", label === NONE);
    const troubles = photos.troubles(id);
    cell.classList.toggle("trouble", troubles.length > 0);
    cell.dataset.level = photos.level(id);
    cell.title = [photos.paths[id], ...troubles].join("\n");
  }

  filtered(how = {}) {
    const { photos } = this;
    if (this.stopped) return;
    if (how.leaveOrder) photos.order = null;
    const ids = photos.shown();
    this.grid.show(ids, how);
    this.grid.refresh();
    this.panel.draw();
    this.panel.say([...photos.notes, ...photos.unmatched]);
    for (const line of photos.news.splice(0)) say(line);
    const counts = photos.counts();
    this.head.textContent = `${count(ids.length, "photograph", "photographs")} of ${(counts.all + counts.out).toLocaleString("en")}`
      + (counts.none ? ` · ${counts.none.toLocaleString("en")} without a class` : "");
    this.undoButton.disabled = !photos.can_undo;
    this.suggestions.draw();
    fill(this.hint, this.nextStep());
    fill(this.ordered, !ids.length && photos.paths.length > 0 && this.wayOut(), photos.order && el("p", { class: "row chosen-order" }, el("span", {}, photos.order.title),
      photos.order.isNext && el("button", { type: "button", onclick: () => this.next() }, "The next ones"),
      el("button", { type: "button", onclick: () => this.filtered({ top: true, leaveOrder: true }) }, "Back to all")));
  }

  /** Shown if no photograph matches the filters. */
  wayOut() {
    const all = () => {
      Object.assign(this.photos.filter, { label: null, finding: "", text: "" });
      this.find.value = "";
      this.filtered({ top: true, leaveOrder: true });
    };
    return el("p", { class: "row" }, "No photograph matches the filters. ", el("button", { type: "button", class: "primary", onclick: all }, "Show all photographs"));
  }

  /** What to do next, until a training has begun. */
  nextStep() {
    const { photos } = this;
    if (photos.is_trained) return null;
    const press = (text, work) => el("button", { type: "button", class: "link", onclick: work }, text);
    if (!photos.classes.length) return finding("note", "Choose photographs, then give them a class: type a name below, such as daisy, and press Enter.");
    if (!photos.check && photos.counts().none === 0 && photos.classes.length > 1) return finding("note", "Every photograph has a class. Look for copies and broken files before you train: ", press("check them now", () => this.check()));
    if (photos.classes.filter((own) => own.count >= ENOUGH).length > 1) return finding("note", `At least two classes have ${ENOUGH} photographs: `, press("train a first model", () => this.studio.goto("train")));
    return null;
  }

  selected() {
    this.bar.draw(this.grid.chosen(), this.grid.selected.size);
  }

  look(id) {
    if (id === undefined || id === null) return;
    lookAt(this.photos, this.grid, id, { label: (text) => this.label(text, [this.grid.focused]), undo: () => this.undo(), given: () => this.given(), back: () => this.grid.element.focus() });
  }

  // --- What is said ---------------------------------------------------------------------------------------

  async edit(path, body = {}) {
    this.last = null;
    try {
      await this.saver.edit(path, body);
    } catch (error) {
      fail(error);
      return false;
    }
    this.filtered();
    return true;
  }

  /** Labels the photographs: text is a class, "" leaves them out, null removes the class. The page changes before it is saved. */
  label(text, ids = this.grid.chosen()) {
    if (!ids.length) {
      say("Choose a photograph first: click it, or move to it with the arrow keys.");
      return;
    }
    const { grid, photos } = this;
    const alone = grid.selected.size <= 1 ? ids[0] : null;
    this.last = { ids, text, version: photos.version };
    this.saver.label(ids, text);
    const done = text === null ? "has no class now" : text === "" ? "left out" : text;
    say(`${count(ids.length, "photograph", "photographs")}: ${done}`);
    this.filtered();
    grid.select([]);
    if (alone !== null && grid.ids[grid.focus] === alone) grid.move(grid.focus + 1);
  }

  /** The label that was given last, in words; null if it is no longer the last step. */
  given() {
    const { photos, last } = this;
    const name = (id) => (photos.labels[id] === NONE ? null : photos.label(id));
    if (last?.version !== photos.version || last.ids.some((id) => name(id) !== last.text)) return null;
    return `${last.text === null ? "no class" : last.text || "left out"}, ${last.ids.length === 1 ? photos.file(last.ids[0]) : `${last.ids.length} photographs`}`;
  }

  /** Undoes the last step; the focus goes back to the photograph whose label that was. */
  async undo() {
    const id = this.last?.ids[0];
    if (!await this.edit("undo")) return;
    const place = this.grid.ids.indexOf(id);
    if (place >= 0) this.grid.move(place);
  }

  /** Confirms suspected labels. */
  keep() {
    this.each((id) => this.photos.doubt(id)?.label);
  }

  /** Accepts what a model suggests. */
  follow() {
    this.each((id) => this.photos.doubt(id)?.suggested ?? this.photos.suggestion(id)?.[0]);
  }

  each(labelOf) {
    const groups = Map.groupBy(this.grid.chosen().filter(labelOf), labelOf);
    for (const [text, ids] of groups) this.label(text, ids);
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (/^[1-9]$/.test(event.key)) {
      const named = this.photos.classes[Number(event.key) - 1];
      if (named) this.label(named.name);
      else say(`There is no class number ${event.key} yet: type a name.`);
      return true;
    }
    if (event.key === "Delete" || event.key === "Backspace") {
      this.label("");
      return true;
    }
    if (event.key.length === 1 && event.key !== " ") {
      this.bar.begin(event.key);
      return true;
    }
    return false;
  }

  command(event) {
    const isText = event.target.matches("input, textarea, select") && event.target.type !== "range";
    if (isText || document.querySelector("dialog[open]") || !(event.ctrlKey || event.metaKey)) return;
    const key = event.key.toLowerCase();
    if (key !== "z" || event.shiftKey) return;
    event.preventDefault();
    this.undo();
  }

  /** Shows photographs that were added or removed since the studio was started. */
  async again() {
    try {
      const before = this.photos.paths.length;
      this.photos.order = this.photos.check = null;
      await this.photos.load(true);
      this.filtered({ top: true });
      const more = this.photos.paths.length - before;
      say(more === 0 ? "As many photographs as before." : more > 0 ? `${count(more, "photograph", "photographs")} more.` : `${count(-more, "photograph", "photographs")} fewer.`);
    } catch (error) {
      fail(error);
    }
  }

  // --- What a model sees ------------------------------------------------------------------------------------

  busy(text) {
    this.working.textContent = text;
  }

  /** Waits until a model has seen the photographs; false where it cannot. */
  async seen() {
    let told = await get("/api/data/look");
    if (!told.eyes && !await this.mayDownload(told)) return false;
    if (!told.ready) told = await post(`/api/data/look?download=${!told.eyes}`);
    while (!told.ready && !this.stopped) {
      if (told.error) throw new Error(`The photographs could not be compared: ${told.error}`);
      this.busy(`Comparing the photographs, once, with ${told.eyes}. ${stage(told)}`);
      await new Promise((done) => { setTimeout(done, 700); });
      told = await get("/api/data/look");
      if (!told.ready && !told.running && !told.error) told = await post("/api/data/look"); // others were looked at
    }
    this.busy("");
    return !this.stopped;
  }

  /** Asks whether a model may be downloaded, if none is on this machine. */
  mayDownload({ download, advice }) {
    return new Promise((resolve) => {
      const made = dialog("How are the photographs compared?",
        el("p", {}, "To choose photographs that are worth a label, the studio compares them with one another. No model that recognises what they show is on this machine yet."),
        download && el("p", {}, el("button", { type: "button", class: "primary", onclick: () => { resolve(true); made.close(); } }, `Download a small model (${download.megabytes} MB download)`), el("br"), el("span", { class: "small soft" }, `${download.source}; it is kept for later trainings.`)),
        el("p", { class: "small soft" }, `${download ? "Or" : "Downloads are switched off (VITKIT_OFFLINE):"} ${advice}.`));
      made.addEventListener("close", () => resolve(false));
    });
  }

  async inOrder(work) {
    try {
      if (!await this.seen()) return;
      this.photos.order = await work();
    } catch (error) {
      this.busy("");
      fail(error);
      return;
    }
    Object.assign(this.photos.filter, { label: null, finding: "", text: "" });
    this.filtered({ top: true });
    this.grid.active = true;
    this.grid.mark();
    this.grid.element.focus();
  }

  alike(id) {
    if (id === null || id === undefined) return null;
    return this.inOrder(async () => ({ ...await get(`/api/data/alike/${id}`), title: `Most similar to ${this.photos.file(id)} first` }));
  }

  next() {
    return this.inOrder(async () => ({ ...await post("/api/data/next", { count: BATCH }), isNext: true, title: "Label these next: they differ from one another, or are hard to classify" }));
  }

  // --- The doctor -------------------------------------------------------------------------------------------

  async check() {
    this.panel.element.open = true;
    try {
      await post("/api/data/check");
    } catch (error) {
      fail(error);
    }
    this.checked(true);
  }

  async checked(asked = false) {
    try {
      const told = await get("/api/data/check");
      if (this.stopped) return;
      if (told.found) this.photos.takeCheck(told.found);
      this.panel.checking(told, asked);
      if (told.found) this.filtered();
      if (told.running) this.timer = setTimeout(() => this.checked(asked), 700);
    } catch (error) {
      fail(error);
    }
  }
}

function keys() {
  const rows = [["← ↑ → ↓", "move"], ["Shift + arrows, Shift + click", "choose up to there"], ["Space, Ctrl + click", "choose one more"], ["Ctrl + A", "choose all photographs shown"], ["1 … 9", "assign the class with that number"], ["a letter", "type a class's name"], ["Delete", "leave out"], ["Ctrl + Z", "undo"], ["Enter", "enlarge it"], ["Escape", "choose none"]];
  dialog("Keys", el("table", {}, el("tbody", {}, rows.map(([key, what]) => el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, what))))));
}
