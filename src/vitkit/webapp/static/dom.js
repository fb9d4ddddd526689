// Elements, made of names and text. Text is always a text node: names of files and classes are not HTML.

/**
 * An element: el("button", { class: "primary", onclick: go, disabled: false }, "Train", icon).
 * Properties that begin with "on" are listeners; true and false set and leave out an attribute; null is left out.
 */
export function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "value") made.value = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Puts these in the place of all that is in an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return parent;
}

/** A dialog that closes on Escape and on its button; gives back the element, already shown. */
export function dialog(title, ...children) {
  const made = el("dialog", { class: "dialog", "aria-label": title },
    el("header", {}, el("h2", {}, title), el("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => made.close() }, "✕")),
    ...children);
  made.addEventListener("close", () => made.remove());
  made.addEventListener("click", (event) => { if (event.target === made) made.close(); });
  document.body.append(made);
  made.showModal();
  return made;
}

/** "1 photograph", "2,500 photographs". */
export function count(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
