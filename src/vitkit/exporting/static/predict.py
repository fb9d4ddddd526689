"""Classify photographs with model.onnx: python predict.py PHOTOS [-o answers.csv]

It needs onnxruntime, numpy, pillow and pillow-heif, and no network. Photographs are found, decoded and resized as
`vitkit predict` does: file_names.py and picture.py beside this script are parts of vitkit.
"""

import argparse
import base64
import csv
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from file_names import is_passed_over, why_ignored  # type: ignore[import-not-found]
from picture import MAX_PIXELS, picture_in, why_unreadable  # type: ignore[import-not-found]
from PIL import Image

Card = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", nargs="+", type=Path, help="photographs, or folders of them")
    parser.add_argument("-o", "--out", type=Path, help="write a .csv file instead of printing the answers")
    parser.add_argument(
        "--unknown", type=float, help="label ? what looks less familiar than all but this part (0 to 1)"
    )
    parser.add_argument("--model", type=Path, default=Path(__file__).with_name("model.onnx"))
    arguments = parser.parse_args()
    session = onnxruntime.InferenceSession(arguments.model, providers=["CPUExecutionProvider"])
    card = json.loads(session.get_modelmeta().custom_metadata_map["vitkit"])
    score = unknown_score(card)
    if arguments.unknown is not None and score is None:
        parser.error("--unknown: this model has no score for images of unknown things")
    level = arguments.unknown
    answers = (answer(session, card, score, level, path) for path in photographs(arguments.photos))
    if arguments.out is None:
        for each in answers:
            if each.error:
                print(f"{each.path}: {each.error}")
                continue
            familiar = "" if score is None else f", familiar {each.familiar:.3f}"
            print(f"{each.path}: {each.label or 'none of the classes'} ({each.confidence:.1%}{familiar})")
        return
    with arguments.out.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)  # spreadsheets may also divide cells at semicolons
        columns = ["path", "label", "confidence", "error"]
        if score is not None:
            columns.append("familiar")
        writer.writerow(columns)
        for each in answers:
            confidence = "" if each.error else f"{each.confidence:.6f}"
            cells = [harmless(str(each.path)), harmless(each.label), confidence, harmless(each.error)]
            if score is not None:
                cells.append("" if each.error else f"{each.familiar:.6f}")
            writer.writerow(cells)
    print(arguments.out)


