// The Train tab: the settings of a new training, the queue, and the progress of each training.

import { fail, get, post, say } from "./api.js";
import { chart } from "./chart.js";
import { el, fill, percent, verdict } from "./dom.js";
import { bar, timeLeft } from "./progress.js";

const METHODS = [
  ["auto", "Automatic", "With few photographs, or classes that are easy to tell apart, only the last layer learns; otherwise the whole model does."],
  ["probe", "Only the last layer", "Fast, and best with few photographs: the rest of the model stays as it is."],
  ["lora", "Small changes throughout", "Learns more than the last layer, and takes less memory than the whole model."],
  ["full", "The whole model", "Best with many photographs; takes the longest."],
  ["scratch", "A new model from scratch", "Needs very many photographs, because it starts without any knowledge."],
];
const TIMES = [["", "As long as it takes"], ["2m", "2 minutes"], ["10m", "10 minutes"], ["30m", "30 minutes"], ["1h", "1 hour"], ["3h", "3 hours"]];
const STATES = { queued: "waiting", running: "running", done: "done", stopped: "stopped", failed: "failed" };
const EPOCH = /^epoch +(\d+)\/(\d+)/;
const PLANNED = /^()(\d+) epochs? of /; // before the first epoch
const AGAIN = "again:"; // #train/again:RUN begins with that run's split and weights

export async function show(main, studio) {
  const page = new TrainPage(studio);
  await page.build(main);
  return () => page.stop();
}

class TrainPage {
  constructor(studio) {
    this.studio = studio;
    this.again = studio.where.startsWith(AGAIN) ? studio.where.slice(AGAIN.length) : "";
    this.chosen = this.again ? "" : studio.where;
  }

  async build(main) {
    const [{ offers }, { runs }] = await Promise.all([get("/api/train/offers"), get("/api/train/runs")]);
    this.runs = runs;
    this.list = el("ul", { class: "runs" });
    this.detail = el("section", { class: "run", "aria-label": "The chosen training" });
    const side = el("div", {}, this.form(offers), el("section", { class: "panel", "aria-label": "Trainings" }, el("h2", {}, "Trainings"), this.list));
    fill(main, el("div", { class: "train" }, side, this.detail));
    await this.follow(runs);
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
  }

  // --- What is asked for ------------------------------------------------------------------------------------

  form(offers) {
    const kinds = [["file", "Files here"], ["published", "Published models"], ["run", "Trained here"]];
    const weights = el("select", { id: "weights" }, kinds.map(([kind, title]) => {
      const own = offers.filter((offer) => offer.kind === kind);
      return own.length > 0 && el("optgroup", { label: title }, own.map((offer) => el("option", { value: offer.source }, offer.title + (offer.here ? "" : ` (${offer.megabytes} MB download)`))));
    }), el("optgroup", { label: "From scratch" }, el("option", { value: "none" }, "A new model")));
    const about = el("p", { class: "small soft", id: "method-about" });
    const method = el("select", { id: "method", "aria-describedby": "method-about", onchange: () => explain() }, METHODS.map(([value, title]) => el("option", { value }, title)));
    const explain = () => { about.textContent = METHODS.find(([value]) => value === method.value)[2]; };
    const time = el("select", { id: "time" }, TIMES.map(([value, title]) => el("option", { value }, title)));
    const done = this.runs.filter((run) => run.state === "done" || run.state === "stopped");
    const split = el("select", { id: "split" }, el("option", { value: "" }, "Draw a new split"), done.map((run) => el("option", { value: run.name }, `As in ${run.name}`)));
    if (this.again) split.value = this.again;
    else if (done.length) split.value = done[0].name;
    explain();
    const start = async (event) => {
      event.preventDefault();
      try {
        const { run, notes } = await post("/api/train/start", { weights: weights.value, method: weights.value === "none" ? "scratch" : method.value, time: time.value, split_from: split.value });
        this.chosen = run;
        if (innerWidth < 800) this.detail.scrollIntoView();
        say(`${run} continues when this page or the studio is closed.`);
        for (const note of notes) say(note);
        await this.follow();
      } catch (error) {
        fail(error);
      }
    };
    const few = offers.length === 0 && el("p", { class: "small bad" }, "No model is here to begin from, and downloading is switched off: put a file of weights into the folder of the studio, and load this page again. A new model from scratch needs very many photographs.");
    const form = el("form", { onsubmit: start, "aria-label": "A new training" },
      field("weights", "Begin from", weights, "A model that has seen many pictures learns from few."), few,
      el("div", { class: "field" }, el("label", { for: "method" }, "What is trained"), method, about),
      field("time", "At most", time),
      done.length > 0 && field("split", "Test photographs", split, "The same as in an earlier training if the figures should be compared; new photographs are assigned at random."),
      el("button", { class: "primary" }, "Train"));
    const open = Boolean(this.again || !this.runs.length || innerWidth > 800);
    return el("details", { class: "panel", open }, el("summary", {}, el("h2", {}, this.again ? "Train again" : "Train")), form);
  }

