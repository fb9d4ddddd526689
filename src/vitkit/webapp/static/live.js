// The Live tab: pictures of classes from the camera, and a model's answers as they happen.

import { fail, get, post, postBytes } from "./api.js";
import { Camera, Recorder } from "./camera.js";
import { chip, el, fill, shareBar } from "./dom.js";
import { familiarity, modelChoice, percent } from "./models.js";

const AGAIN = 1000; // milliseconds after which an answer that failed is requested again

export async function show(main, studio) {
  const page = new LivePage(studio);
  await page.build(main);
  return () => page.leave();
}

class LivePage {
  constructor(studio) {
    this.studio = studio;
  }

  async build(main) {
    const { models } = await get("/api/look/models");
    this.camera = new Camera(() => this.cameraChanged());
    this.recorder = new Recorder(this.camera, (folder) => this.open(folder));
    await this.recorder.load();
    fill(main, el("div", { class: "live" }, this.camera.place, el("div", {}, this.answers(models), this.recorder.place)));
  }

  answers(models) {
    this.said = el("div");
    const place = el("section", { class: "panel", "aria-label": "Live answers" }, el("h2", {}, "Live answers"));
    if (!models.length) return fill(place, el("h2", {}, "Live answers"), el("p", { class: "soft" }, "Once a model is trained, it says here what the camera sees. First record pictures of each class below, and train with them."));
    const choice = modelChoice(this.studio, "live-model", models, (name) => { this.run = name; });
    this.run = choice.value;
    place.append(el("div", { class: "row" }, el("label", { for: "live-model" }, "Ask the model of"), choice), fill(this.said, el("p", { class: "soft" }, "Start the camera, and hold something in front of it: the model says here what it sees.")));
    return place;
  }

  cameraChanged() {
    this.recorder.cameraChanged();
    if (this.camera.isOn && this.run) this.ask().catch(fail);
  }

  async ask() {
    const { stream } = this.camera;
    while (this.camera.stream === stream) {
      const frame = await this.camera.picture();
      let told = null;
      try {
        told = frame && await postBytes(`/api/live/answer?${new URLSearchParams({ run: this.run })}`, frame);
      } catch (error) {
        if (this.camera.stream === stream) fail(error);
      }
      if (this.camera.stream !== stream) return;
      if (!told) {
        await new Promise((next) => { setTimeout(next, AGAIN); });
        continue;
      }
      this.draw(told);
    }
  }

  draw(answer) {
    fill(this.said, el("p", { class: "live-said wrap" }, `${answer.label || "None of the classes"}, ${percent(answer.confidence)}`),
      el("ul", { class: "bars" }, answer.top.map((own) =>
        el("li", { class: own.chosen ? "chosen" : "" }, chip(own.label, own.place), el("span", { class: "number" }, percent(own.confidence)), shareBar(own.confidence, own.place)))), familiarity(answer.familiar));
  }

  async open(folder) {
    try {
      await post("/api/chooser/open", { kind: "folder", name: folder });
      location.href = "/";
    } catch (error) {
      fail(error);
    }
  }

  leave() {
    this.camera?.leave();
  }
}
