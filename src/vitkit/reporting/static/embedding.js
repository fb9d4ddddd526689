// Images as points; those that look similar to the model are close together. A point shows its photograph.
//
// Format: points [number of the image, x, y]. `pick(number of the image)`.

import { choice, coloursRepeat, el, tint, tones } from "./dom.js";
import { photograph } from "./gallery.js";

const EDGE = 14; // pixels round the points
const REACH = 18; // pixels within which a point is meant

export class Embedding {
  constructor(images, { points }, { pick }) {
    Object.assign(this, { images, pick, at: 0, only: "" });
    this.points = [...points].sort((a, b) => a[1] - b[1]); // arrow keys go from left to right
    this.extent = [1, 2].map((axis) => [Math.min(...points.map((own) => own[axis])), Math.max(...points.map((own) => own[axis]))]);
    this.classes = [...new Set(points.map(([i]) => images.true[i]))].sort((a, b) => a - b);
    const label = "Images as points. Arrow keys move from one to the next, and Enter enlarges it.";
    this.canvas = el("canvas", { class: "drawing", role: "application", tabindex: "0", "aria-label": label, ...this.listeners() });
    this.tip = el("div", { class: "tip", hidden: true, "aria-live": "polite" });
    const names = this.classes.map((number) => [String(number), images.classes[number]]);
    const find = choice("Class", [["", "all"], ["wrong", "mistakes"], ...names], "", (value) => this.set(value));
    this.element = el("div", {}, find, el("div", { class: "stage" }, this.canvas, this.tip), this.legend());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  listeners() {
    return {
      onpointermove: (event) => this.meet(this.nearest(event)),
      onpointerleave: () => this.meet(null),
      onblur: () => this.meet(null),
      onclick: (event) => this.open(this.nearest(event)),
      onkeydown: (event) => this.onKey(event),
    };
  }

  legend() {
    if (coloursRepeat(this.classes)) return el("p", { class: "soft" }, "A ring around a point marks a mistake. Colours repeat.");
    const marks = this.classes.map((number) => el("span", {}, tint(el("span", { class: "dot" }), number), this.images.classes[number]));
    return el("p", { class: "key" }, ...marks, el("span", {}, el("span", { class: "dot ring" }), "mistake"));
  }

  set(value) {
    this.only = value;
    this.draw();
  }

  isShown(i) {
    if (this.only === "") return true;
    return this.only === "wrong" ? !this.images.isRight(i) : this.images.true[i] === Number(this.only);
  }

  place([, x, y]) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const [[left, right], [low, high]] = this.extent;
    return [EDGE + ((x - left) / (right - left || 1)) * (width - 2 * EDGE), EDGE + ((high - y) / (high - low || 1)) * (height - 2 * EDGE)];
  }

  draw() {
    const { canvas, images } = this;
    const scale = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const [ink, tone] = [getComputedStyle(canvas).color, tones()];
    for (const point of this.points) {
      const [x, y] = this.place(point);
      context.globalAlpha = this.isShown(point[0]) ? 0.9 : 0.08;
      context.fillStyle = tone(images.true[point[0]]);
      context.beginPath();
      context.arc(x, y, 4.5, 0, 2 * Math.PI);
      context.fill();
      if (images.isRight(point[0])) continue;
      context.strokeStyle = ink;
      context.lineWidth = 1.6;
      context.stroke();
    }
  }

  nearest(event) {
    const box = this.canvas.getBoundingClientRect();
    let best = null;
    this.points.forEach((point, number) => {
      const [x, y] = this.place(point);
      const far = Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top);
      if (this.isShown(point[0]) && far < REACH && (best === null || far < best.far)) best = { number, far };
    });
    return best && best.number;
  }

  meet(number) {
    this.tip.hidden = number === null;
    if (number === null) return;
    this.at = number;
    const [x, y] = this.place(this.points[number]);
    const i = this.points[number][0];
    const lines = this.images.lines(i).map((line) => el("span", {}, line));
    this.tip.replaceChildren(photograph(this.images.pictureOf(i)), ...lines);
    this.tip.style.left = `${Math.min(x + 12, Math.max(0, this.canvas.clientWidth - 170))}px`;
    this.tip.style.top = `${y + 12}px`;
  }

  onKey(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) {
      let next = this.at + by;
      while (this.points[next] && !this.isShown(this.points[next][0])) next += by;
      if (this.points[next]) this.meet(next);
      event.preventDefault();
    }
    if (event.key === "Enter") {
      event.preventDefault(); // else it would press the button that has the focus then
      this.open(this.at);
    }
  }

  open(number) {
    if (number !== null) this.pick(this.points[number][0]);
  }
}
