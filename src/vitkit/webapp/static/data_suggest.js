// Classes that the newest model suggests for photographs without one; confident suggestions can be accepted together.

import { fail, get, post, say } from "./api.js";
import { percent } from "./data_state.js";
import { count, el, fill } from "./dom.js";
import { stage } from "./progress.js";

const SURE = 0.95;

export class Suggestions {
  /** tell: { filtered(how), edit(path, body), train() } */
  constructor(photos, tell) {
    this.photos = photos;
    this.tell = tell;
    this.told = {};
    this.element = el("div");
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
  }

  async start() {
    try {
      await post("/api/data/suggest");
    } catch (error) {
      fail(error);
    }
    await this.follow(true);
  }

  /** Reads what is suggested, and again while a model works. */
  async follow(shown = false) {
    try {
      this.told = await get("/api/data/suggest");
    } catch (error) {
      if (!error.unreachable) fail(error);
      return;
    }
    if (this.stopped) return;
    if (this.told.found && this.told.version === this.photos.version) {
      this.photos.takeSuggestions(this.told);
      if (shown) Object.assign(this.photos.filter, { label: null, finding: "suggested", text: "" });
      this.tell.filtered({ top: shown, leaveOrder: shown });
    } else {
      this.draw();
    }
    if (this.told.running) this.timer = setTimeout(() => this.follow(shown), 700);
  }

  sure() {
    return [...this.photos.suggestions.keys()].filter((id) => this.photos.suggestion(id)?.[1] >= SURE);
  }

  draw() {
    const { photos, told } = this;
    const none = photos.counts().none;
    const sure = this.sure().length;
    fill(this.element, none > 0 && [el("h2", {}, "Suggestions"),
      told.run ? el("button", { type: "button", disabled: told.running, title: `${told.run} suggests a class for each photograph without one`, onclick: () => this.start() }, photos.suggestions.size ? "Suggest again" : "Suggest classes")
        : el("p", { class: "small soft" }, "Once a model is trained, it suggests classes for photographs without one."),
      told.running && el("p", { class: "small", role: "status" }, stage(told, `${told.run} is loaded`)),
      told.error && el("p", { class: "small bad wrap" }, told.error),
      sure > 0 && el("p", {}, el("button", { type: "button", onclick: () => this.accept() }, `Accept all above ${percent(SURE)} (${sure})`)),
      sure > 0 && el("p", { class: "small soft" }, `They are recorded as proposed by ${photos.suggestedBy}, and these photographs are never test photographs.`)]);
  }

  async accept() {
    const ids = this.sure();
    const groups = [...Map.groupBy(ids, (id) => this.photos.suggestion(id)[0])].map(([label, images]) => ({ label, images }));
    if (await this.tell.edit("accept", { version: this.photos.version, run: this.photos.suggestedBy, groups })) say(`${count(ids.length, "suggestion", "suggestions")} accepted. Undo takes them all back.`);
  }
}
