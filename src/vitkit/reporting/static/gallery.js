// Photographs with their labels and predictions: sorted, filtered, enlarged.

import { choice, el, plural, search, whole } from "./dom.js";

const ORDERS = {
  sure: ["most confident first", (images) => (a, b) => images.confidence[b] - images.confidence[a]],
  unsure: ["least confident first", (images) => (a, b) => images.confidence[a] - images.confidence[b]],
  path: ["by file name", (images) => (a, b) => (images.path[a] < images.path[b] ? -1 : 1)],
};

const KINDS = {
  all: ["all images", () => true],
  wrong: ["mistakes", (images, i) => !images.isRight(i)],
  right: ["right answers", (images, i) => images.isRight(i)],
};

/**
 * A gallery in `element`.
 *
 * options: `chosen`, numbers of images (all); `kind`, `order`, where it begins; `enlarge(list, place)`, called with
 * the images in their order and which of them was clicked; `controls`, whether there are filters; `page`, how many are
 * shown at first, and more with each click.
 */
export class Gallery {
  constructor(images, { chosen = images.all, kind = "all", order = "sure", enlarge, controls = true, page = 14 }) {
    Object.assign(this, { images, chosen, kind, order, enlarge, page });
    this.word = "";
    this.isPicturedOnly = this.lacks();
    this.count = el("p", { class: "soft", "aria-live": "polite" });
    this.list = el("ul", { class: "cards" });
    this.more = el("button", { type: "button", onclick: () => this.showMore() });
    this.element = el("div", { class: "gallery" }, ...(controls ? [this.controls()] : []), this.count, this.list, this.more);
    this.update();
  }

  lacks() {
    return this.chosen.some((i) => this.images.pictureOf(i) === null) && this.chosen.some((i) => this.images.pictureOf(i) !== null);
  }

  controls() {
    const texts = (table) => Object.entries(table).map(([name, [text]]) => [name, text]);
    return el(
      "div",
      { class: "controls" },
      choice("Show", texts(KINDS), this.kind, (value) => this.set({ kind: value })),
      choice("Order", texts(ORDERS), this.order, (value) => this.set({ order: value })),
      search("Name or class", (value) => this.set({ word: value.trim().toLowerCase() })),
      this.lacks() ? this.box() : null,
    );
  }

  box() {
    const input = el("input", { type: "checkbox", checked: true, onchange: () => this.set({ isPicturedOnly: input.checked }) });
    return el("label", { class: "box" }, input, "only images whose photograph is in this page");
  }

  set(changes) {
    Object.assign(this, changes);
    this.update();
  }

  update() {
    const { images, word } = this;
    const fits = KINDS[this.kind][1];
    const found = this.chosen.filter((i) => fits(images, i) && (!word || images.mentions(i, word)));
    const shown = this.isPicturedOnly ? found.filter((i) => images.pictureOf(i) !== null) : found;
    this.found = shown.sort(ORDERS[this.order][1](images));
    const here = this.isPicturedOnly && shown.length < found.length ? `; photographs of ${whole(shown.length)} are in this page` : "";
    this.count.textContent = `${plural(found.length, "image", "images")}${here}`;
    this.list.replaceChildren();
    this.showMore();
  }

  showMore() {
    const place = this.list.childElementCount;
    this.list.append(...this.found.slice(place, place + this.page).map((i, own) => this.card(i, place + own)));
    const left = this.found.length - this.list.childElementCount;
    this.more.hidden = left === 0;
    this.more.textContent = `Show more (${whole(left)} left)`;
  }

  card(i, place) {
    const { images } = this;
    const lines = [...images.lines(i), images.path[i]].map((line) => el("span", {}, line));
    const state = images.isRight(i) ? "right" : "wrong";
    const open = () => this.enlarge(this.found, place);
    return el("li", {}, el("button", { type: "button", class: `card ${state}`, onclick: open }, photograph(images.pictureOf(i)), ...lines));
  }
}

/** A photograph in a square; one of few pixels is enlarged so that each is seen. */
export function photograph(address, alt = "") {
  if (address === null) return el("span", { class: "frame none" }, "the photograph is not in this page");
  const image = sharp(el("img", { alt, loading: "lazy", decoding: "async" }));
  image.src = address;
  return el("span", { class: "frame" }, image);
}

/** An image; one of few pixels is enlarged so that each is seen. */
export function sharp(image) {
  image.addEventListener("load", () => image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) < 100));
  return image;
}
