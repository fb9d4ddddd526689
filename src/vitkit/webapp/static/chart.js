// A drawing of a few lines, with the same numbers as a table for readers who cannot see it.

import { el, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [420, 210, 44, 26];

/** lines: [{ title, points: [[x, y], ...] }], of which the empty ones are left out. */
export function chart(title, across, lines, { percent = false } = {}) {
  const drawn = lines.filter((line) => line.points.length);
  if (!drawn.length) return null;
  const points = drawn.flatMap((line) => line.points);
  const show = (value) => (percent ? `${Math.round(100 * value)} %` : Number(value.toPrecision(3)).toString());
  if (drawn.every((line) => line.points.length === 1)) return el("p", { class: "chart" }, `${title}: ${drawn.map((line) => `${show(line.points[0][1])} ${line.title}`).join(", ")}.`);
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = percent ? [Math.min(0.5, ...ys), 1] : [Math.min(0, ...ys), Math.max(...ys)];
  if (y1 === y0) y1 = y0 + 1;
  const x = (value) => LEFT + (x1 === x0 ? 0.5 : (value - x0) / (x1 - x0)) * (WIDTH - LEFT - 10);
  const y = (value) => 10 + (1 - (value - y0) / (y1 - y0)) * (HEIGHT - 10 - BOTTOM);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${drawn.map((line) => `${line.title} ${show(line.points[0][1])} to ${show(line.points.at(-1)[1])}`).join("; ")}` });
  for (const part of [0, 0.5, 1]) {
    const value = y0 + part * (y1 - y0);
    picture.append(svg("line", { x1: LEFT, x2: WIDTH - 10, y1: y(value), y2: y(value), class: "rule" }), svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, show(value)));
  }
  picture.append(svg("text", { x: LEFT, y: HEIGHT - 6 }, `${across} ${x0}`), svg("text", { x: WIDTH - 10, y: HEIGHT - 6, "text-anchor": "end" }, String(x1)));
  drawn.forEach((line, i) => {
    const path = line.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
    picture.append(svg("polyline", { points: path, class: `line line-${i}` }));
    const [a, b] = line.points.at(-1);
    picture.append(svg("circle", { cx: x(a), cy: y(b), r: 3.5, class: `dot dot-${i}` }));
  });
  const key = el("p", { class: "small key" }, drawn.map((line, i) => el("span", { class: `key-${i}` }, el("i", { "aria-hidden": "true" }), line.title)));
  return el("figure", { class: "chart" }, el("figcaption", {}, title), picture, key, table(across, drawn, show));
}

function table(across, lines, show) {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const cells = lines.map((line) => new Map(line.points));
  return el("details", { class: "small" }, el("summary", {}, "The numbers"),
    el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "The numbers" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, across), lines.map((line) => el("th", {}, line.title)))),
      el("tbody", {}, xs.map((x) => el("tr", {}, el("td", {}, String(x)), cells.map((own) => el("td", {}, own.has(x) ? show(own.get(x)) : ""))))))));
}