def photographs(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        left_out: Counter[str] = Counter()
        for folder, folders, files in os.walk(path):
            left_out.update(f"folder {name}" for name in folders if is_passed_over(name))
            folders[:] = sorted(name for name in folders if not is_passed_over(name))
            for name in sorted(files):
                reason = why_ignored(name)
                if reason is None:
                    yield Path(folder, name)
                else:
                    left_out[reason] += 1
        for reason, count in left_out.items():
            print(f"note: left out of {path}: {reason} ({count})", file=sys.stderr)


class Answer(NamedTuple):
    path: Path
    label: str = ""
    confidence: float = math.nan
    familiar: float = math.nan
    error: str = ""  # why the photograph cannot be read; "" if it can


def answer(session: Any, card: Card, score: Any, level: float | None, path: Path) -> Answer:
    """Classify a photograph; its label is ? if its familiarity is at most the level."""
    preprocess = card["preprocess"]
    try:
        short_side = max(before_crop(preprocess) if preprocess["fit"].endswith("crop") else preprocess["size"])
        picture = picture_in(str(path), short_side)
    except Exception as error:  # a damaged file may raise anything
        return Answer(path, error=f"cannot be read: {why_unreadable(str(path), error)}")
    if picture.doubt:
        print(f"note: {path} is possibly not read as meant: {picture.doubt}", file=sys.stderr)
    pixels = normalise(resize(picture.image, preprocess), preprocess)
    outputs = session.run(["logits"] if score is None else ["logits", "features"], {"images": pixels[None]})
    label, confidence = decide(probabilities(outputs[0][0], card), card)
    if score is None:
        return Answer(path, label, confidence)
    familiar = familiarity(score, outputs[1][0].astype(np.float64))
    if level is not None and familiar <= level:
        label = "?"
    return Answer(path, label, confidence, familiar)


def decide(p: Any, card: Card) -> tuple[str, float]:
    """Return the label and its confidence; a multi-label model joins all predicted classes by `;`."""
    if "thresholds" not in card:
        return card["classes"][p.argmax()], p.max()
    named = np.flatnonzero(p >= np.array(card["thresholds"]))
    if not len(named):
        return "", 1 - p.max()
    return ";".join(card["classes"][i] for i in named), p[named].min()


def probabilities(logits: Any, card: Card) -> Any:
    scaled = (logits / np.float32(card["temperature"])).astype(np.float64)
    if "thresholds" in card:
        return np.exp(-np.logaddexp(0, -scaled))
    powers = np.exp(scaled - scaled.max())
    return powers / powers.sum()


# The familiarity of a picture: the fraction of known pictures that look no more familiar (vitkit predict --unknown).


def unknown_score(card: Card) -> Any:
    """Return the points, the number of neighbours and the known scores of the score for unknown images, or None.

    The card contains them as a .safetensors file in base64.
    """
    if not card.get("features"):
        return None
    data = base64.b64decode(card["trust"])
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    about = json.loads(header.pop("__metadata__")["trust"])["unknown"]
    dtypes = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4"}
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        array = np.frombuffer(data[start + first : start + last], dtypes[entry["dtype"]]).reshape(entry["shape"])
        arrays[name] = array.astype(np.float64)
    points = arrays["unknown.neighbours.points"]
    nearest = max(1, min(10, len(points) // 10))  # cards of early versions do not contain it
    if "nearest" in about:
        nearest = about["nearest"]["neighbours"]
    return points, nearest, arrays["unknown.known"].ravel()


def familiarity(score: Any, features: Any) -> float:
    """Return the familiarity of one picture."""
    points, nearest, known = score
    unit = features / max(np.linalg.norm(features), 1e-12)
    distances = np.sort(((points - unit) ** 2).sum(axis=1))
    at_least = (known >= distances[nearest - 1]).sum()
    return float((1 + at_least) / (len(known) + 1))


def before_crop(preprocess: Card) -> list[int]:
    return [math.floor(side / preprocess["crop_pct"] + 1e-6) for side in preprocess["size"]]


def resize(image: Image.Image, preprocess: Card) -> Image.Image:
    """Crop, pad or squash a picture to the model's input size."""
    h, w = preprocess["size"]
    fit = preprocess["fit"]
    filter_ = Image.Resampling[preprocess["interpolation"].upper()]
    if fit == "squash":
        return image.resize((w, h), filter_)
    if fit == "pad":
        scale = min(h / image.height, w / image.width)
        full_h = max(1, round(image.height * scale))
        full_w = max(1, round(image.width * scale))
        mean = (preprocess["mean"] * 3)[:3]  # a grey model has one value
        canvas = Image.new("RGB", (w, h), tuple(round(255 * value) for value in mean))
        canvas.paste(image.resize((full_w, full_h), filter_), ((w - full_w) // 2, (h - full_h) // 2))
        return canvas
    full_h, full_w = before_crop(preprocess)
    if fit == "crop":  # without distortion
        if full_h * image.width <= full_w * image.height:
            full_h = int(full_w * image.height / image.width)
        else:
            full_w = int(full_h * image.width / image.height)
    halved = math.floor if preprocess.get("floor_crop") else round
    top, left = halved((full_h - h) / 2), halved((full_w - w) / 2)
    if full_h * full_w > MAX_PIXELS:  # a very long picture: only the part that is kept
        x, y = image.width / full_w, image.height / full_h
        return image.resize((w, h), filter_, (left * x, top * y, (left + w) * x, (top + h) * y))
    return image.resize((full_w, full_h), filter_).crop((left, top, left + w, top + h))


def normalise(image: Image.Image, preprocess: Card) -> Any:
    """Compute (pixel / 255 - mean) / std, and return an array (C, height, width) in float32."""
    mean, std = (np.array(preprocess[name], np.float32) for name in ("mean", "std"))
    if len(mean) == 1:
        image = image.convert("L")
    pixels = np.asarray(image, np.float32).reshape(image.height, image.width, len(mean)) / np.float32(255)
    return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1))


def harmless(text: str) -> str:
    """Return the text, with a leading quote if a spreadsheet would interpret it as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


if __name__ == "__main__":
    main()
