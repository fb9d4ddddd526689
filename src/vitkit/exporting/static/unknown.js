// How familiar a picture is to the model, as `vitkit predict` computes it (inference/unknown.py).

const ROWS = { 2: halves, 4: (bytes) => new Float32Array(bytes), 8: (bytes) => new Float64Array(bytes) };

/** A score from the page's data, in which arrays are base64 with the number of bytes of a value. */
function opened({ parts, known }) {
  const array = ({ bytes, size }) => ROWS[size](Uint8Array.from(atob(bytes), (character) => character.charCodeAt(0)).buffer);
  const all = array(known);
  const images = all.length / parts.length;
  return {
    parts: parts.map(({ points, whitening, ...part }, i) => ({
      ...part, points: points && array(points), whitening: whitening && array(whitening), known: all.subarray(i * images, (i + 1) * images),
    })),
  };
}

/** Half-precision numbers, which not every browser reads. */
function halves(bytes) {
  return Float32Array.from(new Uint16Array(bytes), (bits) => {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  });
}

/** The part of the known images that look no more familiar: `p_values` of one picture. */
function familiarity({ parts }, logits, features) {
  const images = parts[0].known.length;
  const scores = parts.map((part) => SCORES[part.name](part, logits, features));
  const least = new Float64Array(images).fill(Infinity);
  let tail = Infinity;
  parts.forEach(({ known, weight }, i) => {
    const ordered = Float64Array.from(known).sort();
    const above = known.reduce((sum, own) => sum + (own >= scores[i]), 0);
    known.forEach((own, j) => { least[j] = Math.min(least[j], (images - before(ordered, own) + (scores[i] >= own)) / weight); });
    tail = Math.min(tail, (1 + above) / weight);
  });
  return (1 + least.reduce((sum, own) => sum + (own <= tail), 0)) / (images + 1);
}

/** The number of values in an ordered array that are smaller. */
function before(ordered, value) {
  let [low, high] = [0, ordered.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ordered[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

const SCORES = {
  energy: (part, logits) => {
    const most = Math.max(...logits);
    return -(most + Math.log(logits.reduce((sum, own) => sum + Math.exp(own - most), 0)));
  },
  neighbours: ({ points, nearest }, logits, features) => {
    const length = Math.max(Math.hypot(...features), 1e-12);
    return distances(points, Float64Array.from(features, (own) => own / length)).sort()[nearest - 1];
  },
  mahalanobis: ({ points, whitening }, logits, features) => {
    const D = features.length;
    const x = new Float64Array(D);
    features.forEach((own, row) => { for (let i = 0; i < D; i += 1) x[i] += own * whitening[row * D + i]; });
    return distances(points, x).sort()[0];
  },
};

/** The squared distances of a vector to points, which stand one after the other. */
function distances(points, x) {
  const D = x.length;
  return Float64Array.from({ length: points.length / D }, (_, row) => {
    let sum = 0;
    for (let i = 0; i < D; i += 1) sum += (x[i] - points[row * D + i]) ** 2;
    return sum;
  });
}
