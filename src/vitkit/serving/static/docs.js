// The page of a server: classifies a picture with the first request of the list, and shows the list.

import { chip, el, percent, plural, shareBar, takeDrops, whole } from "./dom.js";

const [drop, picture, which, model, answer, known] = ["drop", "picture", "which", "model", "answer", "known"].map((id) => document.getElementById(id));
const NAMED = 12; // classes
let models = [];
let asked = 0;

const chosen = () => models[model.value] ?? { classes: [] };

function tellClasses() {
  const { classes } = chosen();
  const more = classes.length - NAMED;
  known.textContent = `It knows ${plural(classes.length, "class", "classes")}: ${classes.slice(0, NAMED).join(", ")}${more > 0 ? ` and ${whole(more)} more` : ""}.`;
}

/** What /predict says about the picture: its best class as a sentence, and a bar for each class it names. */
function told(row, classes) {
  if (row.error) return el("p", { class: "finding", "data-level": "problem" }, `It cannot be read: ${row.error}.`);
  const level = row.note ? "warning" : "note";
  const bars = (row.top ?? []).map(({ label, confidence }) => el("li", {}, el("span", {}, chip(label, classes.indexOf(label))), el("span", { class: "number" }, percent(confidence)), shareBar(confidence, classes.indexOf(label))));
  return el("div", {},
    el("div", { class: "panel verdict", "data-level": level }, el("span", { class: "figure" }, percent(row.confidence)),
      el("div", {}, el("p", { class: "sentence" }, row.label || "None of the classes"), el("p", { class: "soft small" }, row.note ? `Note: ${row.note}` : "The percentage is how sure the model is."))),
    el("ul", { class: "bars" }, bars));
}

async function take(file) {
  if (!file) return;
  asked += 1;
  const turn = asked;
  answer.replaceChildren(el("p", {}, "Waiting for the answer …"));
  const { name, version, classes } = chosen();
  const body = new FormData();
  body.append("image", file, file.name || "pasted picture");
  let shown;
  try {
    const response = await fetch(name === undefined ? "/predict" : `/predict?${new URLSearchParams({ model: name, version })}`, { method: "POST", body });
    const found = await response.json();
    shown = told(found.predictions ? found.predictions[0] : { error: found.error }, classes);
  } catch (error) {
    shown = told({ error: `the server does not answer (${error.message})` }, classes);
  }
  if (turn !== asked) return; // another picture was chosen meanwhile
  const image = el("img", { alt: file.name || "The picture", src: URL.createObjectURL(file) });
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  image.addEventListener("error", () => { URL.revokeObjectURL(image.src); image.remove(); }); // the server reads kinds of files that browsers do not
  answer.replaceChildren(el("div", { class: "answer" }, image, shown));
}

let last = null;
function bring(file) {
  last = file ?? last;
  take(last);
}
picture.addEventListener("change", () => { bring(picture.files[0]); picture.value = ""; });
model.addEventListener("change", () => { tellClasses(); bring(); });
takeDrops(drop, ({ files }) => bring(files[0]), document);
document.addEventListener("paste", (event) => { if (event.clipboardData?.files.length) bring(event.clipboardData.files[0]); });

document.getElementById("curl").textContent = `curl -F image=@photo.jpg ${window.location.origin}/predict`;
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#list", validatorUrl: null, deepLinking: true, defaultModelsExpandDepth: -1, syntaxHighlight: { activated: false } });
try {
  const found = await (await fetch("/models")).json();
  if (!found.models) throw new Error(found.error);
  ({ models } = found);
} catch (error) {
  known.textContent = `The models cannot be read: ${error.message}`;
}
model.append(...models.map(({ name, version }, value) => el("option", { value }, `${name} (${version})`)));
which.hidden = models.length < 2;
tellClasses();