  // --- How it goes --------------------------------------------------------------------------------------------

  async follow(runs = null) {
    clearTimeout(this.timer);
    if (this.stopped) return;
    try {
      this.runs = runs ?? (await get("/api/train/runs")).runs;
      if (!this.runs.some((run) => run.name === this.chosen)) this.chosen = this.runs[0]?.name || "";
      this.now = this.chosen ? await get(`/api/train/runs/${encodeURIComponent(this.chosen)}`) : null;
      this.draw();
    } catch (error) {
      fail(error);
    }
    const busy = this.runs.some((run) => run.state === "running" || run.state === "queued");
    if (!this.stopped) this.timer = setTimeout(() => this.follow(), busy ? 1000 : 5000);
  }

  draw() {
    const rows = JSON.stringify([this.runs.map((run) => [run.name, run.state, run.figures]), this.chosen]);
    if (rows !== this.rows) {
      this.rows = rows;
      fill(this.list, this.runs.map((run) => el("li", {},
        el("button", { type: "button", class: "filter", "data-focus": run.name, "aria-pressed": String(run.name === this.chosen), onclick: () => this.choose(run.name) },
          el("span", { class: "cut" }, run.name), mark(run)))));
      if (!this.runs.length) fill(this.list, el("li", { class: "soft" }, "None yet."));
    }
    const now = JSON.stringify(this.now);
    if (now !== this.drawn) {
      this.drawn = now;
      this.drawRun();
    }
  }

  choose(name) {
    this.chosen = name;
    this.follow();
  }

  drawRun() {
    const run = this.now;
    if (!run) {
      fill(this.detail, el("div", { class: "panel" }, el("h2", {}, "No training yet"), el("p", { class: "soft" }, "Press Train: this place then shows how well the model does and how long it still takes.")));
      return;
    }
    const open = this.detail.querySelector("details.log-of")?.open ?? run.state === "failed";
    const told = JSON.stringify([run.name, run.metrics]);
    if (told !== this.charted) [this.charted, this.charts] = [told, curves(run.metrics)];
    fill(this.detail, el("div", { class: "row spread" }, el("h2", { class: "wrap" }, run.name), this.buttons(run)), this.told(run),
      el("div", { class: "panels" }, (this.charts ?? []).filter(Boolean).map((own) => el("div", { class: "panel" }, own))),
      run.log.length > 0 && el("details", { class: "panel log-of", open }, el("summary", { "data-focus": "log" }, "Log"), el("pre", { class: "log", tabindex: 0, "aria-label": "Log of the training" }, run.log.slice(-40).join("\n"))));
  }

  buttons(run) {
    const act = async (what, done) => {
      try {
        await post(`/api/train/runs/${encodeURIComponent(run.name)}/${what}`);
        say(done);
      } catch (error) {
        fail(error);
      }
      await this.follow();
    };
    const button = (text, onclick, kind = "") => el("button", { type: "button", class: kind, "data-focus": text, onclick }, text);
    const results = run.state === "done" && this.studio.tabs.some((tab) => tab.name === "results");
    return el("div", { class: "row" },
      run.state === "running" && run.can_stop && button("Stop", () => act("stop", `${run.name} stops after this step, and keeps what it has learned.`)),
      run.state === "queued" && button("Remove from the queue", () => act("stop", `${run.name} is removed from the queue.`)),
      run.state === "stopped" && run.can_resume && button("Continue", () => act("resume", `${run.name} continues.`), "primary"),
      run.state === "failed" && button("Remove from the list", () => act("stop", `${run.name} is no longer in the list.`)),
      results && button("See the results", () => this.studio.goto("results", run.name), "primary"));
  }

