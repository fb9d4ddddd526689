// Shared by the tabs that use a trained model: the choice of the model, and the page if there is none.

import { el } from "./dom.js";

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
