// The pixels that the model reads, computed as `vitkit predict` does: Pillow's resampling in its fixed-point arithmetic.

const MAX_PIXELS = 178_956_970; // as in data/decode.py
const BITS = 22; // of the fractions of Pillow's weights

const FILTERS = {
  bilinear: [1, (x) => (Math.abs(x) < 1 ? 1 - Math.abs(x) : 0)],
  bicubic: [2, (x) => {
    const a = -0.5;
    const z = Math.abs(x);
    if (z < 1) return ((a + 2) * z - (a + 3)) * z * z + 1;
    return z < 2 ? (((z - 5) * z + 8) * z - 4) * a : 0;
  }],
  lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

function sinc(x) {
  return x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);
}

/** Rounds halves to the nearest even number, as Python does. */
function roundEven(x) {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 ? low + 1 : low;
}

/** The input of the model (C x height x width, float32) from a picture {width, height, data: RGBA}. */
function prepare(picture, preprocess, isJpeg = false) {
  if (picture.width * picture.height > MAX_PIXELS) throw new Error(`it has ${picture.width} x ${picture.height} pixels, more than the limit of ${MAX_PIXELS.toLocaleString("en")}`);
  return normalise(fit(isJpeg ? reduced(picture, preprocess) : picture, preprocess), preprocess);
}

/** Halves a large JPEG up to three times, as its decoder does when a small picture is enough: by means of blocks. */
function reduced(picture, preprocess) {
  const [h, w] = preprocess.size;
  const [fullH, fullW] = beforeCrop(preprocess);
  const short = preprocess.fit.endsWith("crop") ? Math.max(fullH, fullW) : Math.max(h, w);
  const least = Math.min(picture.width, picture.height);
  if (least < 4 * short) return picture;
  const scale = (2 * short) / least;
  const most = Math.min(Math.floor(picture.width / Math.ceil(picture.width * scale)), Math.floor(picture.height / Math.ceil(picture.height * scale)));
  const step = [8, 4, 2, 1].find((own) => most >= own) ?? 1;
  return step === 1 ? picture : means(picture, step);
}

function means({ width, height, data }, step) {
  const [w, h] = [Math.ceil(width / step), Math.ceil(height / step)];
  const small = new Uint8ClampedArray(w * h * 4);
  for (let y = 0; y < h; y += 1) {
    const bottom = Math.min(height, (y + 1) * step);
    for (let x = 0; x < w; x += 1) {
      const right = Math.min(width, (x + 1) * step);
      let [r, g, b] = [0, 0, 0];
      for (let row = y * step; row < bottom; row += 1) {
        for (let at = 4 * (row * width + x * step), end = 4 * (row * width + right); at < end; at += 4) {
          r += data[at];
          g += data[at + 1];
          b += data[at + 2];
        }
      }
      const count = (bottom - y * step) * (right - x * step);
      small.set([r / count, g / count, b / count, 255], 4 * (y * w + x));
    }
  }
  return { width: w, height: h, data: small };
}

/** The part of the picture that the model sees, at the model's size; see `Preprocess.resize`. */
function fit(picture, preprocess) {
  const [h, w] = preprocess.size;
  const { fullH, fullW, top, left } = placement(picture.width, picture.height, preprocess);
  const whole = [0, 0, picture.width, picture.height];
  if (preprocess.fit === "pad") {
    const mean = [0, 1, 2].map((i) => roundEven(255 * preprocess.mean[i % preprocess.mean.length]));
    return cut(resample(picture, fullW, fullH, whole, preprocess), left, top, w, h, mean);
  }
  if (fullH * fullW > MAX_PIXELS) {
    const [x, y] = [picture.width / fullW, picture.height / fullH];
    const box = [left * x, top * y, (left + w) * x, (top + h) * y].map(Math.fround);
    return resample(picture, w, h, box, preprocess);
  }
  return cut(resample(picture, fullW, fullH, whole, preprocess), left, top, w, h, [0, 0, 0]);
}

function beforeCrop({ size, crop_pct: share }) {
  return size.map((side) => Math.floor(side / share + 1e-6));
}

function placement(width, height, preprocess) {
  const [h, w] = preprocess.size;
  if (preprocess.fit === "squash") return { fullH: h, fullW: w, top: 0, left: 0 };
  if (preprocess.fit === "pad") {
    const scale = Math.min(h / height, w / width);
    const [fullH, fullW] = [Math.max(1, roundEven(height * scale)), Math.max(1, roundEven(width * scale))];
    return { fullH, fullW, top: -Math.floor((h - fullH) / 2), left: -Math.floor((w - fullW) / 2) };
  }
  let [fullH, fullW] = beforeCrop(preprocess);
  if (preprocess.fit === "crop" && fullH * width <= fullW * height) fullH = Math.floor((fullW * height) / width);
  else if (preprocess.fit === "crop") fullW = Math.floor((fullH * width) / height);
  const margin = (both) => (preprocess.floor_crop ? Math.floor(both / 2) : roundEven(both / 2));
  return { fullH, fullW, top: margin(fullH - h), left: margin(fullW - w) };
}

