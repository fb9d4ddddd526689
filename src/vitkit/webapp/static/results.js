// The Results tab: how good a model is, its right and wrong predictions, and suspected label errors.

import { fail, get, post, say } from "./api.js";
import { chip, count, el, fill, verdict } from "./dom.js";
import { viewSheet } from "./models.js";
import { Corrections } from "./results_label.js";
import { showEvaluation } from "./views/evaluation.js";
import { sharp } from "./views/gallery.js";

const PARTS = [
  ["confusion", "What is mixed up", "Click a cell to see its photographs."],
  ["classes", "Each class", "Precision: the fraction of the photographs predicted as the class that belong to it. Recall: the fraction of the class that is found."],
  ["gallery", "Photographs", "Each photograph with its class and the prediction; click one to enlarge it, and to correct its label."],
  ["reliability", "How sure it is", "If the confidence is 80 %, 80 of 100 answers should be right. Click a bar to see its photographs."],
  ["threshold", "Withhold unsure answers", "How many predictions remain, and how many of them are right."],
  ["class_thresholds", "Thresholds", "The probability from which a class is predicted."],
  ["embedding", "As the model sees them", "Photographs that look similar to the model are close together; a ring marks a mistake."],
];
const LAYOUT = [[["confusion"], ["classes", "reliability"]], [["gallery"]], "labels", [["threshold", "class_thresholds"], ["embedding"]]]; // columns in rows
const FEW = 10, MORE = 30; // doubtful labels shown at first, and with each press
const STATES = { open: "", kept: "kept as it is", relabelled: "relabelled", excluded: "left out" };

export async function show(main, studio) {
  const left = await viewSheet();
  await new ResultsPage(studio).build(main);
  return left;
}

class ResultsPage {
  constructor(studio) {
    this.studio = studio;
  }

  async build(main) {
    this.runs = (await get("/api/results/runs")).runs;
    this.detail = el("div");
    if (!this.runs.length) {
      fill(main, el("p", { class: "soft" }, "No training is done yet. When one is, its results are here."));
      return;
    }
    const named = (name) => this.runs.find((run) => run.name === name);
    const asked = named(this.studio.where) || named(this.studio.first_run);
    fill(main, this.detail);
    await this.choose((asked || this.runs[0]).name);
  }

  /** The list of runs. */
  choices() {
    const runs = this.runs.map((run) => el("option", { value: run.name }, `${run.name}: ${percent(run.figures.accuracy)}${run.figures.split === "val" ? " (validation)" : ""}`));
    const select = el("select", { id: "results-run", "data-focus": "results-run", onchange: () => this.choose(select.value) }, runs);
    select.value = this.name;
    return [el("label", { for: "results-run" }, "Run"), select];
  }

  verdict() {
    const { figures, interval, caveats, verdict: told } = this.runs.find((run) => run.name === this.name);
    const { accuracy, balanced_accuracy: alike, images, split } = figures;
    const kind = split === "val" ? "validation photographs, on which the figures are too optimistic" : `${split} photographs`;
    const parts = [`${this.name}, on ${images} ${kind}`, interval && `95 % interval ${percent(interval[0])} to ${percent(interval[1])}`, alike !== undefined && `${percent(alike)} on average over the classes`];
    return verdict(told, accuracy !== null && percent(accuracy), [el("p", { class: "soft wrap" }, parts.filter(Boolean).join("; ")), caveats.map((text) => el("p", { class: "small soft wrap" }, text))]);
  }

  async choose(name) {
    const turn = (this.turn = {});
    this.name = name;
    this.most = FEW;
    this.decided = null; // the doubtful label that was decided last
    const tools = el("div", { class: "row results-tools" }, this.choices());
    fill(this.detail, this.verdict(), tools, el("p", { class: "soft" }, "Loading …"));
    try {
      const address = `/api/results/runs/${encodeURIComponent(name)}`;
      const [data, doubts, labels, { classes }] = await Promise.all([get(address), get(`${address}/suspects`), get(`${address}/labels`), get("/api/data/labels")]);
      if (this.turn !== turn) return;
      this.show(address, data, doubts, labels, classes, tools);
    } catch (error) {
      if (this.turn === turn) this.detail.lastChild.replaceWith(el("p", { class: "bad wrap" }, error.message));
    }
  }

