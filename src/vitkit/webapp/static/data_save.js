// Sends labels to the studio, one request after the other, and repeats them until they are in the label file.

import { fail, get, post } from "./api.js";

const AGAIN = 1000; // milliseconds until a studio that does not answer is asked again
const PATIENCE = 3000; // milliseconds that leaving the tab waits for what is on its way

export class Saver {
  /** tell: { saved(), pending(count, unreachable) } */
  constructor(photos, tell) {
    this.photos = photos;
    this.tell = tell;
    this.edits = []; // in their order; labels name photographs by path, which a changed folder does not renumber
    this.warn = (event) => { if (this.edits.length) event.preventDefault(); };
    addEventListener("beforeunload", this.warn);
  }

  /** Gives photographs a class (empty: left out, null: none) in the page at once, and in the label file soon. */
  label(ids, label) {
    const { photos } = this;
    const suggested = ids.filter((id) => photos.isSuggested(id, label));
    const step = { paths: ids.map((id) => photos.paths[id]), label, run: suggested.length ? photos.suggestedBy : "", suggested: suggested.map((id) => photos.paths[id]) };
    photos.pending.push(step);
    photos.apply(ids, label);
    this.edits.push({ step });
    this.tell.pending(photos.pending.length, false);
    this.run();
  }

  /** Any other edit, after the labels before it; resolves when it is done. */
  edit(path, body) {
    return new Promise((resolve, reject) => {
      this.edits.push({ path, body, resolve, reject });
      this.run();
    });
  }

  async run() {
    if (this.running) return;
    this.running = true;
    while (this.edits.length) await this.send(this.edits[0]);
    this.running = false;
    this.drained?.();
  }

  async send(edit) {
    const { photos } = this;
    try {
      const told = await (edit.step ? this.sendLabels(edit.step) : post(`/api/data/${edit.path}`, edit.body));
      this.done(edit);
      if (told) photos.take(told);
      edit.resolve?.();
      this.tell.pending(photos.pending.length, false);
      if (edit.step) this.tell.saved();
    } catch (error) {
      if (edit.step && error.unreachable) {
        this.tell.pending(photos.pending.length, true);
        await new Promise((resolve) => { setTimeout(resolve, AGAIN); });
      } else if (edit.step && error.status === 409) {
        await this.reload();
      } else {
        this.done(edit);
        if (edit.reject) edit.reject(error);
        else await this.refused(error);
      }
    }
  }

  done(edit) {
    this.edits.shift();
    if (edit.step) this.photos.pending.shift();
  }

  sendLabels({ paths, label, run, suggested }) {
    const number = (path) => this.photos.numbers.get(path);
    const there = (list) => list.map(number).filter((id) => id !== undefined);
    const images = there(paths);
    if (images.length < paths.length) fail(new Error(`${paths.find((path) => number(path) === undefined)} is no longer there: it gets no label.`));
    if (!images.length) return null;
    return post("/api/data/labels", { version: this.photos.version, images, label, run, suggested: there(suggested) });
  }

  /** Handles a changed folder, in which the photographs have new numbers. */
  async reload() {
    try {
      await this.photos.load(true);
      this.tell.saved();
    } catch (error) {
      if (!error.unreachable) fail(error);
      await new Promise((resolve) => { setTimeout(resolve, AGAIN); });
    }
  }

  /** Handles a label that the studio refuses: the page shows the content of the label file again. */
  async refused(error) {
    fail(error);
    this.tell.pending(this.photos.pending.length, false);
    try {
      this.photos.take(await get("/api/data/labels"));
    } catch (another) {
      fail(another);
    }
    this.tell.saved();
  }

  /** Waits, for a limited time, until everything is in the label file. */
  async stop() {
    if (this.running) await Promise.race([new Promise((resolve) => { this.drained = resolve; }), new Promise((resolve) => { setTimeout(resolve, PATIENCE); })]);
    if (!this.running) removeEventListener("beforeunload", this.warn);
  }
}
