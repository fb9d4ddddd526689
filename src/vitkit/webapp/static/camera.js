// The camera of this machine, and recording pictures of classes with it.

import { fail, get, post, say } from "./api.js";
import { count, el, fill } from "./dom.js";
import { sendFile } from "./upload.js";

const MOST = 30; // pictures while a button is held once
const PAUSE = 100; // milliseconds between two pictures
const REASONS = { // in words for people
  NotAllowedError: "this page was not allowed to. Allow it in the browser's address bar",
  NotFoundError: "this machine has none. Photographs can be sent from a phone or added as files",
  NotReadableError: "another program is using it",
};
const NEW = ""; // the choice of a new folder

/** A video element with the picture of the camera; `changed()` is called when it is switched on or off. */
export class Camera {
  constructor(changed) {
    this.changed = changed;
    this.video = el("video", { playsinline: true, muted: true, "aria-label": "Picture of the camera" });
    this.video.muted = true;
    this.button = el("button", { type: "button", class: "primary", onclick: () => this.toggle() }, "Start the camera");
    this.place = el("section", { class: "panel live-camera", "aria-label": "Camera" }, this.video, el("div", { class: "row" }, this.button, el("span", { class: "small soft" }, "Its pictures stay on this machine.")));
  }

  get isOn() {
    return Boolean(this.stream);
  }

  async toggle() {
    if (this.isOn) {
      this.stop();
      return;
    }
    if (this.isStarting) return; // the browser is still asking
    this.isStarting = true;
    try {
      if (!navigator.mediaDevices) throw new Error("browsers allow it only on the machine of the studio itself");
      const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
      this.stream = stream;
      if (this.isLeft) {
        this.stop();
        return;
      }
      for (const track of stream.getTracks()) track.addEventListener("ended", () => this.ended(stream));
      this.video.srcObject = stream;
      await this.video.play();
    } catch (error) {
      if (this.isLeft) return;
      this.stop();
      fail(new Error(`The camera cannot be used: ${REASONS[error.name] || error.message}`));
      return;
    } finally {
      this.isStarting = false;
    }
    this.button.textContent = "Stop the camera";
    this.place.classList.add("on");
    this.changed();
  }

  /** The camera was unplugged, or the browser took it away. */
  ended(stream) {
    if (this.stream !== stream) return;
    this.stop();
    fail(new Error("The camera does not answer any more: is it plugged in?"));
  }

  /** The page is left: a camera that is being started is switched off, too. */
  leave() {
    this.isLeft = true;
    this.stop();
  }

  stop() {
    for (const track of this.stream?.getTracks() || []) track.stop();
    this.stream = null;
    this.video.srcObject = null;
    this.place.classList.remove("on");
    this.button.textContent = "Start the camera";
    this.changed();
  }

  /** What the camera sees now, as a JPEG file; null if it shows nothing yet, or was switched off. */
  async picture() {
    if (!this.video.videoWidth) return null;
    const canvas = el("canvas", { width: this.video.videoWidth, height: this.video.videoHeight });
    canvas.getContext("2d").drawImage(this.video, 0, 0);
    return new Promise((done) => { canvas.toBlob(done, "image/jpeg", 0.95); });
  }
}

/** Records pictures into the classes of a folder; `opened(folder)` is called when the user wants to use it. */
export class Recorder {
  constructor(camera, opened) {
    this.camera = camera;
    this.opened = opened;
    this.rows = el("ul", { class: "live-classes" });
    this.folder = el("select", { id: "live-folder", onchange: () => this.choose() });
    this.name = el("input", { id: "live-name", value: "recorded", maxlength: 80 });
    this.naming = el("span", { class: "row" }, el("label", { for: "live-name" }, "named"), this.name);
    this.use = el("button", { type: "button", disabled: true, onclick: () => this.finish() }, "Use these photographs");
    this.told = el("p", { class: "small soft", role: "status" });
    this.place = el("section", { class: "panel", "aria-label": "Record pictures" }, el("h2", {}, "Record pictures"),
      el("p", {}, `Name what the camera sees, and hold the button: up to ${MOST} pictures are taken, ${1000 / PAUSE} a second. Move the thing, and record each class several times, in different places.`),
      el("div", { class: "row" }, el("label", { for: "live-folder" }, "Into"), this.folder, this.naming), this.rows,
      el("div", { class: "row" }, el("button", { type: "button", onclick: () => this.addClass("").name.focus() }, "Add a class"), this.use), this.told);
    this.waiting = Promise.resolve();
  }

