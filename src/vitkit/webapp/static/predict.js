// The Predict tab: a folder, the predictions for its photographs, and what can be done with them.

import { fail, get, post, say } from "./api.js";
import { percent } from "./data_state.js";
import { chip, choice, count, el, fill, search, shareBar, verdict } from "./dom.js";
import { familiarity, modelChoice, noModel, UNFAMILIAR, viewSheet } from "./models.js";
import { bar, stage } from "./progress.js";
import { uploadPlace } from "./upload.js";
import { Enlarged } from "./views/enlarged.js";

const PAGE = 60; // photographs that are shown at first, and with each press
const PHONE = 640; // pixels up to which the filters are closed at first
const SURE = 0.8; // the confidence from which a class is not looked at

export async function show(main, studio) {
  const [page, left] = [new PredictPage(studio), await viewSheet()];
  await page.build(main);
  return () => { page.leave(); left(); };
}

class PredictPage {
  constructor(studio) {
    this.studio = studio;
    this.filter = { label: "", text: "", kind: "" };
    this.order = "look";
  }

  async build(main) {
    const { models, done } = await get("/api/predict");
    if (!models.length && !done.length) {
      fill(main, noModel(this.studio, "No model is trained yet", "Once a training is done, its model classifies a whole folder of new photographs here."));
      return;
    }
    this.models = models;
    this.progress = el("div", { role: "status" });
    this.result = el("div");
    this.earlier = el("select", { id: "predict-earlier", onchange: () => this.open(Number(this.earlier.value)) });
    this.folder = el("select", { id: "predict-folder" });
    fill(main, models.length > 0 && this.form(), this.progress, el("div", { class: "row predict-earlier" }, el("label", { for: "predict-earlier" }, "Predictions"), this.earlier), this.result);
    if (models.length) await this.listFolders();
    await this.list(done);
    await this.follow();
  }

  leave() {
    this.left = true;
    clearTimeout(this.timer);
  }

  form() {
    this.model = modelChoice(this.studio, "predict-model", this.models, () => {});
    return this.asks = el("details", { class: "panel" }, el("summary", {}, el("h2", {}, "Predict a folder")),
      el("div", { class: "predict-form" },
        el("div", {}, el("div", { class: "field" }, el("label", { for: "predict-folder" }, "Folder"), this.folder, el("span", { class: "small soft" }, "All subfolders are included. The photographs are only read.")),
          el("div", { class: "field" }, el("label", { for: "predict-model" }, "Model"), this.model),
          this.start = el("button", { type: "button", class: "primary", onclick: () => this.predict() }, "Predict")),
        uploadPlace(async (folder) => { await this.listFolders(folder.id); await this.predict(); })));
  }

  async listFolders(id = "") {
    const { folders } = await get("/api/folders");
    const before = id || this.folder.value;
    fill(this.folder, folders.map((own) => el("option", { value: own.id }, own.images === null ? own.title : `${own.title} (${own.images.toLocaleString("en")})`)));
    if (folders.some((own) => own.id === before)) this.folder.value = before;
    this.start.disabled = !folders.length;
  }

  async predict() {
    try {
      await post("/api/predict", { run: this.model.value, folder: this.folder.value });
      this.wanted = true;
      await this.follow();
    } catch (error) {
      fail(error);
    }
  }

  async follow() {
    clearTimeout(this.timer);
    let told;
    try {
      told = await get("/api/predict/state");
    } catch (error) {
      fail(error);
      return;
    }
    if (this.left) return;
    if (this.start) this.start.disabled = told.running;
    fill(this.progress, told.running && el("section", { class: "panel", "aria-label": "Progress" }, el("p", {}, `${told.title} – ${stage(told, "Loading the model")}`), bar(told, "Prediction")),
      told.error && el("p", { class: "bad wrap" }, told.error));
    if (told.running) this.timer = setTimeout(() => this.follow(), 500);
    else if (told.number && this.wanted) {
      this.wanted = false;
      await this.list((await get("/api/predict")).done, told.number);
    }
  }

  async list(done, number = done[0]?.number) {
    this.earlier.parentElement.hidden = !done.length;
    if (this.asks) this.asks.open = !done.length;
    fill(this.earlier, done.map((own) => el("option", { value: own.number }, `${own.number}: ${own.title}, by ${own.run}`)));
    if (number === undefined) return;
    this.earlier.value = number;
    await this.open(number);
  }

  async open(number) {
    try {
      this.shown = await get(`/api/predict/${number}`);
    } catch (error) {
      fail(error);
      return;
    }
    this.most = PAGE;
    this.filter = { label: "", text: "", kind: "" };
    this.drawResult();
  }

  // --- The table --------------------------------------------------------------------------------------------

  label(i) {
    return this.shown.corrections[i] ?? this.shown.rows[i][1][0]?.[0] ?? "";
  }

