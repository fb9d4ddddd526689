// What one patch of the picture attends to: click it, or go there with the arrow keys.

import { el, fill } from "./dom.js";
import { grid, overlay, scale } from "./look_map.js";

export class PatchView {
  /** `ask(row, column)` gives back {layers, means, numbers}, or null. */
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
    this.canvas = el("canvas", { role: "img" });
    this.name = el("figcaption");
    this.large = el("figure", { hidden: true }, this.canvas, scale(), this.name);
    [this.layers, this.heads] = ["Layers", "Heads"].map((title) => el("div", { role: "group", "aria-label": title }));
    [this.layer, this.head] = [null, -1]; // the layer that is shown: at first the last one; and its head, -1: the mean of all
    this.element = el("section", { class: "panel", "aria-label": "What a patch attends to" },
      el("h2", {}, "What a patch attends to"),
      el("p", { class: "small soft" }, `The model cuts the picture into ${this.rows} × ${this.columns} patches. In every layer, each of its heads lets a patch look at the others. Click a patch: the brighter another patch is, the more it is looked at.`),
      el("div", { class: "look-attention" }, el("div", {}, this.place, this.told), this.large), this.layers, this.heads);
    this.draw();
    this.load();
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
    this.told.textContent = `The patch in row ${row + 1}, column ${column + 1}.`;
    this.found = { ...found, row, column };
    this.layer ??= found.layers.length - 1;
    this.show();
  }

  /** Shows the chosen layer or head large, below it the layers side by side, and the heads of the chosen one. */
  show() {
    const { found, layer, head } = this;
    const number = found.numbers[layer];
    const choose = (own, part) => { [this.layer, this.head] = [own, part]; this.show(); };
    const title = head < 0 ? `Layer ${number}, all heads` : `Layer ${number}, head ${head}`;
    const row = (title, maps) => [el("p", { class: "small soft" }, title), el("div", { class: "look-row" }, maps)];
    fill(this.layers, row("Layers, the first to the last", found.means.map((values, i) => small(values, `Layer ${found.numbers[i]}`, found.numbers[i], i === layer, () => choose(i, -1)))));
    fill(this.heads, row(`Heads of layer ${number}`, found.layers[layer].map((values, i) => small(values, `Head ${i}`, i, i === head, () => choose(layer, i === head ? -1 : i)))));
    this.canvas.setAttribute("aria-label", `${title}: what the patch in row ${found.row + 1}, column ${found.column + 1} attends to`);
    this.name.textContent = title;
    this.large.hidden = false;
    overlay(this.canvas, this.seen.picture, head < 0 ? found.means[layer] : found.layers[layer][head], this.seen.box);
  }
}

/** A small map to choose. */
function small(values, name, number, chosen, onclick) {
  const made = grid(values);
  made.setAttribute("aria-hidden", "true");
  return el("button", { type: "button", class: "look-head", "data-focus": name, "aria-label": name, "aria-pressed": String(chosen), onclick }, made, String(number));
}
