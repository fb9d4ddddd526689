// Sends photographs, or a folder or archive of them, to the studio, which writes them into a new folder.

import { fail, post, postBytes, say } from "./api.js";
import { count, el, fill, takeDrops } from "./dom.js";
import { timeLeft } from "./progress.js";

const PART = 16 * 2 ** 20; // bytes that are sent at a time
const FOLDERS = "/api/folders"; // the routes that make folders and receive their files
const KINDS = "image/*,.heic,.heif,.avif,.zip,.tar,.tgz";

/** A place to drop photographs, folders and archives; `done(folder)` gets the new folder. */
export function uploadPlace(done) {
  const told = el("div", { role: "status" });
  const send = async (files) => {
    if (!files.length) return;
    try {
      const folder = await upload(files, (text, part) => fill(told, el("p", {}, text), el("progress", { value: part, max: 1, "aria-label": "Sending" })));
      fill(told);
      if (folder) await done(folder);
    } catch (error) {
      fill(told);
      fail(error);
    }
  };
  const input = (id, more) => {
    const made = el("input", { type: "file", id, class: "unseen", multiple: true, ...more, onchange: async () => {
      await send([...made.files].map((file) => [file.webkitRelativePath || file.name, file]));
      made.value = "";
    } });
    return made;
  };
  const place = el("div", { class: "drop" }, el("p", {}, "Drop photographs, a folder or a zip file here, or"),
    el("div", { class: "row" }, input("upload-files", { accept: KINDS }), el("label", { for: "upload-files", class: "button" }, "Choose files"),
      input("upload-folder", { webkitdirectory: true }), el("label", { for: "upload-folder", class: "button" }, "Choose a folder")),
    el("p", { class: "small soft" }, "They are copied into a new folder on the studio's machine, beside the runs. The originals stay as they are."), told);
  takeDrops(place, async ({ items, files }) => {
    const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    try {
      await send(entries.length ? (await Promise.all(entries.map((entry) => walk(entry)))).flat() : [...files].map((file) => [file.name, file]));
    } catch (error) {
      fail(new Error(`What was dropped cannot be read: ${error.message}`));
    }
  });
  return place;
}

/** All files in a dropped entry, as [path, file]. */
async function walk(entry, above = "") {
  const path = above ? `${above}/${entry.name}` : entry.name;
  if (entry.isFile) return [[path, await new Promise((resolve, reject) => { entry.file(resolve, reject); })]];
  const reader = entry.createReader();
  const inside = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (!some.length) break;
    inside.push(...some);
  }
  return (await Promise.all(inside.map((own) => walk(own, path)))).flat();
}

async function upload(files, tell) {
  const pictures = files.filter(([path]) => !path.split("/").some((part) => part.startsWith(".")));
  const [first] = pictures;
  if (!first) throw new Error("There are no photographs among these files.");
  const top = first[0].split("/")[0];
  const isFolder = pictures.every(([path]) => path.startsWith(`${top}/`));
  const folder = await post(`${FOLDERS}/new`, { name: isFolder ? top : pictures.length === 1 ? first[0].replace(/\.[^.]*$/, "") : "photographs" });
  const total = pictures.reduce((sum, [, file]) => sum + file.size, 0);
  const begun = performance.now();
  let [sent, kept, refused] = [0, 0, null];
  for (const [path, file] of pictures) {
    const name = isFolder ? path.slice(top.length + 1) : path;
    try {
      await sendFile(folder.id, name, file, FOLDERS, (bytes) => {
        sent += bytes;
        const left = (performance.now() - begun) / 1000 * (total - sent) / Math.max(1, sent);
        tell(`Sending: ${(kept + 1).toLocaleString("en")} of ${pictures.length.toLocaleString("en")}, ${timeLeft(left)}`, sent / Math.max(1, total));
      });
      kept += 1;
    } catch (error) {
      if (!error.status) throw kept ? new Error(`${error.message} ${kept.toLocaleString("en")} of ${count(pictures.length, "file", "files")} were sent, into the folder ${folder.title}.`) : error;
      refused = error;
    }
  }
  if (!kept) throw refused;
  say(`${count(kept, "file", "files")} sent${refused ? `, ${(pictures.length - kept).toLocaleString("en")} left out, the last one because: ${refused.message}` : "."}`);
  return folder;
}

/** A button with which a file of weights is sent to the studio; `done(title)` gets the name under which it is offered. */
export function weightsPlace(done) {
  const told = el("span", { class: "small wrap", role: "status" });
  const id = `weights-file-${document.querySelectorAll("input[type=file]").length}`;
  const input = el("input", { type: "file", id, class: "unseen", accept: ".pth,.pt,.safetensors,.npz,.bin,.ckpt", onchange: async () => {
    const [file] = input.files;
    if (!file) return;
    let sent = 0;
    told.className = "small wrap";
    try {
      await sendFile("weights", file.name, file, "/api/train", (bytes) => { sent += bytes; told.textContent = `Copying: ${Math.floor(100 * sent / Math.max(1, file.size))} %`; });
      told.textContent = `${file.name} can be used now.`;
      await done(file.name);
    } catch (error) {
      told.className = "small wrap bad";
      told.textContent = error.message;
    }
    input.value = "";
  } });
  return el("div", { class: "row weights-place" }, input, el("label", { for: id, class: "button" }, "Choose a file of weights"), told);
}

/** Sends one file into a folder in parts; `tell(bytes)` is called after each. */
export async function sendFile(id, name, file, routes = FOLDERS, tell = () => {}) {
  let offset = 0;
  const upload = Math.random().toString(36).slice(2, 10); // two pages may send files of one name
  do {
    const part = file.slice(offset, offset + PART);
    const last = offset + part.size >= file.size;
    await postBytes(`${routes}/${id}/files?${new URLSearchParams({ name, offset, last, upload })}`, part);
    offset += part.size;
    tell(part.size);
  } while (offset < file.size);
}
