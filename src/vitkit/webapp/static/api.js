// Sends requests to the studio, and shows errors in one line.

import { el } from "./dom.js";

const UNREACHABLE = "The studio does not answer: is it still running? What was saved before is safe.";

/** JSON of an address. Throws an Error whose message is for people. */
export async function get(path) {
  return answer(() => fetch(path));
}

/** Sends JSON, gives back JSON. Throws an Error whose message is for people. */
export async function post(path, body = {}) {
  const asked = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return answer(() => fetch(path, asked));
}

/** Sends bytes, gives back JSON. Throws an Error whose message is for people. */
export async function postBytes(path, body) {
  return answer(() => fetch(path, { method: "POST", body, headers: { "Content-Type": "application/octet-stream" } }));
}

async function answer(ask) {
  let response;
  try {
    response = await ask();
  } catch {
    throw Object.assign(new Error(UNREACHABLE), { unreachable: true });
  }
  const told = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(told.error || `The studio answered ${response.status}.`), { status: response.status });
  return told;
}

/** Shows a line that disappears by itself; screen readers read it politely. */
export function say(text) {
  show("says", text, 5000);
}

/** Shows an error for longer; screen readers read it at once. */
export function fail(error) {
  show("fails", error.message || String(error), 12000);
}

function show(where, text, milliseconds) {
  const place = document.getElementById(where);
  if ([...place.children].some((own) => own.dataset.text === text)) return;
  const line = el("div", { class: "line", "data-text": text }, el("span", {}, text),
    el("button", { type: "button", class: "quiet", "aria-label": "Close this message", onclick: () => line.remove() }, "✕"));
  place.append(line);
  while (place.children.length > 3) place.firstChild.remove();
  setTimeout(() => line.remove(), milliseconds);
}
