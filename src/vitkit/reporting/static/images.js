// The images of an evaluation, as passed to the views.
//
// Format (`reporting/report_data.py` writes it, and the studio's server sends the same):
//   classes     names
//   total       how many images were evaluated
//   path        of each image that is listed here; there may be fewer than `total`
//   true, said  its class and the predicted one, as numbers in `classes`; lists of numbers where it may have several
//   confidence  0 to 1, in the predicted class
//   since       where labels have changed since an earlier run: the label that an image has now, or null
// Labels that are likely wrong:
//   classes, path, label, suggested (numbers in `classes`), score (0 to 1)
// A photograph comes from `pictureOf(i)`, a larger one from `largeOf(i)`: an address, or null where there is none.

import { chip, percent } from "./dom.js";

/** The classes, predictions and photographs of the images, for all views. */
export class Images {
  constructor(data, pictureOf, largeOf = pictureOf) {
    Object.assign(this, data, { pictureOf, largeOf });
    this.all = Array.from(this.path.keys());
    this.isMulti = this.all.length > 0 && Array.isArray(this.true[0]);
  }

  isRight(i) {
    return String(this.true[i]) === String(this.said[i]);
  }

  isOf(numbers, i, label) {
    return this.isMulti ? numbers[i].includes(label) : numbers[i] === label;
  }

  names(numbers) {
    const own = [numbers].flat().map((number) => this.classes[number]);
    return own.length ? own.join(", ") : "none";
  }

  /** Classes in their colours. */
  chips(numbers) {
    const own = [numbers].flat().map((number) => chip(this.classes[number], number));
    return own.length ? own.flatMap((node, place) => (place ? [" ", node] : [node])) : ["none"];
  }

  /** The caption of an image, as lines, each of which is a list of elements and text. */
  lines(i) {
    const now = this.since?.[i] ?? null;
    const since = now === null ? [] : [[`now: ${now}`]];
    return [["your label: ", ...this.chips(this.true[i])], ...since, ["predicted: ", ...this.chips(this.said[i]), ` ${percent(this.confidence[i]).replace(" ", "\u00a0")}`]];
  }

  /** Whether a word is in its path or in one of its classes. */
  mentions(i, word) {
    return [this.path[i], this.names(this.true[i]), this.names(this.said[i])].some((text) => text.toLowerCase().includes(word));
  }
}

/** Suspected label errors, used like `Images`; a higher score is more doubtful. */
export class Doubts extends Images {
  constructor({ classes, path, label, suggested, score }, pictureOf) {
    super({ classes, path, total: path.length, true: label, said: suggested, confidence: score }, pictureOf);
  }

  lines(i) {
    return [["your label: ", ...this.chips(this.true[i])], ["looks like: ", ...this.chips(this.said[i]), ` (by ${this.confidence[i].toFixed(2)})`]];
  }
}
