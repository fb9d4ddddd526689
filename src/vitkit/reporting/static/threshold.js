// The effect of rejecting predictions below a confidence: how many are left, and how many of them are right.
//
// Format: images, how many there are; answered, right: counts at the thresholds i / (n - 1). `pick(threshold, isWithheld)`.

import { el, percent, plural, svg } from "./dom.js";
import { axes, placeIn } from "./reliability.js";

export class Threshold {
  constructor({ images, answered, right }, { pick }) {
    Object.assign(this, { images, answered, right, steps: answered.length - 1 });
    const update = () => this.update();
    this.slider = el("input", { type: "range", min: 0, max: this.steps, step: 1, value: 0, oninput: update, "aria-label": "Minimum confidence of a prediction" });
    this.words = el("p", { role: "status" });
    this.mark = svg("line", { class: "mark" });
    const coverage = this.line(answered.map((count) => count / images), "coverage");
    const accuracy = this.line(answered.map((count, i) => (count ? right[i] / count : null)), "accuracy");
    const drawing = svg("svg", { class: "plot", viewBox: "0 0 440 300", role: "img", "aria-label": "Images kept, and correct predictions among them, by threshold" }, ...axes("minimum confidence", "of images"), coverage, accuracy, this.mark);
    const key = el("p", { class: "key" }, el("span", { class: "coverage" }, "kept"), el("span", { class: "accuracy" }, "right among the kept"));
    const look = (text, isWithheld) => el("button", { type: "button", onclick: () => pick(this.value, isWithheld) }, text);
    const buttons = el("p", { class: "buttons" }, look("Remaining mistakes", false), look("Rejected images", true));
    this.element = el("div", {}, el("label", { class: "slider" }, "Reject predictions below this confidence", this.slider), this.words, drawing, key, buttons);
    this.update();
  }

  get value() {
    return Number(this.slider.value) / this.steps;
  }

  line(parts, name) {
    const points = parts.flatMap((part, i) => (part === null ? [] : [placeIn(i / this.steps, part).join(",")]));
    return svg("polyline", { class: `line ${name}`, points: points.join(" ") });
  }

  update() {
    const i = Number(this.slider.value);
    const [answered, right] = [this.answered[i], this.right[i]];
    const [[x, top], [, bottom]] = [placeIn(this.value, 1), placeIn(this.value, 0)];
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: top, y2: bottom })) this.mark.setAttribute(name, value);
    this.slider.setAttribute("aria-valuetext", percent(this.value));
    const wrong = plural(answered - right, "mistake is", "mistakes are");
    const rest = answered ? `${percent(right / answered)} of those are right, ${wrong} left` : "no image is left";
    this.words.textContent = `At ${percent(this.value)}: ${percent(answered / this.images)} of the images are kept (${answered} of ${this.images}); ${rest}.`;
  }
}
