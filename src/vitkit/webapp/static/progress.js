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

export function bar(told, name) {
  return el("progress", { "aria-label": name, ...(told.total ? { value: told.done, max: told.total } : {}) });
}