  async load() {
    const { folders } = await get("/api/folders/sent");
    this.known = new Map(folders.map((own) => [own.id, own]));
    fill(this.folder, el("option", { value: NEW }, "a new folder"), folders.map((own) => el("option", { value: own.id }, `${own.title} (${own.images.toLocaleString("en")})`)));
    this.choose();
  }

  choose() {
    const own = this.known.get(this.folder.value);
    this.target = own ? own.id : null;
    this.naming.hidden = Boolean(own);
    this.use.disabled = !own;
    fill(this.rows);
    const classes = Object.entries(own?.classes || {}).filter(([name]) => name);
    for (const [name, number] of classes.length ? classes : [["", 0], ["", 0]]) this.addClass(name, number);
  }

  addClass(called, number = 0) {
    const row = { number };
    row.name = el("input", { value: called, placeholder: "Name of the class", "aria-label": "Name of the class", maxlength: 80 });
    row.counted = el("span", { class: "small soft number" }, count(number, "picture", "pictures"));
    row.last = el("img", { alt: "", class: "live-last" });
    row.button = el("button", { type: "button", disabled: !this.camera.isOn }, "Hold to record");
    const begin = (event) => {
      event.preventDefault();
      if (event.pointerId !== undefined) row.button.setPointerCapture(event.pointerId);
      this.record(row);
    };
    const end = () => { row.isHeld = false; };
    row.button.addEventListener("pointerdown", begin);
    for (const kind of ["pointerup", "pointercancel", "blur"]) row.button.addEventListener(kind, end);
    row.button.addEventListener("keydown", (event) => { if ([" ", "Enter"].includes(event.key) && !event.repeat) begin(event); });
    row.button.addEventListener("keyup", end);
    row.button.addEventListener("contextmenu", (event) => event.preventDefault()); // of a long touch
    this.rows.append(el("li", { class: "row" }, row.name, row.button, row.last, row.counted));
    return row;
  }

  /** The camera was switched on or off. */
  cameraChanged() {
    for (const button of this.rows.querySelectorAll("button")) button.disabled = !this.camera.isOn;
  }

  async record(row) {
    const called = row.name.value.trim().replace(/[\\/]/g, "_");
    if (!called.replace(/[. ]/g, "")) {
      row.name.focus();
      fail(new Error("Name the class first."));
      return;
    }
    row.isHeld = true;
    if (row.isRecording) return;
    row.isRecording = true;
    row.button.setAttribute("aria-pressed", "true");
    try {
      this.target ||= (await post("/api/folders/new", { name: this.name.value.trim() || "recorded" })).id;
      this.folder.disabled = this.name.disabled = true;
      const begun = new Date().toISOString().replace(/\D/g, ""); // to the millisecond
      for (let taken = 0; this.camera.isOn && (!taken || (row.isHeld && taken < MOST)); taken += 1) { // one at least
        const next = performance.now() + PAUSE;
        const picture = await this.camera.picture();
        if (!picture) break;
        this.send(row, `${called}/${begun}-${String(taken + 1).padStart(2, "0")}.jpg`, picture);
        await new Promise((done) => { setTimeout(done, Math.max(0, next - performance.now())); });
      }
    } catch (error) {
      fail(error);
    }
    row.isHeld = row.isRecording = false;
    row.button.removeAttribute("aria-pressed");
  }

  /** Sends a picture after those before it. */
  send(row, name, picture) {
    this.waiting = this.waiting.then(async () => {
      await sendFile(this.target, name, picture);
      row.number += 1;
      row.counted.textContent = count(row.number, "picture", "pictures");
      URL.revokeObjectURL(row.last.src);
      row.last.src = URL.createObjectURL(picture);
      this.use.disabled = false;
    }).catch(fail);
  }

  async finish() {
    await this.waiting;
    say("All pictures are saved.");
    this.told.textContent = "Opening the folder …";
    await this.opened(this.target);
  }
}
