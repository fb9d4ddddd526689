"""Classify photographs with model.onnx: python predict.py PHOTOS [-o answers.csv]

It needs onnxruntime, numpy and pillow, and no network. Pictures are decoded and resized as `vitkit predict` does.
"""

import argparse
import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
MOST_PIXELS = 178_956_970
Card = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", nargs="+", type=Path, help="photographs, or folders of them")
    parser.add_argument("-o", "--out", type=Path, help="write a .csv file instead of printing the answers")
    parser.add_argument("--model", type=Path, default=Path(__file__).with_name("model.onnx"))
    arguments = parser.parse_args()
    session = onnxruntime.InferenceSession(arguments.model, providers=["CPUExecutionProvider"])
    card = json.loads(session.get_modelmeta().custom_metadata_map["vitkit"])
    rows = (row(session, card, path) for path in found(arguments.photos))
    if arguments.out is None:
        for name, label, confidence, error in rows:
            print(f"{name}: {error}" if error else f"{name}: {label or 'none of the classes'} ({confidence:.1%})")
        return
    with arguments.out.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "confidence", "error"])
        for name, label, confidence, error in rows:
            shown = "" if error else f"{confidence:.6f}"
            writer.writerow([harmless(str(name)), harmless(label), shown, harmless(error)])
    print(arguments.out)


def found(places: list[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            yield from sorted(path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES)
        else:
            yield place


def row(session: Any, card: Card, path: Path) -> tuple[Path, str, float, str]:
    """Return the path, the label, its confidence, and the reason if the picture cannot be read."""
    try:
        image = decode(path, card["preprocess"])
    except Exception as error:  # a damaged file may raise anything
        return path, "", math.nan, f"cannot be read: {error}"
    pixels = normalise(resize(image, card["preprocess"]), card["preprocess"])
    (logits,) = session.run(["logits"], {"images": pixels[None]})
    label, confidence = decide(probabilities(logits[0], card), card)
    return path, label, confidence, ""


def decide(p: Any, card: Card) -> tuple[str, float]:
    """Return the label and its confidence; the labels of a model with several classes a picture are joined by `;`."""
    if "thresholds" not in card:
        return card["classes"][p.argmax()], p.max()
    named = np.flatnonzero(p >= np.array(card["thresholds"]))
    return ";".join(card["classes"][i] for i in named), p[named].min() if len(named) else 1 - p.max()


def probabilities(logits: Any, card: Card) -> Any:
    scaled = (logits / np.float32(card["temperature"])).astype(np.float64)
    if "thresholds" in card:
        return np.exp(-np.logaddexp(0, -scaled))
    powers = np.exp(scaled - scaled.max())
    return powers / powers.sum()


def decode(path: Path, preprocess: Card) -> Image.Image:
    """Return a picture upright, in RGB, on white."""
    with Image.open(path) as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"it has more than {MOST_PIXELS:,} pixels")
        short = max(before_crop(preprocess) if preprocess["fit"].endswith("crop") else preprocess["size"])
        if image.format in ("JPEG", "MPO") and min(image.size) >= 4 * short:
            scale = 2 * short / min(image.size)
            image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
        if image.mode.startswith(("I", "F")):
            raise ValueError("it has more than 8 bits a colour")
        upright = ImageOps.exif_transpose(image)
    if upright.has_transparency_data:
        rgba = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return upright.convert("RGB")


def before_crop(preprocess: Card) -> list[int]:
    return [math.floor(side / preprocess["crop_pct"] + 1e-6) for side in preprocess["size"]]


def resize(image: Image.Image, preprocess: Card) -> Image.Image:
    """Return the part of the picture that the model sees, at the model's size."""
    (h, w), fit = preprocess["size"], preprocess["fit"]
    filter_ = Image.Resampling[preprocess["interpolation"].upper()]
    if fit == "squash":
        return image.resize((w, h), filter_)
    if fit == "pad":
        scale = min(h / image.height, w / image.width)
        full_h, full_w = max(1, round(image.height * scale)), max(1, round(image.width * scale))
        canvas = Image.new("RGB", (w, h), tuple(round(255 * value) for value in (preprocess["mean"] * 3)[:3]))
        canvas.paste(image.resize((full_w, full_h), filter_), ((w - full_w) // 2, (h - full_h) // 2))
        return canvas
    full_h, full_w = before_crop(preprocess)
    if fit == "crop" and full_h * image.width <= full_w * image.height:
        full_h = int(full_w * image.height / image.width)
    elif fit == "crop":
        full_w = int(full_h * image.width / image.height)
    top, left = (both // 2 if preprocess.get("floor_crop") else round(both / 2) for both in (full_h - h, full_w - w))
    if full_h * full_w > MOST_PIXELS:  # a very long picture: only the part that is kept
        x, y = image.width / full_w, image.height / full_h
        return image.resize((w, h), filter_, (left * x, top * y, (left + w) * x, (top + h) * y))
    return image.resize((full_w, full_h), filter_).crop((left, top, left + w, top + h))


def normalise(image: Image.Image, preprocess: Card) -> Any:
    """Return (C, height, width) float32: (pixel / 255 - mean) / std."""
    mean, std = (np.array(preprocess[name], np.float32) for name in ("mean", "std"))
    if len(mean) == 1:
        image = image.convert("L")
    pixels = np.asarray(image, np.float32).reshape(image.height, image.width, len(mean)) / np.float32(255)
    return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1))


def harmless(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


if __name__ == "__main__":
    main()