  show(address, data, doubts, labels, classes, tools) {
    const places = new Map(PARTS.map(([name]) => [name, el("div", { "data-view": name })]));
    const parts = new Map(PARTS.filter(([name]) => data[name]).map(([name, title, about]) =>
      [name, el("section", { class: "panel", "aria-label": title }, el("h2", {}, title), el("p", { class: "small soft" }, about), places.get(name))]));
    this.corrections = new Corrections(address, data, labels, classes, () => this.readDoubts(address));
    const dialogs = el("div", { onkeydown: (event) => this.corrections.pressed(event) });
    this.classes = data.images.classes;
    this.doubts = el("section", { class: "panel", "aria-label": "Labels to look at" });
    const rows = LAYOUT.map((columns) => {
      if (columns === "labels") return this.doubts;
      const there = columns.map((names) => names.map((name) => parts.get(name)).filter(Boolean)).filter((column) => column.length);
      return there.length > 1 ? el("div", { class: "panels" }, there.map((column) => el("div", {}, column))) : there.flat();
    });
    tools.append(el("a", { class: "button", href: `${address}/report`, download: `${this.name}.html` }, "Save the report as one file"));
    this.detail.lastChild.replaceWith(...rows.flat(), dialogs);
    const pictureOf = (i) => `${address}/photographs/${i}?list=${encodeURIComponent(data.version)}`; // kept by browsers
    showEvaluation(data, { placeOf: (name) => places.get(name) ?? null, pictureOf, largeOf: (i) => `${pictureOf(i)}&large=true`, actionsOf: (i) => [this.corrections.of(i)], dialogs });
    this.showDoubts(address, doubts);
  }

  /** Shows what the label file says of the doubtful labels after another view has changed it. */
  async readDoubts(address) {
    try {
      this.showDoubts(address, await get(`${address}/suspects`));
    } catch (error) {
      fail(error);
    }
  }

  // --- Labels that look wrong -----------------------------------------------------------------------------------

  showDoubts(address, told) {
    const { total, chance, suspects, why_not: whyNot, version } = told;
    const send = async (numbers, what, label = "") => {
      try {
        const after = await (what === "undo" ? post("/api/data/undo").then(() => get(`${address}/suspects`)) : post(`${address}/suspects`, { version, numbers, what, label }));
        this.decided = what === "undo" ? null : numbers[0];
        this.showDoubts(address, after);
        this.corrections.told = await get(`${address}/labels`);
        say("Written into the label file.");
      } catch (error) {
        fail(error);
      }
    };
    const decided = suspects.filter((own) => own.state !== "open").length;
    const words = total ? `${count(total, "label does", "labels do")} not agree with a model trained on the other photographs, the most doubtful first${chance}. Many are right, and the photographs only difficult. ${decided} of ${suspects.length} shown are decided.` : "No more labels look wrong than chance explains. Many that are wrong in the same way would go unnoticed: look at the pairs that are mixed up.";
    const again = el("button", { type: "button", class: "primary", disabled: Boolean(whyNot), onclick: () => this.studio.goto("train", `again:${this.name}`) }, "Train again with these labels");
    const left = suspects.length - this.most;
    const more = el("button", { type: "button", onclick: () => { this.most += MORE; this.showDoubts(address, told); } }, `Show more (${left} left)`);
    fill(this.doubts, el("h2", {}, "Labels to look at"), el("p", { class: "soft" }, words), whyNot && el("p", { class: "soft wrap" }, whyNot),
      el("p", { class: "row" }, again, el("span", { class: "small soft" }, `Every photograph is tested as before. So that the figures can be compared, changed test labels count as they were; the figure with the new labels stands beside.`)),
      el("ul", { class: "suspects" }, suspects.slice(0, this.most).map((own, number) => this.suspect(`${address}/suspects/${number}?list=${encodeURIComponent(version)}`, own, number, whyNot ? null : send))),
      left > 0 && more);
  }

  chip(name) {
    return chip(name, this.classes.indexOf(name));
  }

  /** The field for any other class. */
  another(own, number, send) {
    const others = this.classes.filter((name) => name !== own.label && name !== own.suggested);
    if (!others.length) return null;
    const select = el("select", { "aria-label": `Another class for ${own.path}`, onchange: () => select.value && send([number], "relabel", select.value) },
      el("option", { value: "" }, "It is …"), others.map((name) => el("option", { value: name }, name)));
    return select;
  }

  suspect(picture, own, number, send) {
    const image = sharp(el("img", { src: picture, alt: `photograph ${own.path}`, loading: "lazy" }));
    const act = (what, text, label) => el("button", { type: "button", "data-focus": `${number}-${what}`, "aria-pressed": label && String(own.state === label), onclick: () => send([number], what) }, text);
    return el("li", { "data-state": own.state }, image,
      el("p", {}, "your label: ", this.chip(own.label)), el("p", {}, "looks like: ", this.chip(own.suggested), ` (by ${Number(own.score).toFixed(2)})`),
      el("p", { class: "small soft" }, own.path),
      send && el("div", { class: "row" }, act("keep", "Keep", "kept"), act("relabel", `It is ${own.suggested}`, "relabelled"), act("exclude", "Leave out", "excluded"), this.another(own, number, send)),
      own.state !== "open" && el("div", { class: "row spread" }, el("p", { class: "good" }, own.state === "relabelled" ? `now: ${own.said}` : STATES[own.state]), number === this.decided && act("undo", "Undo")));
  }
}

function percent(part) {
  return part === null || part === undefined ? "-" : `${(100 * part).toFixed(1)} %`;
}
