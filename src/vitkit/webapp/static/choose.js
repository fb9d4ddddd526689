// The page before a folder is open: a choice of photographs, runs and data sets, and a place to add photographs.

import { get, post } from "./api.js";
import { count, el, fill } from "./dom.js";
import { uploadPlace } from "./upload.js";

export async function show(main) {
  const { folders, runs, named } = await get("/api/chooser");
  const told = el("p", { role: "status" });
  const open = async (kind, name, title) => {
    for (const button of main.querySelectorAll("button")) button.disabled = true;
    fill(told, `Opening ${title} …`);
    try {
      await post("/api/chooser/open", { kind, name });
      location.href = "/";
    } catch (error) {
      for (const button of main.querySelectorAll("button")) button.disabled = false;
      fill(told, el("span", { class: "bad wrap" }, `${title} was not opened: ${error.message}`), " ", kind === "named" && el("label", { for: "upload-files", class: "button" }, "Choose files instead"));
    }
  };
  const choice = (kind, name, title, about) => el("li", {}, el("button", { type: "button", class: "filter", onclick: () => open(kind, name, title) }, el("span", { class: "cut" }, title), el("span", { class: "small soft" }, about)));
  const list = (title, rows, none) => el("section", { class: "panel", "aria-label": title }, el("h2", {}, title), rows.length ? el("ul", { class: "choices" }, rows) : el("p", { class: "soft" }, none));
  fill(main, el("h2", {}, "Which photographs?"), el("p", { class: "soft" }, "Begin with your own: a folder for each class, or one folder of photographs to which you give classes here. None of them is moved or changed."), told, el("div", { class: "choose" },
    list("Folders and archives here", folders.map((own) => choice("folder", own.id, own.title, own.images === null ? "archive" : count(own.images, "photograph", "photographs"))), "There are no photographs below the folder in which the studio was started."),
    el("section", { class: "panel", "aria-label": "Add photographs" }, el("h2", {}, "Add photographs"), uploadPlace((folder) => open("folder", folder.id, folder.title))),
    runs.length > 0 && list("Runs", runs.map((name) => choice("run", name, name, "with its photographs")), ""),
    list("Data sets to try", named.map((own) => choice("named", own.name, own.name, own.megabytes ? `${own.megabytes.toLocaleString("en")} MB download` : "on this machine")), "")));
}
