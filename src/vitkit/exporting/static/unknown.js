// How familiar a picture is to the model, as `vitkit predict` computes it (inference/unknown.py).

const ROWS = { 2: halves, 4: (bytes) => new Float32Array(bytes), 8: (bytes) => new Float64Array(bytes) };

/** A score from the page's data, in which arrays are base64 with the number of bytes of a value. */
function opened({ points, nearest, known }) {
  const array = ({ bytes, size }) => ROWS[size](Uint8Array.from(atob(bytes), (character) => character.charCodeAt(0)).buffer);
  return { points: array(points), nearest, known: array(known) };
}

/** Half-precision numbers, which not every browser reads. */
function halves(bytes) {
  return Float32Array.from(new Uint16Array(bytes), (bits) => {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  });
}

/** The part of the known images that look no more familiar: `p_values` of one picture. */
function familiarity({ points, nearest, known }, features) {
  const length = Math.max(Math.hypot(...features), 1e-12);
  const score = distances(points, Float64Array.from(features, (own) => own / length)).sort()[nearest - 1];
  return (1 + known.reduce((sum, own) => sum + (own >= score), 0)) / (known.length + 1);
}

/** The squared distances of a vector to points, which stand one after the other. */
function distances(points, x) {
  const D = x.length;
  return Float64Array.from({ length: points.length / D }, (_, row) => {
    let sum = 0;
    for (let i = 0; i < D; i += 1) sum += (x[i] - points[row * D + i]) ** 2;
    return sum;
  });
}
