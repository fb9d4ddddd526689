// How often predictions of a given confidence are right; a click on a bar shows its photographs.
//
// Format: now and before (null without a temperature), each {counts, confidence, accuracy, ece}, a number for each of
// as many bins of confidence, (low, high]. `pick(bin, bins, images)`.

import { el, percent, plural, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, TOP] = [440, 300, 52, 10]; // of the drawing; room for the axes
const [X, Y] = [(part) => LEFT + part * (WIDTH - LEFT - 10), (part) => TOP + (1 - part) * (HEIGHT - TOP - 48)];

const FEW = 10; // images, of which a bar says little

export class Reliability {
  constructor({ now, before }, { pick }) {
    Object.assign(this, { now, pick, bins: now.counts.length });
    const bars = now.counts.map((count, bin) => (count ? this.bar(bin) : null));
    const outline = before ? before.counts.map((count, bin) => (count ? this.outline(before, bin) : null)) : [];
    const line = svg("line", { class: "ideal", x1: X(0), y1: Y(0), x2: X(1), y2: Y(1) });
    const label = "Fraction of correct predictions, by confidence";
    const drawing = svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": label }, ...axes("confidence", "right"), ...bars, ...outline, line);
    this.words = el("p", { class: "soft" }, `Ideally, the bars end on the dashed line: of the predictions with 80 % confidence, 80 % are right. Pale bars are of fewer than ${FEW} images.`);
    const was = before ? ` It was ${before.ece.toFixed(4)} at temperature 1 (hollow marks).` : "";
    const error = el("p", {}, `Calibration error: ${now.ece.toFixed(4)}, the mean gap between confidence and accuracy.${was}`);
    this.element = el("div", {}, drawing, error, this.words);
  }

  bar(bin) {
    const { counts, accuracy } = this.now;
    const [low, high] = [bin / this.bins, (bin + 1) / this.bins];
    const text = `confidence ${percent(low, 0)} to ${percent(high, 0)}: ${plural(counts[bin], "image", "images")}, ${percent(accuracy[bin])} right`;
    const open = () => this.pick(bin, this.bins, counts[bin]);
    const few = counts[bin] < FEW ? "few" : null;
    const rect = svg("rect", { class: few, x: X(low) + 1, width: X(high) - X(low) - 2, y: Y(accuracy[bin]), height: Math.max(2, Y(0) - Y(accuracy[bin])) });
    const reach = svg("rect", { class: "reach", x: X(low), width: X(high) - X(low), y: Y(1), height: Y(0) - Y(1) }); // a low bar is clicked too
    const listeners = {
      onclick: open,
      onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          open();
        }
      },
      onpointerenter: () => (this.words.textContent = text),
      onfocus: () => (this.words.textContent = text),
    };
    return svg("g", { class: "bar", role: "button", tabindex: "0", "aria-label": text, ...listeners }, svg("title", {}, text), reach, rect);
  }

  outline(before, bin) {
    const middle = X((bin + 0.5) / this.bins);
    return svg("circle", { class: "before", cx: middle, cy: Y(before.accuracy[bin]), r: 4 });
  }
}

/** Both axes, 0 to 100 %, with their names. */
export function axes(across, up) {
  const at = [0, 0.25, 0.5, 0.75, 1];
  const lines = at.map((part) => svg("line", { class: "grid", x1: X(0), x2: X(1), y1: Y(part), y2: Y(part) }));
  const below = at.map((part) => svg("text", { x: X(part), y: Y(0) + 18, "text-anchor": "middle" }, `${100 * part}`));
  const beside = at.map((part) => svg("text", { x: X(0) - 8, y: Y(part) + 5, "text-anchor": "end" }, `${100 * part}`));
  const name = svg("text", { x: X(0.5), y: HEIGHT - 8, "text-anchor": "middle" }, `${across}, %`);
  const turned = svg("text", { x: 14, y: Y(0.5), transform: `rotate(-90 14 ${Y(0.5)})`, "text-anchor": "middle" }, `${up}, %`);
  return [...lines, ...below, ...beside, name, turned];
}

/** The position in the drawing of values between 0 and 1. */
export function placeIn(across, up) {
  return [X(across), Y(up)];
}
