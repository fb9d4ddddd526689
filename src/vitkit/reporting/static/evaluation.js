// All views of an evaluation, each in its element of the page, and the photographs of what is clicked.

import { ClassTable } from "./class_table.js";
import { ClassThresholds } from "./class_thresholds.js";
import { Confusion } from "./confusion.js";
import { percent } from "./dom.js";
import { Embedding } from "./embedding.js";
import { Enlarged, Selected } from "./enlarged.js";
import { Gallery } from "./gallery.js";
import { Images } from "./images.js";
import { Reliability } from "./reliability.js";
import { Threshold } from "./threshold.js";

/**
 * Show what `data` holds (`reporting/report_data.py`): `placeOf(name)` is the element whose content a view takes the
 * place of, or null. `pictureOf(i)` and `largeOf(i)` are addresses of photographs, `mapsOf(i)` of pictures beside
 * them; `actionsOf(i)` are elements below an enlarged one; dialogs become children of `dialogs`.
 */
export function showEvaluation(data, { placeOf, pictureOf, largeOf = pictureOf, mapsOf = () => [], actionsOf = () => [], dialogs }) {
  const images = new Images(data.images, pictureOf, largeOf);
  const enlarged = new Enlarged(images, mapsOf, actionsOf);
  const enlarge = (list, place) => enlarged.open(list, place);
  const selected = new Selected(images, enlarge);
  dialogs.append(selected.element, enlarged.element);
  const select = (title, fits, expected) => selected.open(title, images.all.filter(fits), expected);

  const mount = (name, make) => {
    const place = placeOf(name);
    if (place !== null && data[name] !== null && data[name] !== undefined) place.replaceChildren(make(data[name]).element);
  };
  mount("classes", (own) => new ClassTable(own, { pick: (number) => pickClass(images, number, own, select) }));
  mount("confusion", (own) => new Confusion({ classes: images.classes, ...own }, { pick: (label, said, count) => pickPair(images, label, said, count, select) }));
  mount("reliability", (own) => new Reliability(own, { pick: (bin, bins, count) => pickBin(images, bin, bins, count, select) }));
  mount("threshold", (own) => new Threshold(own, { pick: (at, isWithheld) => pickThreshold(images, at, isWithheld, select) }));
  mount("class_thresholds", (own) => new ClassThresholds(own));
  mount("embedding", (own) => new Embedding(images, own, { pick: (i) => enlarge([i], 0) }));
  mount("gallery", (own) => new Gallery(images, { ...own, enlarge }));
}

function pickClass(images, number, { rows }, select) {
  const has = (i) => images.isOf(images.true, i, number) || images.isOf(images.said, i, number);
  select(`${rows[number].name}: images of the class, or predicted as it`, has);
}

function pickPair(images, label, said, count, select) {
  const fits = (i) => images.true[i] === label && images.said[i] === said;
  const title = label === said ? `${images.classes[label]}, predicted correctly` : `${images.classes[label]}, predicted as ${images.classes[said]}`;
  select(title, fits, count);
}

function pickBin(images, bin, bins, count, select) {
  const title = `Confidence ${percent(bin / bins, 0)} to ${percent((bin + 1) / bins, 0)}`;
  select(title, (i) => Math.max(0, Math.ceil(images.confidence[i] * bins) - 1) === bin, count);
}

function pickThreshold(images, at, isWithheld, select) {
  const title = isWithheld ? `Rejected below ${percent(at)}` : `Mistakes with a confidence of at least ${percent(at)}`;
  select(title, (i) => (isWithheld ? images.confidence[i] < at : images.confidence[i] >= at && !images.isRight(i)));
}
