// The Ship tab: the card of a model, files for other programs, and the command that serves it.

import { fail, get, post, say } from "./api.js";
import { el, fill, verdict } from "./dom.js";
import { modelChoice, noModel, percent } from "./models.js";
import { bar } from "./progress.js";

const FOR = {
  html: ["a page", "One file that classifies photographs in a browser, by double click: no network, no installation, no studio."],
  zip: ["an archive", "The model, its card, its classes, and instructions for Windows, macOS and Linux."],
  onnx: ["ONNX", "For nearly every language and system."],
  openvino: ["OpenVINO", "The fastest on Intel and AMD processors. Two files: keep both together."],
  executorch: ["ExecuTorch", "For apps on phones and small computers, with PyTorch's runtime."],
  litert: ["LiteRT", "For apps on phones and small computers, with Google's runtime."],
  torch: ["torch.export", "For programs that use PyTorch."],
};
const HEADS = ["File", "Size", "Photographs a second", "Accuracy"];

export async function show(main, studio) {
  const page = new ShipPage(studio);
  await page.build(main);
  return () => page.leave();
}

class ShipPage {
  constructor(studio) {
    this.studio = studio;
  }

  async build(main) {
    const { models, formats } = await get("/api/ship/models");
    if (!models.length) {
      fill(main, noModel(this.studio, "There is nothing to ship yet", "Once a training is done, its model can be exported here."));
      return;
    }
    this.formats = formats;
    const choice = modelChoice(this.studio, "ship-model", models, (name) => { this.run = name; this.load().catch(fail); });
    this.run = choice.value;
    this.body = el("div");
    fill(main, el("p", { class: "row" }, el("label", { for: "ship-model" }, "The model of"), choice), this.body);
    await this.load();
  }

  leave() {
    this.left = true;
    clearTimeout(this.timer);
  }

  async load() {
    const run = this.run;
    const [told, state] = await Promise.all([get(`/api/ship/model?run=${encodeURIComponent(run)}`), get("/api/ship/export")]);
    if (run !== this.run || this.left) return;
    this.told = told;
    [this.packages, this.exports] = [el("tbody"), el("tbody")];
    const files = (title, about, rows) => el("section", { class: "panel", "aria-label": title }, el("h2", {}, title), el("p", { class: "small soft" }, about),
      el("table", { class: "ship-files" }, el("thead", {}, el("tr", {}, HEADS.map((head) => el("th", { scope: "col" }, head)), el("td"))), rows));
    const { verdict: tested, figures } = told.model;
    fill(this.body,
      tested ? verdict(tested, figures.accuracy !== null && percent(figures.accuracy), [el("p", { class: "soft" }, `On ${figures.images} ${figures.split === "val" ? "validation" : figures.split} photographs${told.model.caveats.length ? ` (${told.model.caveats.join("; ")})` : ""}. Each file below is compared with the model, and kept only if its predictions agree. The first download makes the file and checks it.`)])
        : verdict({ level: "note", sentence: "How often the model is right is not known: it was not tested" }),
      files("Take it along", "For people and machines without the studio. Photographs stay on the machine on which the file is opened.", this.packages),
      files("Files for other programs", "Speed: on this machine, in batches of 8. Accuracy: against the model, on the photographs of the check.", this.exports),
      el("section", { class: "panel", "aria-label": "Serve it" }, el("h2", {}, "Serve it"),
        el("p", {}, "This command serves predictions to other programs on this machine; its page /docs describes the requests:"), el("pre", { tabindex: 0, "aria-label": "The command" }, told.command),
        el("p", { class: "small soft" }, "With --host 0.0.0.0, other machines can connect, too; they need the token that the command then prints.")),
      el("section", { class: "panel", "aria-label": "Model card" },
        el("div", { class: "row spread" }, el("h2", {}, "Model card"), el("a", { class: "button", href: `/api/ship/card?run=${encodeURIComponent(run)}`, download: "MODEL_CARD.md" }, "Download the card")),
        el("p", { class: "small soft" }, "It describes the model, its training data and its accuracy for everyone who receives the model."), card(told.card)));
    this.follow(state);
  }

  follow(state) {
    clearTimeout(this.timer);
    this.drawExports(state);
    if (state.running && !this.left) {
      this.timer = setTimeout(async () => {
        try {
          const [run, now] = [this.run, await get("/api/ship/export")];
          const told = now.running ? this.told : await get(`/api/ship/model?run=${encodeURIComponent(run)}`);
          if (run !== this.run) return;
          this.told = told;
          this.follow(now);
          if (now.running) return;
          if (document.activeElement === document.body) this.body.querySelector(`button[data-to="${now.to}"]`)?.focus();
          if (now.error) {
            this.wanted = "";
            fail(new Error(now.error));
          } else {
            say(`${now.run} was exported.`);
            this.bring(now);
          }
        } catch (error) {
          fail(error);
        }
      }, 500);
    }
  }

