// The page that a phone opens by the QR code: it sends photographs to the studio, and can do nothing else.

import { el } from "./dom.js";
import { uploadPlace } from "./upload.js";

const sent = document.getElementById("sent");
document.getElementById("place").append(uploadPlace((folder) => {
  sent.append(el("li", {}, `Sent to the folder ${folder.title}. The studio shows it.`));
}, true));
