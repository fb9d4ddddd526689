// The page: tabs by the address's hash (#data, #train/RUN), one at a time.

import { el, fill, styleSheet } from "./dom.js";
import { fail, get, post } from "./api.js";

let studio = null;
let leave = null;
let turn = 0;

async function start() {
  const choosing = document.documentElement.dataset.chooser !== undefined;
  try {
    studio = await get("/api/studio");
  } catch (error) {
    fill(document.getElementById("main"), el("p", {}, error.message),
      el("button", { type: "button", onclick: start }, "Try again"));
    return;
  }
  studio.goto = (tab, where = "") => { location.hash = where ? `${tab}/${encodeURIComponent(where)}` : tab; };
  document.title = studio.name ? `${studio.name} – vitkit studio` : "vitkit studio";
  const place = document.getElementById("place");
  place.textContent = studio.name;
  if (studio.can_choose) document.getElementById("another").hidden = false;
  if (!choosing) place.title = `Photographs: ${studio.photographs} (only read)\nLabels: ${studio.labels}\nRuns: ${studio.runs}`;
  fill(document.getElementById("tabs"), studio.tabs.map((tab) => el("a", { href: `#${tab.name}`, title: tab.about }, tab.title)));
  addEventListener("hashchange", open);
  await open();
}

function styled(address) {
  return document.querySelector(`link[href="${address}"]`) ? null : styleSheet(address);
}

function asked() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const first = studio.first_run && studio.tabs.find((tab) => tab.name === "results");
  const tab = studio.tabs.find((own) => own.name === name) || first || studio.tabs[0];
  let where = rest.join("/");
  try { where = decodeURIComponent(where); } catch { /* as it stands */ }
  return { tab, where };
}

async function open() {
  if (location.hash === "#main") return;
  const own = ++turn;
  const { tab, where } = asked();
  const main = document.getElementById("main");
  const leaving = leave;
  leave = null;
  if (leaving) await leaving(); // what is on its way is saved first
  if (own !== turn) return;
  if (!tab) {
    fill(main, el("p", { class: "soft" }, "There is no tab yet."));
    return;
  }
  for (const link of document.querySelectorAll("#tabs a")) {
    if (link.getAttribute("href") === `#${tab.name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  fill(main, el("h1", { class: "unseen" }, tab.title), el("p", { class: "soft" }, "Loading …"));
  try {
    const [module] = await Promise.all([import(`./${tab.name}.js`), tab.styled && styled(`/static/${tab.name}.css`)]);
    const page = el("div", { class: "page" });
    const left = await module.show(page, { ...studio, where });
    if (own !== turn) {
      if (left) left();
      return;
    }
    leave = left || null;
    fill(main, el("h1", { class: "unseen" }, tab.title), page);
  } catch (error) {
    if (own !== turn) return;
    fail(error);
    fill(main, el("p", {}, error.message), el("button", { type: "button", onclick: open }, "Try again"));
  }
}

document.getElementById("another").addEventListener("click", async () => {
  try {
    if (leave) await leave();
    await post("/api/chooser/close");
    location.href = "/";
  } catch (error) {
    fail(error);
  }
});
addEventListener("unhandledrejection", (event) => { fail(event.reason); event.preventDefault(); });
start();
