// What one patch of the picture attends to: click it, or go there with the arrow keys.

import { dialog, el, fill } from "./dom.js";
import { grid } from "./look_map.js";

export class PatchView {
  /** `ask(row, column)` gives back {layers, numbers}, or null. */
  constructor(seen, ask) {
    this.seen = seen;
    this.ask = ask;
    [this.rows, this.columns] = seen.grid;
    this.row = Math.floor(this.rows / 2);
    this.column = Math.floor(this.columns / 2);
    this.mark = el("span", { class: "look-mark", "aria-hidden": "true" });
    this.place = el("button", { type: "button", class: "look-patches", "aria-label": "The picture's patches: arrow keys choose one, Enter shows what it attends to",
      onclick: (event) => this.click(event), onkeydown: (event) => this.key(event) },
      el("img", { src: seen.picture, alt: "", draggable: "false" }), this.mark);
    this.told = el("p", { class: "small soft", role: "status" }, "No patch is chosen yet.");
    this.heads = el("div", { class: "look-heads" });
    this.element = el("section", { class: "panel", "aria-label": "What a patch attends to" },
      el("h2", {}, "What a patch attends to"),
      el("p", { class: "small soft" }, `The model cuts the picture into ${this.rows} × ${this.columns} patches. In every layer, each of its heads lets a patch look at the others. Click a patch: the brighter another patch is, the more it is looked at.`),
      el("div", { class: "look-attention" }, el("div", {}, this.place, this.told), this.heads));
    this.draw();
  }

  draw() {
    const [left, top, right, bottom] = this.seen.box;
    const [width, height] = [(right - left) / this.columns, (bottom - top) / this.rows];
    Object.assign(this.mark.style, {
      left: `${100 * (left + this.column * width)}%`, top: `${100 * (top + this.row * height)}%`,
      width: `${100 * width}%`, height: `${100 * height}%`,
    });
  }

  click(event) {
    if (event.detail > 0) { // a pointer's; a key's click has no place
      const shown = this.place.getBoundingClientRect();
      const [left, top, right, bottom] = this.seen.box;
      const along = ((event.clientX - shown.left) / shown.width - left) / (right - left);
      const down = ((event.clientY - shown.top) / shown.height - top) / (bottom - top);
      if (along < 0 || along >= 1 || down < 0 || down >= 1) {
        this.told.textContent = "The model does not see this part of the picture.";
        return;
      }
      this.column = Math.floor(along * this.columns);
      this.row = Math.floor(down * this.rows);
    }
    this.draw();
    this.load();
  }

  key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    this.row = Math.min(this.rows - 1, Math.max(0, this.row + step[0]));
    this.column = Math.min(this.columns - 1, Math.max(0, this.column + step[1]));
    this.told.textContent = `Row ${this.row + 1}, column ${this.column + 1}: Enter shows what it attends to.`;
    this.draw();
  }

  async load() {
    const { row, column } = this;
    this.told.textContent = "Looking …";
    const found = await this.ask(row, column);
    if (!found || row !== this.row || column !== this.column) {
      if (!found) this.told.textContent = "";
      return;
    }
    this.told.textContent = `The patch in row ${row + 1}, column ${column + 1}. Click a small picture to enlarge it.`;
    const many = found.layers[0].length;
    const lines = found.layers.map((heads, i) => el("tr", {}, el("th", { scope: "row" }, String(found.numbers[i])),
      heads.map((values, head) => el("td", {}, this.small(values, found.numbers[i], head)))));
    const head = el("tr", {}, el("th", { scope: "col" }, "Layer"), Array.from({ length: many }, (_, i) => el("th", { scope: "col" }, `Head ${i}`)));
    fill(this.heads, el("div", { class: "look-table", tabindex: "0", role: "region", "aria-label": "Each head of each layer" },
      el("table", {}, el("thead", {}, head), el("tbody", {}, lines))));
  }

  small(values, layer, head) {
    const name = `Layer ${layer}, head ${head}`;
    const made = grid(values);
    made.setAttribute("aria-hidden", "true");
    return el("button", { type: "button", class: "look-head", "aria-label": `${name}: enlarge`, onclick: () => {
      const large = grid(values);
      large.setAttribute("role", "img");
      large.setAttribute("aria-label", `${name}: what the patch in row ${this.row + 1}, column ${this.column + 1} attends to`);
      dialog(name, el("div", { class: "look-large" }, el("img", { src: this.seen.picture, alt: "The picture" }), large));
    } }, made);
  }
}
