// One photograph enlarged, with its label and findings; arrow keys move to the next, digits label it.

import { dialog, el, fill } from "./dom.js";

export function lookAt(photos, grid, id, label, closed) {
  const image = el("img", { alt: "" });
  const about = el("div", { class: "look-about" });
  const made = dialog("Photograph", image, about);
  made.classList.add("look");

  function draw() {
    const own = grid.focused;
    image.src = `/api/data/picture/${photos.version}/${own}`;
    image.alt = photos.describe(own);
    fill(about, el("p", { class: "wrap" }, photos.paths[own]),
      el("p", {}, photos.describe(own).split(", ").slice(1).join(" · ")),
      el("div", { class: "row" },
        el("button", { type: "button", onclick: () => go(-1) }, "← Previous"),
        el("button", { type: "button", onclick: () => go(1) }, "Next →"),
        photos.classes.slice(0, 9).map((named, i) => el("button", { type: "button", "aria-pressed": String(photos.label(own) === named.name), onclick: () => give(named.name) }, el("kbd", {}, String(i + 1)), el("span", { class: "cut class-name" }, named.name)))));
  }

  function go(step) {
    grid.select([]);
    grid.move(grid.focus + step);
    draw();
  }

  async function give(name) {
    const before = grid.focused;
    await label(name);
    if (grid.focused !== before || !grid.ids.length) draw();
    else go(1);
    if (!grid.ids.length) made.close();
  }

  made.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const named = /^[1-9]$/.test(event.key) ? photos.classes[Number(event.key) - 1] : null;
    if (event.key === "ArrowRight") go(1);
    else if (event.key === "ArrowLeft") go(-1);
    else if (named) give(named.name);
    else return;
    event.preventDefault();
  });
  made.addEventListener("close", closed);
  grid.select([]);
  grid.move(grid.ids.indexOf(id));
  draw();
}
