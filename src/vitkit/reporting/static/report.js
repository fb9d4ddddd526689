// The report: interactive views replace the static content of the page. Without scripts, the page is read as it is.

import { Enlarged } from "./enlarged.js";
import { showEvaluation } from "./evaluation.js";
import { Gallery } from "./gallery.js";
import { Doubts } from "./images.js";

/** The photographs and maps that the page contains, by image. */
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
  const placeOf = (name) => document.querySelector(`[data-view="${name}"]`);
  const pictureOf = (i) => here.get(i)?.[0][1] ?? data.photographs[i] ?? null;
  showEvaluation(data, { placeOf, pictureOf, mapsOf: (i) => maps.get(i) ?? [], dialogs: document.body });
  const doubts = data.doubts;
  if (doubts !== null && placeOf("doubts") !== null) {
    const shown = new Doubts({ classes: data.images.classes, ...doubts }, (i) => doubted.get(i)?.[0][1] ?? doubts.photographs[i] ?? null);
    placeOf("doubts").replaceChildren(gallery(shown).element);
  }
  document.documentElement.classList.add("live");
}

/** The gallery of suspected label errors. */
function gallery(doubts) {
  const enlarged = new Enlarged(doubts);
  document.body.append(enlarged.element);
  return new Gallery(doubts, { controls: false, enlarge: (list, place) => enlarged.open(list, place) });
}

start(JSON.parse(document.getElementById("data").textContent));
