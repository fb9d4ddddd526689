// Elements from plain values. Names of classes and files are passed as strings and become text.

/**
 * An element.
 * @param {string} tag
 * @param {Object} properties attributes; `onclick` and the like are listeners; true and false set or leave out, and
 * null is left out; `value` is the element's own
 * @param {...(Node|string|Array|null|false)} children strings become text, never markup; null and false are left out
 */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Like `el`, for an SVG drawing. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...there(children));
  return node;
}

/** The children without those that are left out, as a flat list. */
export function there(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}

/** 0.9731 as "97.3 %". */
export function percent(part, digits = 1) {
  return `${(100 * part).toFixed(digits)} %`;
}

/** 12345 as "12,345". */
export function whole(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** "1 image", "2 images". */
export function plural(count, one, many) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

/** A drop-down list with its label. `choices` contains the value and text of each option. */
export function choice(label, choices, chosen, onchange) {
  const options = choices.map(([value, text]) => el("option", { value, selected: value === chosen }, text));
  const select = el("select", { onchange: () => onchange(select.value) }, ...options);
  return el("label", { class: "choice" }, label, select);
}

/** A text field with its label. */
export function search(label, onchange) {
  const input = el("input", { type: "search", spellcheck: "false", oninput: () => onchange(input.value) });
  return el("label", { class: "choice" }, label, input);
}

/** Takes what is dropped in `area`, and marks `place` while something is above it. */
export function takeDrops(place, dropped, area = place) {
  for (const kind of ["dragover", "dragenter"]) area.addEventListener(kind, (event) => { event.preventDefault(); place.classList.add("over"); });
  for (const kind of ["dragleave", "drop"]) area.addEventListener(kind, () => place.classList.remove("over"));
  area.addEventListener("drop", (event) => { event.preventDefault(); dropped(event.dataTransfer); });
}

const TONES = 10; // colours of classes, as in look.css

/** Shows the colour of a class by its place among all classes (-1: none). */
export function tint(node, place) {
  if (place < 0) delete node.dataset.tone;
  else node.dataset.tone = place % TONES;
  return node;
}

/** The name of a class, in its colour. */
export function chip(name, place) {
  return tint(el("span", { class: "chip" }, name), place);
}

/** A bar whose length is a share from 0 to 1, in the colour of a class. */
export function shareBar(share, place = -1) {
  return tint(svg("svg", { class: "bar", "aria-hidden": "true" }, svg("rect", { width: `${(100 * share).toFixed(1)}%`, height: "100%", rx: 4 })), place);
}

/** Whether two of these classes have the same colour. */
export function coloursRepeat(places) {
  return new Set(places.map((place) => place % TONES)).size < places.length;
}

/** The colours of classes, for drawings. */
export function tones() {
  const probe = document.body.appendChild(el("i", { hidden: true }));
  const found = Array.from({ length: TONES }, (_, place) => getComputedStyle(tint(probe, place)).getPropertyValue("--tone").trim());
  probe.remove();
  return (place) => found[place % TONES];
}