  /** What came of a training, or what it does now, as a verdict. */
  told(run) {
    const { accuracy, images, split } = run.figures;
    const small = (text) => el("p", { class: "small soft wrap" }, text);
    if (run.state === "running") return this.progress(run);
    const { done, of } = epochsOf(run);
    if (run.state === "queued") return verdict({ level: "note", sentence: "Waits for the trainings before it" }, null, [], "Progress");
    if (run.state === "failed") return verdict({ level: "problem", sentence: "The training failed" }, null, [run.why && el("p", { class: "wrap" }, run.why)]);
    const stopped = { level: "warning", sentence: "Stopped before the end" };
    return verdict(run.state === "stopped" ? stopped : run.verdict ?? { level: "note", sentence: "Done" }, isNumber(accuracy) ? percent(accuracy) : null, [
      isNumber(accuracy) && el("p", { class: "soft" }, `of ${images} ${split === "val" ? "validation" : split} photographs`),
      run.caveats.map(small),
      run.state === "done" && run.asked.time && done < of && small(`The time (${run.asked.time}) is up: ${done} of ${of} epochs.`),
      run.state === "stopped" && run.can_resume && small("It can be continued where it stopped."),
    ]);
  }

  /** What a running training does, in plain words, with the time left. */
  progress(run) {
    const { done, of, isLast } = epochsOf(run);
    const within = run.step?.what === `epoch ${done + 1}/${of}` ? run.step.done / run.step.total : 0;
    const left = leftOf(run, done + within, of);
    const learns = done < of && (isLast || within > 0); // a training may end before its last epoch
    const stage = learns ? { done: done + within, total: of } : run.step ?? {};
    const sentence = learns ? "Learning from your photographs" : of ? "Testing the model" : "Training";
    const about = learns ? `Epoch ${done + 1} of ${of}: in each, the model sees every training photograph once. Then it is tested on photographs that it has not seen.` : run.log.at(-1);
    return el("div", { role: "status" }, verdict({ level: "note", sentence: sentence + (learns && left ? `: ${left}` : "") }, null, [
      el("p", { class: "soft wrap" }, about), bar(stage, sentence),
      !run.can_stop && el("p", { class: "small soft" }, "This studio has not started it: stop it where it was started.")], "Progress"));
  }
}

/** The epochs that are done and all, as the log says, and whether its last line is about them. */
function epochsOf(run) {
  const lines = run.log.map((line) => line.replace(/^[-\d]+ [:\d]+ +/, ""));
  const [, done, of] = lines.findLast((line) => EPOCH.test(line))?.match(EPOCH) || lines.findLast((line) => PLANNED.test(line))?.match(PLANNED) || [];
  return { done: Number(done || 0), of: Number(of || 0), isLast: EPOCH.test(lines.at(-1)) || PLANNED.test(lines.at(-1)) };
}

/** The time left for learning, estimated from the epochs that are done and the limit; empty before the first. */
function leftOf(run, done, of) {
  const { seconds, epoch } = run.metrics.at(-1) ?? {};
  if (!seconds || !done) return "";
  const each = seconds / (epoch + 1);
  const limit = /^([\d.]+)([smh])$/.exec(run.asked.time || "");
  const most = limit ? limit[1] * { s: 1, m: 60, h: 3600 }[limit[2]] - each * done : Infinity;
  return timeLeft(Math.max(0, Math.min(each * (of - done), most)));
}

function isNumber(value) {
  return typeof value === "number";
}

function mark(run) {
  const kind = { failed: "bad", stopped: "warn" }[run.state] || "";
  const told = run.state === "done" && isNumber(run.figures.accuracy) ? percent(run.figures.accuracy) : STATES[run.state];
  return el("span", { class: `chip ${kind}` }, told);
}

function field(id, title, input, about = "") {
  return el("div", { class: "field" }, el("label", { for: id }, title), input, about && el("span", { class: "small soft" }, about));
}

function curves(rows) {
  if (!rows.length) return null;
  const line = (key, title) => ({ title, points: rows.filter((row) => row[key] !== undefined).map((row) => [row.epoch + 1, row[key]]) });
  return [chart("Right answers", "epoch", [line("train_acc", "on training photographs"), line("val_acc", "on validation photographs")], { percent: true }),
    chart("Loss (lower is better)", "epoch", [line("train_loss", "on training photographs"), line("val_loss", "on validation photographs")])];
}
