// The progress of long work, in words and as a bar.

import { el } from "./dom.js";

/** The time left, such as "about 2 minutes left"; empty if it is unknown. */
export function timeLeft(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 5) return "a few seconds left";
  if (seconds < 90) return `about ${5 * Math.ceil(seconds / 5)} seconds left`;
  if (seconds < 5400) return `about ${Math.round(seconds / 60)} minutes left`;
  return `about ${(seconds / 3600).toFixed(1)} hours left`;
}

/** The stage of a task in a line: "Predicting: 12 of 300, about 20 seconds left". */
export function stage({ what, done, total, left }, first = "Starting") {
  const name = what ? what[0].toUpperCase() + what.slice(1) : first;
  const part = total ? `: ${done.toLocaleString("en")} of ${total.toLocaleString("en")}` : done ? `: ${done.toLocaleString("en")}` : " …";
  const rest = timeLeft(left);
  return `${name}${part}${rest && `, ${rest}`}`;
}

const SPENT = new Map(); // the seconds that work of a kind took last

/**
 * Shows in an element how long a request may still take, as it took the last time, or else the seconds so far.
 * Returns a function that ends this; if it is called with true, the work is done and its time is remembered.
 */
export function clock(element, kind) {
  const begun = performance.now();
  const spent = () => (performance.now() - begun) / 1000;
  const known = SPENT.get(kind);
  const tell = () => {
    if (known >= 2 && spent() < known) element.textContent = timeLeft(known - spent());
    else element.textContent = spent() >= 2 ? `${Math.floor(spent())} seconds so far` : "";
  };
  tell();
  const timer = setInterval(tell, 500);
  return (done) => {
    clearInterval(timer);
    element.textContent = "";
    if (done) SPENT.set(kind, spent());
  };
}

export function bar(told, name) {
  return el("progress", { "aria-label": name, ...(told.total ? { value: told.done, max: told.total } : {}) });
}
