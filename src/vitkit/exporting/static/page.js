// The page: unpacks the model and its runtime, starts the worker, and shows its answers. Nothing is requested from anywhere.

const about = JSON.parse(document.getElementById("card").textContent);
const [drop, list, status, note, least, unlike] = ["drop", "answers", "status", "note", "least", "unlike"].map((id) => document.getElementById(id));
const SHOWN = 5; // classes
const TONES = 10; // colours of classes, as in look.css
const PICTURES = /\.(jpe?g|png|webp|gif|bmp|avif|heic|heif|tiff?|jfif|mpo)$/i;

// --- The model ------------------------------------------------------------------------------------------------

function decoded(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** The bytes of an embedded part, which is compressed and written in base64, in several elements. */
async function part(name) {
  const blocks = [];
  for (const element of document.querySelectorAll(`script[data-part="${name}"]`)) {
    blocks.push(decoded(element.textContent));
    element.remove();
    await new Promise((next) => { setTimeout(next); }); // the page stays responsive
  }
  return new Response(new Blob(blocks).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

let worker = null;
const waiting = new Map();
let number = 0;

function ask(message, moved = []) {
  return new Promise((resolve, reject) => {
    number += 1;
    waiting.set(number, { resolve, reject });
    worker.postMessage({ id: number, ...message }, moved);
  });
}

async function start() {
  const script = new Blob([await part("worker")], { type: "text/javascript" });
  worker = new Worker(URL.createObjectURL(script));
  worker.onmessage = ({ data }) => {
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error) reject(new Error(data.error));
    else resolve(data);
  };
  const broken = new Promise((resolve, reject) => { worker.onerror = (event) => reject(new Error(event.message || "its worker does not start")); });
  const [model, wasm] = [await part("model"), await part("wasm")];
  await Promise.race([broken, ask({ model, wasm, card: about }, [model, wasm])]);
}

const ready = start().then(() => {
  status.hidden = true;
  for (const button of document.querySelectorAll("[data-waits]")) button.disabled = false;
}, (error) => {
  status.textContent = `The model cannot be started in this browser: ${error.message}. A current Chrome, Edge or Firefox, or Safari from version 16.4, is required.`;
  status.className = "bad";
  throw error;
});
ready.catch(() => {});

// --- Answers --------------------------------------------------------------------------------------------------

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== false));
  return made;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** What the model says, from the probabilities of all classes: the names it gives, and their confidence. */
function verdict(probabilities) {
  const ranked = about.classes.map((name, i) => ({ name, p: probabilities[i], threshold: about.thresholds?.[i] })).sort((a, b) => b.p - a.p);
  const [best] = ranked;
  if (!about.thresholds) return { ranked, names: [best.name], confidence: best.p };
  const reached = ranked.filter((row) => row.p >= row.threshold);
  const confidence = reached.length ? Math.min(...reached.map((row) => row.p)) : 1 - best.p;
  return { ranked, names: about.classes.filter((name) => reached.some((row) => row.name === name)), confidence };
}

function isWithheld(found) {
  return found.confidence < Number(least.value) / 100;
}

function sentence(found) {
  if (isWithheld(found)) return `Withheld: ${found.names.join(", ") || "none of the classes"}, ${percent(found.confidence)}`;
  return `${found.names.join(", ") || "None of the classes"}, ${percent(found.confidence)}`;
}

