// What tabs that ask a trained model have in common: which model, and what is said where there is none.

import { el } from "./dom.js";

/** Says that there is no model yet, and leads to the trainings. */
export function noModel(studio, title, about) {
  return el("section", { class: "panel" }, el("h2", {}, title), el("p", {}, about),
    el("button", { type: "button", class: "primary", onclick: () => studio.goto("train") }, "To the trainings"));
}

/** A list of models, of which the one in the address is chosen, else the first; `chosen` is told of another. */
export function modelChoice(studio, id, models, chosen) {
  const select = el("select", { id, onchange: () => chosen(select.value) }, models.map((name) => el("option", { value: name }, name)));
  select.value = models.includes(studio.where) ? studio.where : models[0];
  return select;
}