  /** Downloads what was exported at a press on this page. */
  bring({ run, to }) {
    if (this.wanted !== `${run} ${to}` || run !== this.run) return;
    this.wanted = "";
    for (const link of this.body.querySelectorAll(`tr[data-form="${to}"] a[download]`)) link.click();
  }

  drawExports(state) {
    const { exports, model } = this.told;
    const speed = exports.find((own) => own.measured)?.measured.model_per_second;
    const itself = el("tr", { "data-form": "model" }, el("td", {}, el("strong", {}, "The model itself"), el("p", { class: "small soft" }, "For vitkit.")),
      figures(size(model.bytes), rate(speed), Number.isFinite(model.figures?.accuracy) && percent(model.figures.accuracy)), el("td"));
    const rows = (isPackage) => this.formats.filter((form) => form.is_package === isPackage).map((form) => this.row(form, state));
    fill(this.packages, rows(true));
    fill(this.exports, itself, rows(false));
  }

  row(form, state) {
    const [name, about] = FOR[form.name] ?? [form.title, ""];
    const there = this.told.exports.find((own) => own.to === form.name);
    const measured = there?.measured;
    const busy = state.running && state.run === this.run && state.to === form.name;
    const make = (title, more) => el("button", { type: "button", ...more, "data-to": form.name, disabled: state.running, onclick: () => this.export(form.name) }, title);
    const link = (file) => el("a", { class: "button", href: `/api/ship/file/${encodeURIComponent(file.name)}`, download: file.name }, there.files.length > 1 ? `Download ${file.name}` : `Download as ${name}`);
    return el("tr", { "data-form": form.name },
      el("td", {}, el("strong", {}, form.title), el("p", { class: "small soft" }, about),
        !there && form.megabytes > 0 && el("p", { class: "small soft" }, `The first export downloads ONNX Runtime Web, ${form.megabytes} MB.`),
        measured && el("details", {}, el("summary", { class: "small" }, "What the check found"), el("pre", {}, [].concat(measured.lines).join("\n")))),
      there ? figures(size(there.files.reduce((sum, file) => sum + file.bytes, 0)), rate(measured?.per_second), measured && against(measured))
        : el("td", { colspan: 3, class: "soft" }, busy ? [el("span", { role: "status" }, state.what ? `${state.what} …` : "Begins …"), bar(state, "Export")] : "Not made yet"),
      el("td", {}, el("div", { class: "row" }, there ? [there.files.map(link), make("Make it again", { class: "quiet" })].flat() : make(`Download as ${name}`))));
  }

  async export(to) {
    this.wanted = `${this.run} ${to}`;
    try {
      this.follow(await post("/api/ship/export", { run: this.run, to }));
    } catch (error) {
      this.wanted = "";
      fail(error);
    }
  }
}

/** The model card as elements: headings, lists, commands and paragraphs, whose items alternate between text and code. */
function card(blocks) {
  const parts = [];
  const shown = (item) => item.map((part, i) => (i % 2 ? el("code", {}, part) : part));
  for (const [tag, items] of blocks) {
    if (tag === "h3") parts.push(el("div"));
    parts.at(-1).append(el(tag, {}, tag === "pre" ? items.join("\n") : items.map((item) => (tag === "ul" ? el("li", {}, shown(item)) : shown(item)))));
  }
  return el("div", { class: "ship-card", tabindex: 0, role: "group", "aria-label": "Text of the model card" }, parts);
}

/** Cells with figures below their headings, or that one was not measured. */
function figures(...texts) {
  return texts.map((text, i) => el("td", { "data-title": HEADS[i + 1] }, text || el("span", { class: "soft" }, "not measured")));
}

function rate(speed) {
  return speed > 0 && (speed < 10 ? Number(speed).toFixed(1) : Math.round(speed).toLocaleString("en"));
}

/** What a file predicts beside its model. */
function against({ lost, agreement, compared_on: images }) {
  const points = Math.abs(100 * lost).toFixed(1);
  const words = lost === null ? `${(100 * agreement).toFixed(agreement === 1 ? 0 : 2)} % the same classes` : points === "0.0" ? "as the model" : `${points} points ${lost > 0 ? "lower" : "higher"}`;
  return [words, el("span", { class: "small soft" }, ` on ${images}`)];
}

function size(bytes) {
  return bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`;
}
