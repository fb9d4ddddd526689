// The Look tab: what a model predicts for a picture, and where it looks.

import { fail, get, postBytes, say } from "./api.js";
import { el, fill, shareBar, takeDrops } from "./dom.js";
import { PatchView } from "./look_patch.js";
import { overlay, scale } from "./look_map.js";
import { familiarity, modelChoice, noModel, percent, UNFAMILIAR } from "./models.js";

const TITLES = {
  gradient: "Evidence for this class", rollout: "Attention through all layers", raw: "Attention in the last layer",
  occlusion: "Effect of covering each part",
};

export async function show(main, studio) {
  const page = new LookPage(studio);
  await page.build(main);
  return () => page.leave();
}

class LookPage {
  constructor(studio) {
    this.studio = studio;
    this.turn = 0;
    this.pasted = (event) => {
      const file = [...(event.clipboardData?.files || [])].find((own) => own.type.startsWith("image/"));
      if (file) this.bring(file);
    };
  }

  async build(main) {
    const { models } = await get("/api/look/models");
    if (!models.length) {
      fill(main, noModel(this.studio, "No model is trained yet", "Once a training is done, bring any picture here and see what its model predicts."));
      return;
    }
    this.found = el("div", { "aria-live": "polite" });
    const model = modelChoice(this.studio, "look-model", models, (name) => { this.run = name; this.look(); });
    this.run = model.value;
    fill(main, el("section", { class: "panel look-bring", "aria-label": "A picture" },
      el("div", { class: "row" }, el("label", { for: "look-model" }, "Ask the model of"), model), this.drop()), this.found);
    document.addEventListener("paste", this.pasted);
  }

  leave() {
    this.turn += 1;
    document.removeEventListener("paste", this.pasted);
  }

  // --- Bringing a picture -----------------------------------------------------------------------------------

  drop() {
    const choose = el("input", { type: "file", accept: "image/*,.heic,.heif,.avif", class: "unseen", id: "look-file", onchange: () => this.take(choose) });
    const camera = el("input", { type: "file", accept: "image/*", capture: "environment", class: "unseen", id: "look-camera", onchange: () => this.take(camera) });
    const place = el("div", { class: "drop" },
      el("p", {}, "Drop a picture here, paste one (", el("kbd", {}, "Ctrl"), " ", el("kbd", {}, "V"), "), or"),
      el("div", { class: "row" }, choose, el("label", { for: "look-file", class: "button primary" }, "Choose a picture"),
        camera, el("label", { for: "look-camera", class: "button" }, "Use camera")),
      el("p", { class: "small soft" }, "It stays on this machine and is not kept."));
    takeDrops(place, ({ files }) => { if (files.length) this.bring(files[0]); });
    return place;
  }

  take(input) {
    if (input.files.length) this.bring(input.files[0]);
    input.value = "";
  }

  bring(file) {
    this.file = file;
    this.look();
  }

  /** Sends a request about the picture; returns null if it failed or another picture was chosen meanwhile. */
  async ask(what, more = {}) {
    const turn = this.turn;
    const query = new URLSearchParams({ run: this.run, ...more });
    try {
      const told = await postBytes(`/api/look/${what}?${query}`, this.file);
      if (turn !== this.turn) return null;
      return told;
    } catch (error) {
      if (turn === this.turn) fail(error);
      return null;
    }
  }

  async look() {
    if (!this.file) return;
    this.turn += 1;
    this.target = "top";
    const waits = el("p", { class: "soft" }, "Looking …");
    fill(this.found, waits);
    const seen = await this.ask("see");
    if (!seen) {
      if (waits.isConnected) fill(this.found);
      return;
    }
    this.seen = seen;
    this.draw();
  }

  // --- What was found ---------------------------------------------------------------------------------------

  draw() {
    const { seen } = this;
    this.maps = [0, 1].map((place) => this.mapFigure(place));
    const said = seen.multi && !seen.label ? "None of the classes" : seen.label;
    fill(this.found,
      el("section", { class: "panel verdict", "data-level": seen.familiar !== null && seen.familiar <= UNFAMILIAR ? "warning" : "note", "aria-label": "What the model says" },
        el("span", { class: "figure" }, percent(seen.confidence)),
        el("div", {}, el("h2", { class: "sentence" }, said), familiarity(seen.familiar),
          seen.note && el("p", { class: "warn small" }, `It may be meant to be brighter or darker: ${seen.note}`))),
      el("section", { class: "panel", "aria-label": "Where it looks" }, el("h2", {}, "Where it looks"),
        el("p", { class: "small soft" }, seen.methods.length ? "Click a class to see the evidence for it." : ""),
        el("ul", { class: "look-classes" }, seen.top.map((own) => this.classRow(own))),
        el("div", { class: "look-maps" },
          el("figure", {}, el("figcaption", {}, "The photograph"), el("img", { src: seen.picture, alt: "The picture as it was brought" })),
          this.maps.filter((own) => own).map((own) => own.figure))),
      seen.grid && new PatchView(seen, (row, column) => this.ask("patch", { row, column })).element);
    for (const own of this.maps) own?.load();
  }

  classRow(own) {
    const row = el("button", { type: "button", class: "look-class", "aria-pressed": String(own.label === this.seen.label), onclick: () => {
      this.target = own.label;
      for (const other of this.found.querySelectorAll(".look-class")) other.setAttribute("aria-pressed", String(other === row));
      for (const map of this.maps) map?.load();
      say(`Shown: the evidence for ${own.label}`);
    } }, el("span", { class: "cut" }, own.label), el("span", { class: "number" }, percent(own.confidence)), shareBar(own.confidence));
    return el("li", {}, row);
  }

  /** One of the two maps next to the photograph, and the choice of its method. */
  mapFigure(place) {
    const { methods } = this.seen;
    if (place >= methods.length) return null;
    const canvas = el("canvas", { role: "img" });
    const tells = el("span", { class: "small soft" });
    const choice = el("select", { "aria-label": `Map ${place + 1}: method`, onchange: () => load() }, methods.map((own) => el("option", { value: own.name }, TITLES[own.name] || own.name)));
    choice.value = methods[place].name;
    const load = async () => {
      const method = choice.value;
      tells.textContent = methods.find((own) => own.name === method).tells;
      canvas.classList.add("waits");
      canvas.setAttribute("aria-label", `${TITLES[method] || method}: being drawn`);
      const found = await this.ask("map", { method, target: this.target });
      if (!found || method !== choice.value) return;
      canvas.setAttribute("aria-label", `${TITLES[method] || method}, ${found.target}`);
      await overlay(canvas, this.seen.picture, found.map, found.box);
      canvas.classList.remove("waits");
    };
    return { figure: el("figure", {}, el("figcaption", {}, choice), canvas, scale(), tells), load };
  }
}
