// The Predict tab: a folder, the predictions for its photographs, and what can be done with them.

import { fail, get, post, say } from "./api.js";
import { percent } from "./data_state.js";
import { count, dialog, el, fill } from "./dom.js";
import { modelChoice, noModel } from "./models.js";
import { bar, stage } from "./progress.js";
import { uploadPlace } from "./upload.js";

const PAGE = 60; // rows that are shown at first, and with each press

export async function show(main, studio) {
  const page = new PredictPage(studio);
  await page.build(main);
  return () => page.leave();
}

class PredictPage {
  constructor(studio) {
    this.studio = studio;
    this.filter = { label: "", text: "", kind: "" };
    this.withhold = 0;
    this.unknownBelow = 0;
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
    return el("section", { class: "panel", "aria-label": "Predict a folder" }, el("h2", {}, "Predict a folder"),
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

  /** Whether the prediction of a row is rejected: its confidence is too low, and nobody has corrected it. */
  isWithheld(i) {
    return this.shown.rows[i][1].length > 0 && this.shown.corrections[i] === undefined && (this.isUnknown(i) || this.confidence(i) < this.withhold);
  }

  /** The part of known photographs that look no more familiar; undefined if the model cannot tell. */
  familiar(i) {
    return this.shown.rows[i][3] ?? undefined;
  }

  isUnknown(i) {
    return this.shown.corrections[i] === undefined && this.familiar(i) <= this.unknownBelow;
  }

  matching() {
    const { label, text, kind } = this.filter;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const kinds = { "": () => true, sure: (i) => this.label(i) && !this.isWithheld(i), withheld: (i) => this.isWithheld(i), unknown: (i) => this.isUnknown(i), corrected: (i) => this.shown.corrections[i] !== undefined, unreadable: (i) => this.shown.rows[i][2] !== "" };
    const fits = (i) => (!label || this.label(i) === label) && kinds[kind](i) && words.every((word) => this.shown.rows[i][0].toLowerCase().includes(word));
    const found = [...this.shown.rows.keys()].filter(fits);
    const orders = { doubt: (a, b) => this.confidence(a) - this.confidence(b), familiar: (a, b) => (this.familiar(a) ?? 2) - (this.familiar(b) ?? 2) };
    return this.order ? found.sort(orders[this.order]) : found;
  }

  drawResult() {
    const { shown } = this;
    const labels = el("select", { "aria-label": "Class", onchange: () => { this.filter.label = labels.value; this.draw(true); } });
    this.labels = labels;
    this.tells = [...shown.rows.keys()].some((i) => this.familiar(i) !== undefined);
    if (!this.tells && this.order === "familiar") this.order = "";
    const kinds = el("select", { "aria-label": "Which photographs", onchange: () => { this.filter.kind = kinds.value; this.draw(true); } },
      [["", "All photographs"], ["sure", "With a class"], ["withheld", "Withheld"], ...(this.tells ? [["unknown", "Unknown"]] : []), ["corrected", "Corrected"], ["unreadable", "Cannot be read"]].map(([value, title]) => el("option", { value }, title)));
    const order = el("select", { "aria-label": "Order", onchange: () => { this.order = order.value; this.draw(true); } }, el("option", { value: "" }, "By name"), el("option", { value: "doubt" }, "The least certain first"), this.tells && el("option", { value: "familiar" }, "The least familiar first"));
    order.value = this.order || "";
    const find = el("input", { type: "search", placeholder: "Part of a name", "aria-label": "Part of a file's name", oninput: () => { this.filter.text = find.value; this.draw(true); } });
    const withhold = el("input", { type: "number", id: "withhold", min: 0, max: 100, step: 1, value: Math.round(100 * this.withhold), oninput: () => { this.withhold = Math.min(1, Math.max(0, Number(withhold.value) / 100 || 0)); this.draw(); } });
    const unknown = el("input", { type: "number", id: "unknown", min: 0, max: 100, step: 0.5, value: 100 * this.unknownBelow, title: "Photographs that look less familiar than all but this part of known ones are labelled ?", oninput: () => { this.unknownBelow = Math.min(1, Math.max(0, Number(unknown.value) / 100 || 0)); this.draw(); } });
    this.counts = el("p", { class: "soft", role: "status" });
    this.body = el("tbody");
    this.more = el("button", { type: "button", onclick: () => { this.most += PAGE; this.draw(); } });
    this.files = el("div", { class: "row", role: "group", "aria-label": "Save" });
    this.names = el("datalist", { id: "predict-classes" }, shown.classes.map((name) => el("option", { value: name })));
    fill(this.result, el("section", { class: "panel", "aria-label": "Predictions" }, el("h2", { class: "wrap" }, `${shown.title}, by ${shown.run}`),
      el("div", { class: "row predict-tools" }, labels, kinds, order, find, el("label", { for: "withhold" }, "Withhold below"), withhold, el("span", {}, "%"),
        this.tells && [el("label", { for: "unknown" }, "Call unknown up to a familiarity of"), unknown, el("span", {}, "%")]),
      this.files, this.counts, this.names,
      el("div", { class: "predict-table", role: "region", tabindex: 0, "aria-label": "Table of predictions" },
        el("table", {}, el("thead", {}, el("tr", {}, ["Photograph", "Class", "Confidence", this.tells && "Familiarity", "Next", "Correction"].filter(Boolean).map((title) => el("th", { scope: "col" }, title)))), this.body)),
      this.more));
    this.draw();
  }

  draw(top = false) {
    if (top) this.most = PAGE;
    const { shown } = this;
    const all = [...shown.rows.keys()];
    const classes = [...new Set(all.map((i) => this.label(i)).filter(Boolean))].sort();
    fill(this.labels, el("option", { value: "" }, "Every class"), classes.map((name) => el("option", { value: name }, `${name} (${all.filter((i) => this.label(i) === name).length.toLocaleString("en")})`)));
    this.labels.value = this.filter.label;
    const found = this.matching();
    const withheld = all.filter((i) => this.isWithheld(i)).length;
    const broken = all.filter((i) => shown.rows[i][2]).length;
    this.counts.textContent = [count(found.length, "photograph", "photographs") + ` of ${all.length.toLocaleString("en")}`, withheld && `${withheld} withheld`, Object.keys(shown.corrections).length && `${Object.keys(shown.corrections).length} corrected`, broken && `${broken} cannot be read`].filter(Boolean).join(" · ");
    fill(this.body, found.slice(0, this.most).map((i) => this.row(i)));
    this.more.hidden = found.length <= this.most;
    this.more.textContent = `Show more (${(found.length - this.most).toLocaleString("en")} left)`;
    this.drawFiles(found);
  }

  row(i) {
    const [path, ranking, error] = this.shown.rows[i];
    const withheld = this.isWithheld(i);
    const correction = this.shown.corrections[i] ?? "";
    const address = `/api/predict/${this.shown.number}/thumbnail/${i}`;
    const input = el("input", { type: "text", list: "predict-classes", maxlength: 200, value: correction, placeholder: "It is …", "aria-label": `Correct class of ${path}`, onchange: () => this.correct(i, input.value.trim()) });
    return el("tr", { "data-row": i, class: withheld ? "withheld" : "" },
      el("td", { class: "predict-photo" }, !error && el("button", { type: "button", class: "quiet", "aria-label": `Enlarge ${path}`, onclick: () => dialog(path, el("img", { src: `${address}?large=true`, alt: path })) }, el("img", { src: address, alt: "", loading: "lazy" })), el("span", { class: "small wrap" }, path)),
      el("td", {}, error ? el("span", { class: "bad" }, error) : this.isUnknown(i) ? el("span", {}, el("strong", {}, "?"), el("span", { class: "soft" }, ` (${ranking[0][0]})`)) : withheld ? el("span", { class: "soft" }, `withheld (${ranking[0][0]})`) : el("strong", {}, this.label(i) || "none")),
      el("td", ranking.length ? { "data-title": "Confidence" } : {}, ranking.length ? percent(ranking[0][1]) : ""),
      this.tells && el("td", { ...(this.familiar(i) !== undefined && { "data-title": "Familiarity" }), title: "The part of known photographs that look no more familiar to the model: low is strange" }, this.familiar(i) === undefined ? "" : `${(100 * this.familiar(i)).toFixed(1)} %`),
      el("td", { class: "small soft" }, ranking.slice(1).map(([name, part]) => el("div", {}, `${name} ${percent(part)}`))),
      el("td", {}, input));
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
    const address = (file) => `/api/predict/${this.shown.number}/${file}?withhold=${this.withhold}&unknown=${this.unknownBelow}`;
    const link = (file, title) => el("a", { class: "button", href: address(file), download: "" }, title);
    const numbers = found.filter((i) => this.label(i) && !this.isWithheld(i));
    fill(this.files, link("table.xlsx", "Excel (.xlsx)"), link("table.csv", "CSV"), link("sheet.html", "Contact sheet"),
      el("button", { type: "button", disabled: !numbers.length, title: "Classes that you did not correct are recorded as proposed by the model", onclick: () => (this.shown.inside ? this.add(numbers) : this.choose(numbers)) }, `Add the ${numbers.length.toLocaleString("en")} shown to the data`));
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

  /** Photographs of another folder can be joined with the data in a new folder, or only get a label file. */
  choose(numbers) {
    const only = el("button", { type: "button", onclick: () => { made.close(); this.add(numbers); } }, "Only write their label file");
    const both = el("button", { type: "button", class: "primary", onclick: () => this.join(numbers, [both, only]) }, "Make a folder of both and open it");
    const made = dialog("These photographs are in another folder",
      el("p", {}, `To train on them together with ${this.studio.name}, the studio makes a new folder of both, in uploads beside the runs. No photograph is moved, and the new folder takes no further space on most disks.`),
      el("div", { class: "row" }, both, only));
  }

  async join(numbers, buttons) {
    for (const button of buttons) button.disabled = true;
    try {
      const { id } = await post(`/api/predict/${this.shown.number}/join`, { numbers });
      await post("/api/chooser/open", { kind: "folder", name: id });
      location.href = "/";
    } catch (error) {
      for (const button of buttons) button.disabled = false;
      fail(error);
    }
  }
}
