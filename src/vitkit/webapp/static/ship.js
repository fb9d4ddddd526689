// The Ship tab: the card of a model, files for other programs, and the command that serves it.

import { fail, get, post, say } from "./api.js";
import { el, fill } from "./dom.js";
import { modelChoice, noModel } from "./models.js";

const FOR = {
  html: "One file that classifies photographs in a browser, by double click: no network, no installation, no studio.",
  zip: "The model, its card, its classes, and instructions for Windows, macOS and Linux.",
  onnx: "For nearly every language and system.",
  openvino: "The fastest on Intel and AMD processors. Two files: keep both together.",
  executorch: "For apps on phones and small computers, with PyTorch's runtime.",
  litert: "For apps on phones and small computers, with Google's runtime.",
  torch: "For programs that use PyTorch.",
};

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
    this.body = el("div", { class: "ship" });
    fill(main, el("div", { class: "panel row" }, el("label", { for: "ship-model" }, "The model of"), choice), this.body);
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
    [this.packages, this.exports] = [el("div", {}), el("div", {})];
    fill(this.body,
      el("section", { class: "panel", "aria-label": "Take it along" }, el("h2", {}, "Take it along"),
        el("p", { class: "small soft" }, "For people and machines without the studio. Photographs stay on the machine on which the file is opened."), this.packages),
      el("section", { class: "panel", "aria-label": "Files for other programs" }, el("h2", {}, "Files for other programs"),
        el("p", { class: "small soft" }, "Each file is read back and tested on the same photographs as the model. It is kept only if its predictions agree."), this.exports),
      el("section", { class: "panel", "aria-label": "Serve it" }, el("h2", {}, "Serve it"),
        el("p", {}, "This command serves predictions to other programs on this machine; its page /docs describes the requests:"), copied(told.command),
        el("p", { class: "small soft" }, "With --host 0.0.0.0, other machines can connect, too; they need the token that the command then prints.")),
      el("section", { class: "panel", "aria-label": "Model card" }, el("h2", {}, "Model card"),
        el("p", { class: "small soft" }, "It describes the model, its training data and its accuracy for everyone who receives the model."),
        el("p", {}, el("a", { class: "button", href: `/api/ship/card?run=${encodeURIComponent(run)}`, download: "MODEL_CARD.md" }, "Download the card")),
        el("pre", { class: "ship-card", tabindex: "0", "aria-label": "Text of the model card" }, told.card)));
    this.follow(state);
  }

  follow(state) {
    clearTimeout(this.timer);
    this.drawExports(state);
    if (state.running && !this.left) {
      this.timer = setTimeout(async () => {
        try {
          const now = await get("/api/ship/export");
          if (!now.running) this.told = await get(`/api/ship/model?run=${encodeURIComponent(this.run)}`);
          if (!now.running && now.error) fail(new Error(now.error));
          else if (!now.running) say(`${now.run} was exported.`);
          this.follow(now);
        } catch (error) {
          fail(error);
        }
      }, 500);
    }
  }

  drawExports(state) {
    const focused = document.activeElement?.dataset?.to;
    const row = (form) => {
      const there = this.told.exports.find((own) => own.to === form.name);
      const busy = state.running && state.run === this.run && state.to === form.name;
      const found = state.found && state.found.run === this.run && state.found.to === form.name ? state.found : null;
      return el("li", { class: "ship-form" },
        el("div", {}, el("strong", {}, form.title), " ", el("span", { class: "small soft" }, FOR[form.name] || ""),
          !there && form.megabytes > 0 && el("p", { class: "small soft" }, `The first export downloads ONNX Runtime Web, ${form.megabytes} MB.`),
          found && el("p", { class: "good small" }, `Checked: on ${found.compared_on}, its prediction is the model's for ${(100 * found.agreement).toFixed(found.agreement === 1 ? 0 : 2)} %.`),
          found && el("details", {}, el("summary", {}, "What the check found"), el("pre", {}, found.lines.join("\n"))),
          busy && el("p", { class: "small", role: "status" }, state.what ? `${state.what} …` : "Begins …"),
          busy && el("progress", { "aria-label": "Export", ...(state.total ? { value: state.done, max: state.total } : {}) })),
        el("div", { class: "row" },
          there && there.files.map((file) => el("a", { class: "button", href: `/api/ship/file/${encodeURIComponent(file.name)}`, download: file.name }, `${file.name} (${size(file.bytes)})`)),
          el("button", { type: "button", "data-to": form.name, disabled: state.running, onclick: () => this.export(form.name) }, there ? "Export again" : "Export")));
    };
    for (const [place, isPackage] of [[this.packages, true], [this.exports, false]]) {
      fill(place, el("ul", { class: "ship-forms" }, this.formats.filter((form) => form.is_package === isPackage).map(row)));
    }
    if (focused) this.body.querySelector(`[data-to="${CSS.escape(focused)}"]`)?.focus();
  }

  async export(to) {
    try {
      this.follow(await post("/api/ship/export", { run: this.run, to }));
    } catch (error) {
      fail(error);
    }
  }
}

function copied(text) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      fail(new Error("The browser does not allow the page to copy text: select the line and copy it yourself."));
    }
  };
  return el("div", { class: "row ship-command" }, el("pre", { tabindex: "0", "aria-label": "The command" }, text), el("button", { type: "button", onclick: copy }, "Copy"));
}

function size(bytes) {
  return bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`;
}
