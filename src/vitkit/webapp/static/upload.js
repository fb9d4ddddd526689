// Sends photographs, or a folder or archive of them, to the studio, which writes them into a new folder.

import { fail, post, postBytes, say } from "./api.js";
import { count, el, fill, takeDrops } from "./dom.js";

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
  const folder = await post("/api/folders/new", { name: isFolder ? top : pictures.length === 1 ? first[0].replace(/\.[^.]*$/, "") : "photographs" });
  let [kept, refused] = [0, null];
  for (const [path, file] of pictures) {
    try {
      tell(`Sending: ${(kept + 1).toLocaleString("en")} of ${pictures.length.toLocaleString("en")}`, kept / pictures.length);
      await sendFile(folder.id, isFolder ? path.slice(top.length + 1) : path, file);
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

/** Sends one file into a folder. */
export function sendFile(id, name, file) {
  return postBytes(`/api/folders/${id}/files?${new URLSearchParams({ name })}`, file);
}
