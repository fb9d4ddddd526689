"""Each sentence says how many in right grammar, names them, and is said only where it is true."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitkit.data import MOST_CROPPED, MOST_LOST, Copies, Facts, ImageTable, Preprocess
from vitkit.data.doctor import examine as findings


def table_of(counts: dict[str, int], splits: tuple[str | None, ...] | None = None, **fields: object) -> ImageTable:
    labels = tuple(label for label, count in enumerate(counts.values()) for _ in range(count))
    return ImageTable(
        name="made up",
        root=Path("/photos"),
        classes=tuple(counts),
        paths=tuple(f"{list(counts)[label]}/{i}.png" for i, label in enumerate(labels)),
        labels=labels,
        splits=splits or (None,) * len(labels),
        **fields,
    )


def fact(width: int = 100, height: int = 100, mode: str = "RGB", animated: bool = False) -> Facts:
    return Facts(b"x" * 32, None, "PNG", mode, width, height, animated)


def told(found: object) -> list[str]:
    return list(map(str, found))  # type: ignore[call-overload]


SPLIT = ("train", "train", "val", "test", "train", "train")


def copies(*images: int, kind: str = "exact", leak: bool = False, conflict: bool = False) -> Copies:
    return Copies(images, kind, is_leak=leak, is_conflict=conflict)  # type: ignore[arg-type]


SIX, SIX_SPLIT, TWO = table_of({"a": 6}), table_of({"a": 6}, SPLIT), table_of({"a": 3, "b": 3}, SPLIT)
LACKS = table_of({"a": 1, "b": 4, "c": 1}, ("train", "train", "train", "val", "test", "val"))
MANY = table_of({**{f"class {i}": 2 for i in range(30)}, "lone": 1}, (*("train", "test") * 30, "val"))
ODD = [fact(mode="CMYK"), fact(mode="RGBA"), fact(mode="RGBA"), fact(animated=True)]
UNREADABLE = {f"a/{i}.png": "truncated" for i in range(8)}


@pytest.mark.parametrize(
    ("found", "lines"),  # of each line its severity, and what it must say
    [
        (findings.check_search("altered", 0), []),
        (findings.check_classes(table_of({"a": 10, "b": 100})), []),
        (findings.check_splits(table_of({"a": 2, "b": 2})), []),  # nothing is split yet
        (
            findings.check_files(table_of({"a": 9}, ignored={"not an image format": 3, "hidden": 1}), UNREADABLE),
            [
                ("warning", "8 of 9 images are", "a/0.png (truncated)", "a/4.png", "and 3 more"),
                ("note", "4 other files"),
            ],
        ),
        # Leaks count what is held out, and name two images of different splits; conflicts two of different classes.
        (
            findings.check_copies(SIX_SPLIT, [copies(0, 2, leak=True), copies(1, 3, 4, kind="mirrored", leak=True)]),
            [("problem", "(1 test image and 1 val image)", "a/0.png = a/2.png; a/1.png = a/3.png (mirrored)")],
        ),
        (
            findings.check_copies(TWO, [copies(0, 1, 2, 5, leak=True, conflict=True)]),
            [
                ("problem", "more than one class", "a/0.png = b/5.png"),
                ("problem", "(1 val image)", "a/0.png = a/2.png"),
            ],
        ),
        (
            findings.check_copies(SIX, [copies(0, 1), copies(2, 3, kind="near"), copies(4, 5, kind="near")]),
            [("note", "3 pictures are", "(2 near, 1 exact)", "kept in one split")],
        ),
        (
            findings.check_search("exact", 1),
            [("warning", "too alike"), ("note", "1 image is the mirror", "--no-hflip")],
        ),
        (
            findings.check_classes(table_of({"a": 9, "b": 101, "c": 10}, empty=("none",)), unreadable=["broken"]),
            [
                ("warning", "2 class folders have", "broken, none"),
                ("warning", "a (9)"),
                ("note", "101", "'b'", "9 of 'a'"),
            ],
        ),
        (
            findings.check_splits(LACKS),
            [("warning", "'a' has 1 image", "val or test"), ("warning", "'c'", "train or test", "cannot learn it")],
        ),
        (
            findings.check_splits(MANY),
            [("warning", "30 classes have", "class 4 (2), and 25 more"), ("warning", "1 class has", "lone (1)")],
        ),
        (
            findings.check_pictures(table_of({"a": 4}), ODD),
            [("note", "3 images are", "2 RGBA, 1 CMYK"), ("note", "1 file")],
        ),
        (findings.check_pictures(table_of({"a": 1}), [replace(fact(), doubt="dark")]), [("warning", "a/0.png (dark)")]),
    ],
)
def test_findings_say_how_many_and_which(found: Iterable[findings.Finding], lines: list[tuple[str, ...]]) -> None:
    all_found = list(found)
    assert [finding.severity for finding in all_found] == [severity for severity, *_ in lines]
    for finding, (_, *said) in zip(all_found, lines, strict=True):
        assert [word for word in said if word not in finding.text] == [], finding.text


def simulated(preprocess: Preprocess, width: int, height: int) -> float:
    """The part of a picture that is seen: its pixels carry where they lie, and the model's pixels are asked.

    Red runs from left to right, green from top to bottom, and blue marks the picture against what is padded.
    """
    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    marked = np.stack([255 * x, 255 * y, np.full_like(x, 255)], axis=-1).round().astype(np.uint8)
    seen = np.asarray(preprocess.resize(Image.fromarray(marked))).astype(float)
    inside = seen[..., 2] > 127
    assert inside.any()
    extent = []
    for channel, axis in ((0, 0), (1, 1)):
        profile = np.ma.masked_array(seen[..., channel], ~inside).mean(axis=axis).compressed() / 255
        middle = slice(len(profile) // 4, max(len(profile) // 4 + 2, 3 * len(profile) // 4))
        steps = np.diff(profile[middle])
        extent.append(min(1.0, float(steps.mean()) * len(profile)))  # the scale there, times the pixels
    return extent[0] * extent[1]


@given(
    sides=st.tuples(st.integers(64, 500), st.integers(64, 500)),
    size=st.tuples(st.sampled_from([32, 48, 64]), st.sampled_from([32, 48, 64])),
    fit=st.sampled_from(["crop", "pad", "squash", "squash_crop"]),
    crop_pct=st.sampled_from([0.5, 0.7, 0.875, 0.9, 1.0]),
    floor_crop=st.booleans(),
)
@settings(max_examples=60)
def test_what_is_kept_is_what_the_models_pixels_show(
    sides: tuple[int, int], size: tuple[int, int], fit: str, crop_pct: float, floor_crop: bool
) -> None:
    preprocess = Preprocess(
        size=size, fit=fit, crop_pct=crop_pct, mean=(0, 0, 0), interpolation="bilinear", floor_crop=floor_crop
    )
    assert preprocess.kept(*sides) == pytest.approx(simulated(preprocess, *sides), abs=0.04)
    assert 0 < preprocess.kept(*sides) <= 1


@pytest.mark.parametrize(
    ("fit", "shape", "crop_pct"),
    [
        *(("crop", (100, 100), 0.6), ("crop", (150, 100), 0.875), ("crop", (100, 250), 1.0)),
        *(("squash_crop", (100, 250), 0.6), ("squash_crop", (150, 100), 1.0)),
    ],
)
def test_the_crop_is_warned_of_if_it_loses_more_than_half(fit: str, shape: tuple[int, int], crop_pct: float) -> None:
    preprocess = Preprocess(size=(64, 64), fit=fit, crop_pct=crop_pct, mean=(0, 0, 0), interpolation="bilinear")
    lost = 1 - simulated(preprocess, *shape)
    lines = told(findings.check_crop([fact(*shape)] * 7, preprocess))
    assert abs(lost - MOST_LOST) > 0.005, "the example is too close to the limit to tell"
    assert bool(lines) == (lost > MOST_LOST)
    if lines:
        assert "of 7 of 7 images" in lines[0]
        assert int(lines[0].split("(")[1].split(" %")[0]) == pytest.approx(100 * lost, abs=3)


def test_a_few_long_pictures_or_fits_that_show_them_whole_are_not_warned_of() -> None:
    for long in (2, 3):
        facts = [fact(300, 100)] * long + [fact()] * (10 - long)
        lines = list(findings.check_crop(facts, Preprocess(size=(64, 64), crop_pct=1.0)))
        assert bool(lines) == (long > MOST_CROPPED * 10)
        assert not any(
            list(findings.check_crop(facts, Preprocess(size=(64, 64), fit=fit))) for fit in ("pad", "squash")
        )
