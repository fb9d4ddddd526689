// One photograph enlarged, with its label and findings; arrow keys move to the next, digits label it, and a label that
// was just given can be undone.

import { dialog, el, fill, keyOf } from "./dom.js";

/** tell: { label(text), undo(), given(), back() } */
export function lookAt(photos, grid, id, tell) {
  const image = el("img", { alt: "" });
  const about = el("div");
  const made = dialog("Photograph", image, about);
  made.classList.add("look");
  made.tabIndex = -1;

  function draw() {
    const own = grid.focused;
    image.src = `/api/data/picture/${photos.version}/${own}`;
    image.alt = photos.describe(own);
    fill(about, el("p", { class: "wrap" }, photos.paths[own]),
      el("p", {}, photos.describe(own).split(", ").slice(1).join(" · ")),
      el("div", { class: "row" },
        el("button", { type: "button", onclick: () => go(-1) }, "← Previous"),
        el("button", { type: "button", onclick: () => go(1) }, "Next →"),
        photos.classes.slice(0, 9).map((named, i) => el("button", { type: "button", "aria-pressed": String(photos.label(own) === named.name), onclick: () => give(named.name) }, keyOf(i), el("span", { class: "cut class-name" }, named.name))),
        el("button", { type: "button", title: "Delete", onclick: () => give("") }, "Leave out"),
        tell.given() && el("button", { type: "button", title: "Ctrl+Z", onclick: undo }, el("span", { class: "cut given" }, `Undo: ${tell.given()}`))));
    if (!made.contains(document.activeElement)) made.focus(); // the button that was pressed is another one now
  }

  function go(step) {
    grid.select([]);
    grid.move(grid.focus + step);
    draw();
  }

  async function give(name) {
    const before = grid.focused;
    await tell.label(name);
    if (grid.focused !== before || !grid.ids.length) draw();
    else go(1);
    if (!grid.ids.length) made.close();
  }

  async function undo() {
    await tell.undo();
    draw();
  }

  made.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !event.shiftKey && tell.given()) {
      event.preventDefault();
      undo();
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const named = /^[1-9]$/.test(event.key) ? photos.classes[Number(event.key) - 1] : null;
    if (event.key === "ArrowRight") go(1);
    else if (event.key === "ArrowLeft") go(-1);
    else if (named) give(named.name);
    else if (event.key === "Delete" || event.key === "Backspace") give("");
    else return;
    event.preventDefault();
  });
  made.addEventListener("close", tell.back);
  grid.select([]);
  grid.move(grid.ids.indexOf(id));
  draw();
}