  confidence(i) {
    return this.shown.rows[i][1][0]?.[1] ?? 0;
  }

  /** The part of known photographs that look no more familiar; undefined if the model cannot tell. */
  familiar(i) {
    return this.shown.rows[i][3] ?? undefined;
  }

  /** Whether a person should look at a photograph: the model is unsure, or the photograph is strange or cannot be read. */
  isToLookAt(i) {
    return this.shown.corrections[i] === undefined && (!this.label(i) || this.confidence(i) < SURE || this.familiar(i) <= UNFAMILIAR);
  }

  matching() {
    const { label, text, kind } = this.filter;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const kinds = { "": () => true, look: (i) => this.isToLookAt(i), corrected: (i) => this.shown.corrections[i] !== undefined, unreadable: (i) => this.shown.rows[i][2] !== "" };
    const fits = (i) => (!label || this.label(i) === label) && kinds[kind](i) && words.every((word) => this.shown.rows[i][0].toLowerCase().includes(word));
    const found = [...this.shown.rows.keys()].filter(fits);
    const [doubt, look] = [(a, b) => this.confidence(a) - this.confidence(b), (i) => Number(this.isToLookAt(i))];
    const orders = { look: (a, b) => look(b) - look(a) || doubt(a, b), familiar: (a, b) => (this.familiar(a) ?? 2) - (this.familiar(b) ?? 2) };
    return this.order ? found.sort(orders[this.order]) : found;
  }

  drawResult() {
    const { shown } = this;
    this.tells = [...shown.rows.keys()].some((i) => this.familiar(i) !== undefined);
    if (!this.tells && this.order === "familiar") this.order = "look";
    const pick = (title, choices, chosen, set) => choice(title, choices.filter(Boolean), chosen, (value) => { set(value); this.draw(true); });
    const kinds = pick("Which photographs", [["", "All photographs"], ["look", "To look at"], ["corrected", "Corrected"], ["unreadable", "Cannot be read"]], "", (value) => { this.filter.kind = value; });
    const labels = pick("Class", [], "", (value) => { this.filter.label = value; });
    [this.kinds, this.labels] = [kinds, labels].map((own) => own.querySelector("select"));
    const find = search("Part of a file's name", (text) => { this.filter.text = text; this.draw(true); });
    this.verdict = el("div");
    this.counts = el("p", { class: "soft", role: "status" });
    this.list = el("ul", { class: "predictions" });
    this.more = el("button", { type: "button", onclick: () => { this.most += PAGE; this.draw(); } });
    this.files = el("div", { class: "row predict-files", role: "group", "aria-label": "Save" });
    this.names = el("datalist", { id: "predict-classes" }, shown.classes.map((name) => el("option", { value: name })));
    const pictures = { path: shown.rows.map(([path]) => path), largeOf: (i) => (shown.rows[i][2] ? null : `${this.thumbnail(i)}?large=true`), lines: (i) => this.lines(i) };
    this.enlarged = new Enlarged(pictures, () => [], (i) => [this.correction(i)]);
    fill(this.result, this.verdict, el("section", { class: "panel", "aria-label": "Predictions" }, el("h2", { class: "wrap" }, `${shown.title}, by ${shown.run}`),
      el("details", { class: "predict-filters", open: innerWidth > PHONE }, el("summary", {}, "Filter and order"), el("div", { class: "controls", role: "group", "aria-label": "Filter" }, labels, kinds,
        pick("Order", [["look", "To look at first"], ["", "By name"], this.tells && ["familiar", "The least familiar first"]], this.order, (value) => { this.order = value; }),
        find)),
      this.files, this.counts, this.names, this.list, this.more), this.enlarged.element);
    this.draw();
  }

  draw(top = false) {
    if (top) this.most = PAGE;
    const { shown } = this;
    const all = [...shown.rows.keys()];
    const counts = new Map();
    for (const label of all.map((i) => this.label(i)).filter(Boolean)) counts.set(label, (counts.get(label) ?? 0) + 1);
    fill(this.labels, el("option", { value: "" }, "Every class"), [...counts.keys()].sort().map((name) => el("option", { value: name }, `${name} (${counts.get(name).toLocaleString("en")})`)));
    this.labels.value = this.filter.label;
    const found = this.matching();
    const broken = all.filter((i) => shown.rows[i][2]).length;
    const corrected = Object.keys(shown.corrections).length;
    this.counts.textContent = [count(found.length, "photograph", "photographs") + ` of ${all.length.toLocaleString("en")}`, corrected && `${corrected} corrected`, broken && `${broken} cannot be read`].filter(Boolean).join(" · ");
    fill(this.list, found.slice(0, this.most).map((i, place) => this.card(i, () => this.enlarged.open(found, place))));
    this.more.hidden = found.length <= this.most;
    this.more.textContent = `Show more (${(found.length - this.most).toLocaleString("en")} left)`;
    this.drawVerdict(all.length, all.filter((i) => this.isToLookAt(i)).length);
    this.drawFiles(found);
  }

