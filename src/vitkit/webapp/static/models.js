// Shared by the tabs that use a trained model: the choice of the model, the page if there is none, what a model says.

import { el, styleSheet } from "./dom.js";

const VIEWS = "/static/views/views.css"; // the style sheet of a report's views

export const UNFAMILIAR = 0.05;

/** Says that there is no model yet, with a link to the trainings. */
export function noModel(studio, title, about) {
  return el("section", { class: "panel" }, el("h2", {}, title), el("p", {}, about),
    el("button", { type: "button", class: "primary", onclick: () => studio.goto("train") }, "To the trainings"));
}

/** A list of models, in which the one in the address or the first is selected; `chosen` is called with another choice. */
export function modelChoice(studio, id, models, chosen) {
  const select = el("select", { id, onchange: () => chosen(select.value) }, models.map((name) => el("option", { value: name }, name)));
  select.value = models.includes(studio.where) ? studio.where : models[0];
  return select;
}

/** Loads the style sheet of a report's views; returns a function that takes it away again. */
export async function viewSheet() {
  const sheet = await styleSheet(VIEWS);
  return () => sheet.remove();
}

/** A sentence on how familiar a picture looks to the model; null if the model cannot tell. */
export function familiarity(part) {
  if (part === null) return null;
  return part <= UNFAMILIAR ? el("p", { class: "warn" }, `Familiarity ${percent(part)}: nearly all known photographs look more familiar. It may show none of the classes.`)
    : el("p", { class: "small soft" }, `Familiarity ${percent(part)}: the other known photographs look more familiar.`);
}

export function percent(part) {
  return `${(100 * part).toFixed(part > 0.9995 || part < 0.0005 ? 2 : 1)} %`;
}
