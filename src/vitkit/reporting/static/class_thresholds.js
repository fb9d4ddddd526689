// For images with several classes: how the threshold of a class affects its precision and recall.
//
// Format: classes [{name, at, support, said, right}]: the threshold in use; images that have the class; and at the
// thresholds i / (n - 1), images that are said to have it, and how many of them do.

import { choice, el, percent, plural } from "./dom.js";

export class ClassThresholds {
  constructor({ classes }) {
    this.classes = classes;
    this.slider = el("input", { type: "range", min: 0, max: classes[0].said.length - 1, step: 1, oninput: () => this.update(), "aria-label": "Threshold of the class" });
    this.words = el("p", { role: "status" });
    const pick = choice("Class", classes.map((own, i) => [String(i), own.name]), "0", (value) => this.turn(Number(value)));
    this.element = el("div", {}, pick, el("label", { class: "slider" }, "Predict the class from this probability", this.slider), this.words);
    this.turn(0);
  }

  turn(number) {
    this.own = this.classes[number];
    this.slider.value = Math.round(this.own.at * (this.own.said.length - 1));
    this.update();
  }

  update() {
    const { own } = this;
    const i = Number(this.slider.value);
    const [said, right] = [own.said[i], own.right[i]];
    const at = percent(i / (own.said.length - 1), 0);
    this.slider.setAttribute("aria-valuetext", at);
    const found = own.support ? `${percent(right / own.support)} of the ${plural(own.support, "image", "images")} of the class are found (recall)` : "no image has the class";
    const holds = said ? `${percent(right / said)} of the ${plural(said, "image", "images")} predicted to have the class have it (precision)` : "it is predicted for no image";
    this.words.textContent = `With the threshold ${at} (in use: ${percent(own.at)}): ${found}; ${holds}.`;
  }
}