/** How familiar a picture looks: as familiar as the part `familiar` of the known ones, or more. */
function familiarity(place, familiar) {
  const isUnlike = familiar <= Number(unlike.value) / 100;
  place.className = isUnlike ? "bad small" : "small soft";
  place.textContent = `Familiarity ${percent(familiar)}: ${isUnlike ? `only ${percent(familiar)} of the known photographs look as unfamiliar. It may show none of the classes` : "the other known photographs look more familiar"}.`;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const tone = ({ name }) => about.classes.indexOf(name) % TONES;

/** A bar of each class in its colour; where an image may have several classes, a line marks the threshold. */
function bars(found) {
  return el("ul", { class: "bars" }, found.ranked.slice(0, SHOWN).map((row) => {
    const parts = [svg("rect", { width: percent(row.p).replace(" ", ""), height: "100%", rx: 4 })];
    if (row.threshold !== undefined) parts.push(svg("line", { x1: percent(row.threshold).replace(" ", ""), x2: percent(row.threshold).replace(" ", ""), y1: 0, y2: "100%" }));
    const bar = svg("svg", { class: "bar", "aria-hidden": "true", "data-tone": tone(row) }, ...parts);
    return el("li", { class: found.names.includes(row.name) ? "chosen" : "" }, el("span", {}, el("span", { class: "chip", "data-tone": tone(row) }, row.name)), el("span", { class: "number" }, percent(row.p)), bar);
  }));
}

const answers = []; // { name, found, error, said, and familiar and place if the model has such a score } in the order in which they came

async function take(files) {
  const pictures = [...files].filter((file) => file.type.startsWith("image/") || PICTURES.test(file.name));
  const others = [...files].length - pictures.length;
  if (others) note.textContent = `${others} of the files ${others === 1 ? "is not a picture" : "are not pictures"} and ${others === 1 ? "was" : "were"} left out.`;
  const begun = performance.now();
  const rows = pictures.map((file) => {
    const said = el("p", { class: "said" }, "Waiting …");
    const shown = el("img", { alt: "", src: URL.createObjectURL(file) });
    shown.addEventListener("error", () => { shown.removeAttribute("src"); });
    const body = el("div", {}, said, el("p", { class: "name" }, file.name || "pasted picture"));
    list.append(el("li", { class: "panel answer" }, shown, body));
    return { file, said, body, name: file.name || "pasted picture" };
  });
  document.getElementById("after").hidden = !list.children.length;
  await ready;
  let done = 0;
  for (const row of rows) {
    const result = { name: row.name, said: row.said };
    try {
      const { probabilities, familiar } = await ask({ file: row.file });
      result.found = verdict(probabilities);
      result.probabilities = probabilities;
      row.said.textContent = sentence(result.found);
      if (familiar !== null) {
        result.familiar = familiar;
        result.place = el("p", {});
        familiarity(result.place, familiar);
      }
      row.body.append(bars(result.found), ...(result.place ? [result.place] : []));
    } catch (error) {
      result.error = error.message;
      row.said.textContent = "Left out";
      row.body.append(el("p", { class: "bad small" }, `${error.message[0].toUpperCase()}${error.message.slice(1)}.`));
    }
    answers.push(result);
    done += 1;
    note.textContent = `${done.toLocaleString("en")} of ${rows.length.toLocaleString("en")} in ${((performance.now() - begun) / 1000).toFixed(1)} s.`;
  }
}

unlike?.addEventListener("input", () => { for (const answer of answers) if (answer.place) familiarity(answer.place, answer.familiar); });
least.addEventListener("input", () => { for (const answer of answers) if (answer.found) answer.said.textContent = sentence(answer.found); });
document.getElementById("clear").addEventListener("click", () => {
  for (const shown of list.querySelectorAll("img")) URL.revokeObjectURL(shown.src);
  list.replaceChildren();
  answers.length = 0;
  note.textContent = "";
  document.getElementById("after").hidden = true;
});

document.getElementById("save").addEventListener("click", () => {
  const cell = (value) => {
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value; // which a spreadsheet would compute
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const rows = answers.map(({ name, found, error, familiar }) => [cell(name), cell(found && !isWithheld(found) ? found.names.join(";") : ""), found ? found.confidence.toFixed(6) : "", cell(error || ""), ...(unlike ? [familiar?.toFixed(6) ?? ""] : [])].join(","));
  const link = el("a", { download: "predictions.csv", href: URL.createObjectURL(new Blob([[`path,label,confidence,error${unlike ? ",familiar" : ""}`, ...rows, ""].join("\n")], { type: "text/csv" })) });
  link.click();
  URL.revokeObjectURL(link.href);
});

// --- Bringing pictures ----------------------------------------------------------------------------------------

for (const kind of ["dragover", "dragenter"]) document.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const kind of ["dragleave", "drop"]) document.addEventListener(kind, () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files); });
document.addEventListener("paste", (event) => { if (event.clipboardData?.files.length) take(event.clipboardData.files); });
const chooser = document.getElementById("files");
chooser.addEventListener("change", () => { take([...chooser.files]); chooser.value = ""; });

// --- The camera -----------------------------------------------------------------------------------------------

const [camera, video, switcher, live, rate] = ["camera", "video", "switch", "live", "rate"].map((id) => document.getElementById(id));
let stream = null;

async function look() {
  const current = stream;
  const times = [];
  while (current === stream) {
    const frame = await createImageBitmap(video, { colorSpaceConversion: "none" }).catch(() => null);
    if (!frame) {
      await new Promise((next) => { setTimeout(next, 100); });
      continue;
    }
    const { probabilities, familiar } = await ask({ frame }, [frame]);
    const found = verdict(probabilities);
    if (current !== stream) return;
    times.push(performance.now());
    if (times.length > 10) times.shift();
    const said = el("p", {});
    if (familiar !== null) familiarity(said, familiar);
    live.replaceChildren(el("p", { class: "said" }, sentence(found)), said, bars(found));
    if (times.length > 1) rate.textContent = `${((1000 * (times.length - 1)) / (times.at(-1) - times[0])).toFixed(1)} answers a second`;
  }
}

switcher.addEventListener("click", async () => {
  if (stream) {
    for (const track of stream.getTracks()) track.stop();
    stream = null;
    video.srcObject = null;
    camera.hidden = true;
    switcher.textContent = "Use the camera";
    return;
  }
  try {
    const found = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    await ready;
    stream = found;
    video.srcObject = stream;
    camera.hidden = false;
    switcher.textContent = "Stop the camera";
    await video.play();
    await look();
  } catch (error) {
    note.textContent = `The camera cannot be used: ${error.message}. Some browsers allow it only for pages from a server; choose or drop pictures instead.`;
  }
});

document.getElementById("shoot").addEventListener("click", () => {
  const canvas = el("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((picture) => take([new File([picture], `camera-${answers.length + 1}.png`, { type: "image/png" })]), "image/png");
});