/** A window of a picture; what lies outside the picture has the colour `ground`. */
function cut({ width, height, data }, left, top, w, h, ground) {
  const made = new Uint8ClampedArray(w * h * 4);
  for (let y = 0; y < h; y += 1) {
    for (let x = 0; x < w; x += 1) {
      const [column, row, to] = [x + left, y + top, 4 * (y * w + x)];
      const isInside = column >= 0 && column < width && row >= 0 && row < height;
      const from = 4 * (row * width + column);
      for (let c = 0; c < 3; c += 1) made[to + c] = isInside ? data[from + c] : ground[c];
      made[to + 3] = 255;
    }
  }
  return { width: w, height: h, data: made };
}

/**
 * Pillow's `Image.resize`: the rows and the columns, one after the other, each rounded to 8 bits. Earlier versions of
 * Pillow always begin with the rows; later ones (`columns_first`) with the columns if these shrink by far more pixels.
 */
function resample(picture, width, height, box, { interpolation, columns_first: mayTurn }) {
  if (interpolation === "nearest") return nearest(picture, width, height, box);
  const across = (own) => (width === own.width && box[0] === 0 && box[2] === width ? own : along(own, weights(own.width, box[0], box[2], width, interpolation), width, true));
  const down = (own) => (height === own.height && box[1] === 0 && box[3] === height ? own : along(own, weights(own.height, box[1], box[3], height, interpolation), height, false));
  const lost = [picture.width - width, picture.height - height];
  return mayTurn && lost[1] > 0 && lost[1] > 2 * lost[0] ? across(down(picture)) : down(across(picture));
}

function weights(inside, from, to, outside, interpolation) {
  const [reach, filter] = FILTERS[interpolation];
  const scale = Math.fround(to - from) / outside;
  const wide = Math.max(scale, 1);
  const support = reach * wide;
  return Array.from({ length: outside }, (_, i) => {
    const centre = from + (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(inside, Math.trunc(centre + support + 0.5));
    const exact = [];
    for (let x = first; x < last; x += 1) exact.push(filter((x - centre + 0.5) * (1 / wide)));
    const sum = exact.reduce((a, b) => a + b, 0);
    const fixed = exact.map((own) => {
      const scaled = (sum === 0 ? own : own / sum) * (1 << BITS);
      return Math.trunc(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    });
    return [first, Int32Array.from(fixed)];
  });
}

function along({ width, height, data }, table, size, isAcross) {
  const [w, h] = isAcross ? [size, height] : [width, size];
  const made = new Uint8ClampedArray(w * h * 4);
  const step = isAcross ? 4 : 4 * width;
  for (let y = 0; y < h; y += 1) {
    for (let x = 0; x < w; x += 1) {
      const [first, own] = table[isAcross ? x : y];
      let at = isAcross ? 4 * (y * width + first) : 4 * (first * width + x);
      let [r, g, b] = [1 << (BITS - 1), 1 << (BITS - 1), 1 << (BITS - 1)];
      for (let k = 0; k < own.length; k += 1, at += step) {
        r += data[at] * own[k];
        g += data[at + 1] * own[k];
        b += data[at + 2] * own[k];
      }
      const to = 4 * (y * w + x);
      made[to] = r >> BITS; // the array clips to 0 and 255
      made[to + 1] = g >> BITS;
      made[to + 2] = b >> BITS;
      made[to + 3] = 255;
    }
  }
  return { width: w, height: h, data: made };
}

function nearest({ width, data }, w, h, box) {
  const places = (from, to, size) => {
    const step = (to - from) / size;
    const found = new Int32Array(size);
    for (let i = 0, at = from + step * 0.5; i < size; i += 1, at += step) found[i] = Math.trunc(at);
    return found;
  };
  const [columns, rows] = [places(box[0], box[2], w), places(box[1], box[3], h)];
  const made = new Uint8ClampedArray(w * h * 4);
  for (let y = 0; y < h; y += 1) {
    for (let x = 0; x < w; x += 1) {
      const from = 4 * (rows[y] * width + columns[x]);
      made.set(data.subarray(from, from + 4), 4 * (y * w + x));
    }
  }
  return { width: w, height: h, data: made };
}

/** (pixel / 255 - mean) / std in float32; for one channel, of the grey value. */
function normalise({ width, height, data }, { mean, std }) {
  const [size, channels] = [width * height, mean.length];
  const tables = mean.map((own, c) => Float32Array.from({ length: 256 }, (_, value) => {
    const share = Math.fround(value / 255);
    return Math.fround(Math.fround(share - Math.fround(own)) / Math.fround(std[c]));
  }));
  const made = new Float32Array(channels * size);
  for (let i = 0; i < size; i += 1) {
    const at = 4 * i;
    if (channels === 1) made[i] = tables[0][(data[at] * 19595 + data[at + 1] * 38470 + data[at + 2] * 7471 + 0x8000) >> 16];
    else for (let c = 0; c < 3; c += 1) made[c * size + i] = tables[c][data[at + c]];
  }
  return made;
}
