"""What is known of published weights beside where they lie; and those of timm that vitkit's own catalog has not.

The table is written by `benchmarks/catalog.py` from the sources that it names. An empty cell: no source is at hand.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitkit.data.preprocess import Preprocess
from vitkit.weights.entry import Classes, Entry

FILE = Path(__file__).with_name("published.csv")
COLUMNS = (
    *("name", "hub", "url", "family", "data", "licence", "gated"),
    *("height", "width", "fit", "crop_pct", "interpolation", "mean", "std", "classes"),
    *("parameters", "gmacs", "top1", "measured", "source"),
)
_CLASSES: dict[str, Classes] = {"1000": "imagenet1k", "21843": "imagenet21k", "0": "none"}


@dataclass(frozen=True)
class Facts:
    """What a user chooses weights by.

    Attributes:
        family: such as CLIP, as the name says.
        data: what they were trained on, first to last, as the name says.
        gated: `yes` where an account and its consent are asked for, `no`; empty where no source is at hand.
        parameters: their number; None where it was not counted.
        gmacs: 10^9 multiply-accumulates for an image; None where they were not counted.
        top1: published accuracy on ImageNet-1k, in percent; None where no source is at hand.
        measured: of which that is: `linear`, a head alone; `fine-tuned` after other data; `trained` on it alone.
        source: of `top1`.
    """

    family: str = ""
    data: str = ""
    gated: str = ""
    parameters: int | None = None
    gmacs: float | None = None
    top1: float | None = None
    measured: str = ""
    source: str = ""


@cache
def _rows() -> dict[str, dict[str, str]]:
    with FILE.open(newline="", encoding="utf-8") as text:
        return {row["name"]: row for row in csv.DictReader(text)}


def facts_of(name: str) -> Facts:
    """Of weights by their name; nothing of others."""
    row = _rows().get(name)
    if row is None:
        return Facts()
    numbers: dict[str, Any] = {
        column: kind(row[column]) if row[column] else None
        for column, kind in (("parameters", int), ("gmacs", float), ("top1", float))
    }
    return Facts(row["family"], row["data"], row["gated"], **numbers, measured=row["measured"], source=row["source"])


def tags() -> list[str]:
    """Names of timm's tags, `MODEL.TAG`, that vitkit's own catalog has not."""
    return [name for name, row in _rows().items() if row["hub"] or row["url"]]


def tagged(name: str) -> Entry | None:
    """The entry of a tag of timm's."""
    row = _rows().get(name)
    if row is None or not (row["hub"] or row["url"]):
        return None
    mean, std = (tuple(map(float, row[column].split())) for column in ("mean", "std"))
    return Entry(
        name=name,
        architecture=name.partition(".")[0],
        preprocess=Preprocess(
            size=(int(row["height"]), int(row["width"])),
            fit=row["fit"],  # type: ignore[arg-type]
            crop_pct=float(row["crop_pct"]),
            interpolation=row["interpolation"],  # type: ignore[arg-type]
            mean=mean,
            std=std,
        ),
        licence=row["licence"],
        paper="",
        url=row["url"] or None,
        hub=row["hub"] or None,
        classes=_CLASSES.get(row["classes"], "other"),
        top1=float(row["top1"]) if row["top1"] else None,
    )
