// Runs in a worker of the page: decodes a picture, prepares its pixels and computes the probabilities of its classes.
// The runtime, whose exports are the object `ort`, pixels.js and unknown.js stand in front of it.

let session = null;
let about = null;
let score = null; // for images of unknown things, if the model has one

async function start({ model, wasm, card }) {
  about = card;
  score = card.unknown ? opened(card.unknown) : null;
  ort.env.wasm.numThreads = 1; // a page from a file may not share memory between threads
  ort.env.wasm.wasmBinary = wasm;
  ort.env.logLevel = "error";
  session = await ort.InferenceSession.create(new Uint8Array(model), { executionProviders: ["wasm"], logSeverityLevel: 3 });
  return {};
}

/** The probabilities of a picture, a file or a frame of the camera, and how familiar it is. */
async function answer({ file, frame }) {
  const input = prepare(frame ? pixels(frame) : await decode(file), about.preprocess, Boolean(file) && await isJpeg(file));
  const { size, mean } = about.preprocess;
  const { logits, features } = await session.run({ images: new ort.Tensor("float32", input, [1, mean.length, size[0], size[1]]) });
  const probabilities = about.thresholds ? sigmoid(logits.data) : softmax(logits.data);
  if (!probabilities.every(Number.isFinite)) throw new Error("the model gives no finite number for this picture");
  const familiar = score ? familiarity(score, Float64Array.from(features.data)) : null;
  return { probabilities, familiar };
}

/** Decodes a file without colour management, upright, as `vitkit predict` does. */
async function decode(file) {
  const options = { colorSpaceConversion: "none", imageOrientation: "from-image", premultiplyAlpha: "none" };
  try {
    return pixels(await createImageBitmap(file, options));
  } catch {
    throw new Error("this browser cannot read it as a picture; JPEG, PNG, WebP, GIF, BMP and AVIF are possible");
  }
}

/** RGBA of a bitmap on white ground. */
function pixels(bitmap) {
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height);
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, width, height);
  pen.drawImage(bitmap, 0, 0);
  bitmap.close();
  return pen.getImageData(0, 0, width, height);
}

async function isJpeg(file) {
  const [first, second] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  return first === 0xff && second === 0xd8;
}

function softmax(logits) {
  const scaled = Array.from(logits, (own) => Math.fround(own / Math.fround(about.temperature)));
  const most = Math.max(...scaled);
  const powers = scaled.map((own) => Math.exp(own - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((own) => own / sum);
}

function sigmoid(logits) {
  return Array.from(logits, (own) => 1 / (1 + Math.exp(-Math.fround(own / Math.fround(about.temperature)))));
}

let last = Promise.resolve();
onmessage = ({ data }) => {
  last = last.then(async () => {
    try {
      postMessage({ id: data.id, ...await (data.model ? start(data) : answer(data)) });
    } catch (error) {
      postMessage({ id: data.id, error: error.message || String(error) });
    }
  });
};
