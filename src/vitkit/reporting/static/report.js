// The report: what stands in the page is shown again by views that answer to a click. Without a script it is read as it is.

import { ClassTable } from "./class_table.js";
import { ClassThresholds } from "./class_thresholds.js";
import { Confusion } from "./confusion.js";
import { percent } from "./dom.js";
import { Embedding } from "./embedding.js";
import { Enlarged, Selected } from "./enlarged.js";
import { Gallery } from "./gallery.js";
import { Doubts, Images } from "./images.js";
import { Reliability } from "./reliability.js";
import { Threshold } from "./threshold.js";

/** The page's own photographs and maps, by the image that they are of. */
function collect(attribute) {
  const found = new Map();
  for (const image of document.querySelectorAll(`img[${attribute}]`)) {
    const number = Number(image.getAttribute(attribute));
    found.set(number, [...(found.get(number) ?? []), [image.alt, image.src]]);
  }
  return found;
}

function start(data) {
  const [here, maps, doubted] = [collect("data-image"), collect("data-map"), collect("data-doubt")];
  const pictureOf = (i) => here.get(i)?.[0][1] ?? data.photographs[i] ?? null;
  const images = new Images(data.images, pictureOf);
  const enlarged = new Enlarged(images, (i) => maps.get(i) ?? []);
  const enlarge = (list, place) => enlarged.open(list, place);
  const selected = new Selected(images, enlarge);
  document.body.append(selected.element, enlarged.element);
  const select = (title, fits, expected) => selected.open(title, images.all.filter(fits), expected);

  const mount = (name, make) => {
    const place = document.querySelector(`[data-view="${name}"]`);
    if (place !== null && data[name] !== null && data[name] !== undefined) place.replaceChildren(make(data[name]).element);
  };
  mount("classes", (own) => new ClassTable(own, { pick: (number) => pickClass(images, number, own, select) }));
  mount("confusion", (own) => new Confusion({ classes: images.classes, ...own }, { pick: (label, said, count) => pickPair(images, label, said, count, select) }));
  mount("reliability", (own) => new Reliability(own, { pick: (bin, bins, count) => pickBin(images, bin, bins, count, select) }));
  mount("threshold", (own) => new Threshold(own, { pick: (at, isWithheld) => pickThreshold(images, at, isWithheld, select) }));
  mount("class_thresholds", (own) => new ClassThresholds(own));
  mount("embedding", (own) => new Embedding(images, own, { pick: (i) => enlarge([i], 0) }));
  mount("gallery", (own) => new Gallery(images, { ...own, enlarge }));
  mount("doubts", (own) => gallery(new Doubts({ classes: images.classes, ...own }, (i) => doubted.get(i)?.[0][1] ?? own.photographs[i] ?? null)));
  document.documentElement.classList.add("live");
}

function pickClass(images, number, { rows }, select) {
  const has = (i) => images.isOf(images.true, i, number) || images.isOf(images.said, i, number);
  select(`${rows[number].name}: of the class, or taken for it`, has);
}

function pickPair(images, label, said, count, select) {
  const fits = (i) => images.true[i] === label && images.said[i] === said;
  const title = label === said ? `${images.classes[label]}, found` : `${images.classes[label]}, taken for ${images.classes[said]}`;
  select(title, fits, count);
}

function pickBin(images, bin, bins, count, select) {
  const title = `Confidence ${percent(bin / bins, 0)} to ${percent((bin + 1) / bins, 0)}`;
  select(title, (i) => Math.max(0, Math.ceil(images.confidence[i] * bins) - 1) === bin, count);
}

function pickThreshold(images, at, isWithheld, select) {
  const title = isWithheld ? `Withheld below ${percent(at)}` : `Mistakes of at least ${percent(at)}`;
  select(title, (i) => (isWithheld ? images.confidence[i] < at : images.confidence[i] >= at && !images.isRight(i)));
}

/** The labels to look at, which open one by one like the others. */
function gallery(doubts) {
  const enlarged = new Enlarged(doubts);
  document.body.append(enlarged.element);
  return new Gallery(doubts, { controls: false, enlarge: (list, place) => enlarged.open(list, place) });
}

start(JSON.parse(document.getElementById("data").textContent));
