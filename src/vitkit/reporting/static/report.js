// The report: interactive views in the elements of the page.

import { Enlarged } from "./enlarged.js";
import { showEvaluation } from "./evaluation.js";
import { Gallery } from "./gallery.js";
import { Doubts } from "./images.js";

function start(data) {
  const maps = new Map(); // the pictures of the regions that led to a mistake, by image
  for (const image of document.querySelectorAll("img[data-map]")) {
    const number = Number(image.getAttribute("data-map"));
    maps.set(number, [...(maps.get(number) ?? []), [image.alt, image.src]]);
  }
  const placeOf = (name) => document.querySelector(`[data-view="${name}"]`);
  const pictureOf = (i) => data.photographs[i] ?? null;
  showEvaluation(data, { placeOf, pictureOf, mapsOf: (i) => maps.get(i) ?? [], dialogs: document.body });
  const doubts = data.doubts;
  if (doubts !== null && placeOf("doubts") !== null) {
    const shown = new Doubts({ classes: data.images.classes, ...doubts }, (i) => doubts.photographs[i] ?? null);
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
