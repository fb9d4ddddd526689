// The confusion matrix: a table of buttons for few classes, a drawing for many, and the pairs most often confused.
//
// Format: pairs [true class, predicted class, images], the right ones too; `left_out`, images of pairs that are not
// listed. `pick(true, predicted, images)`.

import { el, percent, plural, search, whole } from "./dom.js";

const MOST_CELLS = 20; // classes whose every pair is a cell of its own
const PAGE = 10;

export class Confusion {
  constructor({ classes, pairs, left_out = 0 }, { pick }) {
    Object.assign(this, { classes, pairs, pick, word: "", most: PAGE });
    this.totals = new Map();
    for (const [label, , count] of pairs) this.totals.set(label, (this.totals.get(label) ?? 0) + count);
    this.wrong = pairs.filter(([label, said]) => label !== said).sort((a, b) => b[2] - a[2]);
    this.body = el("tbody");
    this.more = el("button", { type: "button", onclick: () => this.set({ most: this.most + 5 * PAGE }) });
    const note = left_out ? el("p", { class: "soft" }, `${plural(left_out, "image", "images")} of rarer pairs are not listed.`) : null;
    const picture = classes.length <= MOST_CELLS ? this.cells() : new Drawing(this).element;
    this.element = el("div", {}, picture, this.pairsTable(), this.more, ...(note ? [note] : []));
    this.update();
  }

  share(label, count) {
    return count / this.totals.get(label);
  }

  said([label, said, count]) {
    const share = percent(this.share(label, count), 0);
    return `${this.classes[label]} predicted as ${this.classes[said]}: ${plural(count, "image", "images")}, ${share} of the class`;
  }

  cells() {
    const numbers = this.classes.map((_, i) => i);
    const count = new Map(this.pairs.map(([label, said, images]) => [`${label} ${said}`, images]));
    const head = numbers.map((i) => el("th", { scope: "col", class: "turned" }, el("span", {}, this.classes[i])));
    const rows = numbers.map((label) => {
      const cells = numbers.map((said) => this.cell(label, said, count.get(`${label} ${said}`) ?? 0));
      return el("tr", {}, el("th", { scope: "row" }, this.classes[label]), ...cells);
    });
    const corner = el("td", { class: "soft" }, "your label \u2193 predicted \u2192");
    const table = el("table", { class: "matrix" }, el("thead", {}, el("tr", {}, corner, ...head)), el("tbody", {}, ...rows));
    return el("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Confusion matrix" }, table);
  }

  cell(label, said, count) {
    if (count === 0) return el("td", {});
    const button = el("button", { type: "button", "aria-label": this.said([label, said, count]), onclick: () => this.pick(label, said, count) }, whole(count));
    const cell = el("td", { class: label === said ? "right" : "wrong" }, button);
    cell.style.setProperty("--share", this.share(label, count));
    return cell;
  }

  pairsTable() {
    const heads = ["your label", "predicted", "images", "share"];
    const cells = heads.map((text, i) => el("th", { scope: "col", class: i > 1 ? "number" : "" }, text));
    const table = el("table", { class: "pairs" }, el("thead", {}, el("tr", {}, ...cells)), this.body);
    const find = this.wrong.length > PAGE ? search("Class", (value) => this.set({ word: value.trim().toLowerCase() })) : null;
    const title = el("h3", {}, this.wrong.length ? "Most often confused" : "No class is mistaken for another");
    const wide = el("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Pairs of classes most often confused" }, table);
    return el("div", {}, title, ...(find ? [find] : []), ...(this.wrong.length ? [wide] : []));
  }

  set(changes) {
    Object.assign(this, changes);
    this.update();
  }

  update() {
    const has = (number) => this.classes[number].toLowerCase().includes(this.word);
    const found = this.wrong.filter(([label, said]) => has(label) || has(said));
    this.body.replaceChildren(...found.slice(0, this.most).map((pair) => this.pairRow(pair)));
    this.more.hidden = found.length <= this.most;
    this.more.textContent = `Show more (${whole(found.length - this.most)} left)`;
  }

  pairRow([label, said, count]) {
    const button = el("button", { type: "button", class: "link", onclick: () => this.pick(label, said, count) }, this.classes[label]);
    const share = percent(this.share(label, count));
    return el("tr", {}, el("th", { scope: "row" }, button), el("td", {}, this.classes[said]), el("td", { class: "number" }, whole(count)), el("td", { class: "number" }, share));
  }
}

/** The matrix of many classes, a dot for each pair. The dot nearest to the pointer is named; a click shows its images. */
class Drawing {
  constructor(confusion) {
    this.confusion = confusion;
    this.by = new Map(confusion.pairs.map((pair) => [pair[0] * confusion.classes.length + pair[1], pair]));
    this.side = confusion.classes.length;
    this.scale = Math.max(1, Math.ceil(700 / this.side));
    const size = this.side * this.scale;
    const label = `Confusion matrix of ${this.side} classes; the table below names the pairs`;
    const listeners = {
      onpointermove: (event) => this.name(event),
      onpointerleave: () => (this.words.textContent = Drawing.HINT),
      onclick: (event) => this.open(event),
    };
    this.canvas = el("canvas", { class: "drawing", width: size, height: size, role: "img", "aria-label": label, ...listeners });
    this.words = el("p", { class: "soft" }, Drawing.HINT);
    this.element = el("div", {}, this.canvas, this.words);
    this.draw();
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const dot = Math.max(this.scale, Math.round((this.side * this.scale) / 350)); // one cell of a thousand is no speck
    for (const [label, said, count] of this.confusion.pairs) {
      const share = this.confusion.share(label, count);
      context.fillStyle = label === said ? `rgb(0 114 178 / ${0.25 + 0.75 * share})` : `rgb(213 94 0 / ${0.35 + 0.65 * share})`;
      context.fillRect(said * this.scale, label * this.scale, dot, dot);
    }
  }

  nearest(event) {
    const box = this.canvas.getBoundingClientRect();
    const each = this.side / box.width;
    const [x, y] = [(event.clientX - box.left) * each, (event.clientY - box.top) * each];
    const reach = Math.ceil(8 * each);
    let best = null;
    for (let row = Math.floor(y) - reach; row <= y + reach; row++) {
      for (let column = Math.floor(x) - reach; column <= x + reach; column++) {
        const pair = column >= 0 && column < this.side ? this.by.get(row * this.side + column) : undefined;
        const far = Math.hypot(row + 0.5 - y, column + 0.5 - x);
        if (pair && (best === null || far < best.far)) best = { pair, far };
      }
    }
    return best && best.pair;
  }

  name(event) {
    const pair = this.nearest(event);
    this.words.textContent = pair ? this.confusion.said(pair) : Drawing.HINT;
  }

  open(event) {
    const pair = this.nearest(event);
    if (pair) this.confusion.pick(...pair);
  }

  static HINT = "Rows are your labels, columns the predicted classes; blue is right. Click a dot to see its photographs.";
}
