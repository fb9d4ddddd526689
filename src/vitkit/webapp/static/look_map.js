// Draws grids of values from 0 to 255: upon a picture, or by themselves.

import { el } from "./dom.js";

const STOPS = [[0, 0, 0, 4], [0.125, 29, 17, 71], [0.25, 81, 18, 124], [0.375, 131, 38, 129], [0.5, 183, 55, 121], [0.625, 230, 81, 100], [0.75, 252, 137, 97], [0.875, 254, 194, 135], [1, 252, 253, 191]];

/** The colour of a part from 0 to 1, dark to bright: magma, as in the pictures of vitkit explain. */
function colour(part) {
  const above = STOPS.findIndex((own) => own[0] >= part);
  if (above <= 0) return STOPS[0].slice(1);
  const [low, high] = [STOPS[above - 1], STOPS[above]];
  const along = (part - low[0]) / (high[0] - low[0]);
  return [1, 2, 3].map((i) => Math.round(low[i] + along * (high[i] - low[i])));
}

/** A small canvas with a point for each value; `strength` is how opaque the largest is. */
export function grid(values, strength = 1, fade = false) {
  const made = document.createElement("canvas");
  made.height = values.length;
  made.width = values[0].length;
  const context = made.getContext("2d");
  const image = context.createImageData(made.width, made.height);
  values.flat().forEach((value, i) => {
    const part = value / 255;
    image.data.set([...colour(part), Math.round(255 * strength * (fade ? 0.25 + 0.75 * part : 1))], 4 * i);
  });
  context.putImageData(image, 0, 0);
  return made;
}

/** Draws a picture and, on the part of it that the model saw (left, top, right, bottom, 0 to 1), a grid. */
export async function overlay(canvas, picture, values, box) {
  const image = new Image();
  image.src = picture;
  await image.decode();
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const [left, top, right, bottom] = [box[0] * canvas.width, box[1] * canvas.height, box[2] * canvas.width, box[3] * canvas.height];
  context.fillStyle = "rgb(0 0 0 / 45%)"; // what the model did not see
  context.beginPath();
  context.rect(0, 0, canvas.width, canvas.height);
  context.rect(left, top, right - left, bottom - top);
  context.fill("evenodd");
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(grid(values, 0.72, true), left, top, right - left, bottom - top);
}

/** The colour scale: from zero to the largest value of the map. */
export function scale() {
  const strip = grid([Array.from({ length: 64 }, (_, i) => (i * 255) / 63)]);
  strip.setAttribute("aria-hidden", "true");
  return el("p", { class: "look-scale small soft" }, "none", strip, "most");
}