  drawVerdict(all, look) {
    const [words, others] = [(number) => number.toLocaleString("en"), this.filter.kind === "look" ? "" : "look"];
    const show = el("button", { type: "button", "data-focus": "show", onclick: () => { this.kinds.value = this.filter.kind = others; this.draw(true); } }, others ? `Show the ${words(look)} to look at` : `Show all ${words(all)}`);
    const rule = `Sure means a confidence of at least ${Math.round(100 * SURE)} %${this.tells ? " and a familiar photograph" : ""}, or that you corrected it.`;
    const told = look ? { level: "warning", sentence: `${words(all - look)} sure, ${words(look)} to look at` } : { level: "good", sentence: `All ${words(all)} sure` };
    fill(this.verdict, verdict(told, null, [el("p", { class: "soft" }, rule), (look > 0 || !others) && show]));
  }

  thumbnail(i) {
    return `/api/predict/${this.shown.number}/thumbnail/${i}`;
  }

  place(name) {
    return this.shown.order.indexOf(name);
  }

  card(i, open) {
    const [path, ranking, error] = this.shown.rows[i];
    const [label, familiar] = [this.label(i), this.familiar(i)];
    const said = error && !label ? "cannot be read" : label || "none";
    const state = [this.shown.corrections[i] !== undefined && "corrected", this.isToLookAt(i) && "to look at"].filter(Boolean);
    const sure = ranking.length > 0 && percent(ranking[0][1]);
    const tells = [path, said, sure, familiar !== undefined && `familiarity ${(100 * familiar).toFixed(1)} %`, ...state].filter(Boolean).join(", ");
    return el("li", { "data-row": i }, el("button", { type: "button", class: `prediction ${this.isToLookAt(i) ? "look" : ""}`, "aria-label": tells, title: tells, onclick: open },
      error ? el("span", { class: "none" }, "?") : el("img", { src: this.thumbnail(i), alt: "", loading: "lazy" }),
      el("span", { class: "cut said" }, said), sure && shareBar(ranking[0][1], this.place(ranking[0][0])), sure && el("span", { class: "number" }, sure)));
  }

  /** What is said below an enlarged photograph. */
  lines(i) {
    const [, ranking, error] = this.shown.rows[i];
    const bars = ranking.map(([name, part]) => [chip(name, this.place(name)), " ", percent(part), shareBar(part, this.place(name))]);
    return [error && [el("span", { class: "bad" }, error)], ...bars, [familiarity(this.familiar(i) ?? null)]].filter(Boolean);
  }

  correction(i) {
    const [path, ranking] = this.shown.rows[i];
    const said = el("p", { role: "status", class: "good" });
    const tell = () => { said.textContent = this.shown.corrections[i] === undefined ? "" : `corrected: ${this.shown.corrections[i]}`; };
    const give = async (label) => { input.value = label; await this.correct(i, label); tell(); };
    const input = el("input", { type: "text", list: "predict-classes", maxlength: 200, value: this.shown.corrections[i] ?? "", placeholder: "It is …", "aria-label": `Correct class of ${path}`, onchange: () => give(input.value.trim()) });
    tell();
    return el("div", {}, el("div", { class: "row" }, ranking.map(([name]) => el("button", { type: "button", onclick: () => give(name) }, `It is ${name}`)), input), said);
  }

  async correct(i, label) {
    try {
      const { corrections } = await post(`/api/predict/${this.shown.number}/correct`, { numbers: [i], label });
      this.shown.corrections = corrections;
      if (label && !this.shown.classes.includes(label)) this.names.append(el("option", { value: label }));
      this.draw();
    } catch (error) {
      fail(error);
    }
  }

  drawFiles(found) {
    const link = (file, title) => el("a", { class: "button", href: `/api/predict/${this.shown.number}/${file}`, download: "" }, title);
    const numbers = found.filter((i) => this.label(i));
    fill(this.files, el("span", { class: "soft" }, "Save as"), link("table.xlsx", "Excel"), link("table.csv", "CSV"),
      el("button", { type: "button", disabled: !numbers.length, title: "Classes that you did not correct are recorded as proposed by the model", onclick: () => this.add(numbers) }, `Add the ${numbers.length.toLocaleString("en")} shown to the data`));
  }

  async add(numbers) {
    try {
      const told = await post(`/api/predict/${this.shown.number}/add`, { numbers });
      const rest = numbers.length - told.added;
      say(`${count(told.added, "label", "labels")} written into ${told.file}${told.inside && rest ? `; ${rest} have a class already, which stays` : ""}.`);
    } catch (error) {
      fail(error);
    }
  }
}
