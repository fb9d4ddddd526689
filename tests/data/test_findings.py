"""Each sentence says how many in right grammar, names them, and is said only where it is true."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitkit.data import MOST_CROPPED, MOST_LOST, Copies, Facts, ImageTable, Preprocess
from vitkit.data.doctor import examine as findings


def table_of(
    counts: dict[str, int], splits: tuple[str | None, ...] | None = None, endings: str = "png", **fields: object
) -> ImageTable:
    labels = tuple(label for label, count in enumerate(counts.values()) for _ in range(count))
    return ImageTable(
        name="made up",
        root=Path("/photos"),
        classes=tuple(counts),
        paths=tuple(f"{list(counts)[label]}/{i}.{endings}" for i, label in enumerate(labels)),
        labels=labels,
        splits=splits or (None,) * len(labels),
        **fields,
    )


def fact(width: int = 100, height: int = 100, form: str = "PNG", mode: str = "RGB", animated: bool = False) -> Facts:
    return Facts(b"x" * 32, None, form, mode, width, height, animated)


def told(found: object) -> list[str]:
    return list(map(str, found))  # type: ignore[call-overload]


# --- Files -----------------------------------------------------------------------------------------


def test_what_is_in_order_is_not_spoken_of() -> None:
    assert told(findings.check_files(table_of({"a": 2}), {})) == []
    assert told(findings.check_copies(table_of({"a": 6}), [])) == []
    assert told(findings.check_likeness("altered", 0)) == []
    assert told(findings.check_classes(table_of({"a": 10, "b": 100}))) == []
    assert told(findings.check_pictures(table_of({"a": 2}), [fact(), fact(mode="L")])) == []


def test_unreadable_files_are_named_up_to_five() -> None:
    reasons = {f"a/{i}.png": "truncated" for i in range(8)}
    assert told(findings.check_files(table_of({"a": 9}), {"a/0.png": "empty file"})) == [
        "warning: 1 of 9 images is unreadable and left out: a/0.png (empty file)"
    ]
    (line,) = told(findings.check_files(table_of({"a": 9}), reasons))
    assert line.startswith("warning: 8 of 9 images are unreadable and left out: a/0.png (truncated); a/1.png")
    assert line.endswith("; and 3 more")
    assert line.count("truncated") == 5


@pytest.mark.parametrize(
    ("ignored", "text"),
    [
        ({"hidden": 1}, "note: 1 other file is ignored: 1 hidden"),
        ({"not an image format": 3, "hidden": 1}, "note: 4 other files are ignored: 1 hidden, 3 not an image format"),
    ],
)
def test_ignored_files_are_counted_by_reason(ignored: dict[str, int], text: str) -> None:
    assert told(findings.check_files(table_of({"a": 2}, ignored=ignored), {})) == [text]


# --- Copies ----------------------------------------------------------------------------------------

SPLIT = ("train", "train", "val", "test", "train", "train")


def copies(*images: int, kind: str = "exact", leak: bool = False, conflict: bool = False) -> Copies:
    return Copies(images, kind, is_leak=leak, is_conflict=conflict)  # type: ignore[arg-type]


def test_leaks_count_what_is_held_out_and_name_two_images_of_different_splits() -> None:
    table = table_of({"a": 6}, SPLIT)
    assert told(findings.check_copies(table, [copies(0, 1, 2, kind="near", leak=True)])) == [
        "problem: 1 picture is in more than one split (1 val image), which inflates results: a/0.png = a/2.png (near)"
    ]
    (line,) = told(findings.check_copies(table, [copies(0, 2, leak=True), copies(1, 3, 4, kind="mirrored", leak=True)]))
    assert line == (
        "problem: 2 pictures are in more than one split (1 test image and 1 val image), which inflates results: "
        "a/0.png = a/2.png; a/1.png = a/3.png (mirrored)"
    )


def test_conflicts_come_first_and_name_two_images_of_different_classes() -> None:
    table = table_of({"a": 3, "b": 3}, SPLIT)
    lines = told(findings.check_copies(table, [copies(0, 1, 2, 5, leak=True, conflict=True)]))
    assert lines == [
        "problem: 1 picture is in more than one class, and one label at most is right: a/0.png = b/5.png",
        "problem: 1 picture is in more than one split (1 val image), which inflates results: a/0.png = a/2.png",
    ]


def test_harmless_copies_are_counted_by_kind() -> None:
    own = [copies(0, 1), copies(2, 3, kind="near"), copies(4, 5, kind="near")]
    assert told(findings.check_copies(table_of({"a": 6}), own)) == [
        "note: 3 pictures are in the data more than once (2 near, 1 exact); copies are kept in one split"
    ]
    assert told(findings.check_copies(table_of({"a": 6}, ("train",) * 6), own[:1])) == [
        "note: 1 picture is in the data more than once (1 exact)"
    ]


def test_likeness_is_warned_of_and_mirror_images_noted() -> None:
    (warning,) = told(findings.check_likeness("exact", 0))
    assert warning.startswith("warning: the images are too alike")
    assert told(findings.check_likeness("altered", 1)) == [
        "note: 1 image is the mirror image of one in another class; if left and right matter, train with --no-hflip"
    ]
    assert len(told(findings.check_likeness("exact", 2))) == 2


# --- Classes and splits ----------------------------------------------------------------------------


def test_small_empty_and_uneven_classes_are_named() -> None:
    assert told(findings.check_classes(table_of({"a": 9, "b": 10}))) == [
        "warning: 1 class has fewer than 10 images: a (9)"
    ]
    lines = told(findings.check_classes(table_of({"a": 9, "b": 101, "c": 10}, empty=("none",)), lost=["broken"]))
    assert lines == [
        "warning: 2 class folders have no readable image and are left out: broken, none",
        "warning: 1 class has fewer than 10 images: a (9)",
        "note: the classes are uneven, 101 images of 'b' and 9 of 'a'; look at the balanced accuracy too",
    ]
    (line, *_) = told(findings.check_classes(table_of({"a": 10, "b": 10}, empty=("none",))))
    assert line == "warning: 1 class folder has no readable image and is left out: none"
    (line, *_) = told(findings.check_classes(table_of({f"class {i}": 2 for i in range(7)})))
    assert line.startswith("warning: 7 classes have fewer than 10 images: class 0 (2), ")
    assert line.endswith(", and 2 more")


def test_a_class_that_a_split_lacks_is_named_with_what_follows() -> None:
    splits = ("train", "train", "train", "val", "test", "val")
    lines = told(findings.check_splits(table_of({"a": 1, "b": 4, "c": 1}, splits)))
    assert lines == [
        "warning: class 'a' has 1 image, none of them in val or test",
        "warning: class 'c' has 1 image, none of them in train or test, so the model cannot learn it",
    ]
    assert told(findings.check_splits(table_of({"a": 2, "b": 2}))) == [], "nothing is split yet"
    assert told(findings.check_splits(table_of({"a": 2, "b": 1}, ("train", "val", "train")))) == [
        "warning: class 'b' has 1 image, none of them in val"
    ]


def test_many_classes_that_a_split_lacks_are_told_in_a_line_for_each_split() -> None:
    counts = {**{f"class {i}": 2 for i in range(30)}, "lone": 1}
    splits = (*("train", "test") * 30, "val")
    assert told(findings.check_splits(table_of(counts, splits))) == [
        (
            "warning: 30 classes have no image in val; the numbers of their images: "
            "class 0 (2), class 1 (2), class 2 (2), class 3 (2), class 4 (2), and 25 more"
        ),
        (
            "warning: 1 class has no image in train or test, so the model cannot learn them; the numbers of their "
            "images: lone (1)"
        ),
    ]


# --- Pictures --------------------------------------------------------------------------------------


def test_odd_modes_frames_and_names_are_noted() -> None:
    table = table_of({"a": 4})
    own = [fact(mode="CMYK", form="JPEG"), fact(mode="RGBA"), fact(mode="RGBA"), fact(form="GIF", animated=True)]
    assert told(findings.check_pictures(table, own)) == [
        "note: 3 images are neither RGB nor grey, and converted (transparency becomes white): 2 RGBA, 1 CMYK",
        "note: of 1 file with several frames, the first one is used",
        "note: 2 images are of another format than the name says, and read anyway: a/0.png, a/3.png",
    ]
    assert told(findings.check_pictures(table, [fact(), fact(), fact(mode="P"), fact()])) == [
        "note: 1 image is neither RGB nor grey, and converted (transparency becomes white): 1 P"
    ]


@pytest.mark.parametrize(
    ("ending", "form", "fits"),
    [
        *((ending, "JPEG", True) for ending in ("jpg", "JPEG", "jpe", "jfif", "mpo")),
        *(("jpg", "MPO", True), ("tif", "TIFF", True), ("tiff", "TIFF", True), ("png", "PNG", True)),
        *(("heic", "HEIF", True), ("pgm", "PPM", True), ("webp", "WEBP", True), ("avif", "AVIF", True)),
        *(("gif", "GIF", True), ("bmp", "BMP", True), ("dat", "PNG", True), ("", "JPEG", True)),
        *(("jpg", "PNG", False), ("png", "JPEG", False), ("gif", "WEBP", False), ("tif", "BMP", False)),
    ],
)
def test_a_name_fits_its_format(ending: str, form: str, fits: bool) -> None:
    assert (told(findings.check_pictures(table_of({"a": 1}, endings=ending), [fact(form=form)])) == []) == fits


# --- What the model sees ---------------------------------------------------------------------------


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
@settings(max_examples=150)
def test_what_is_kept_is_what_the_models_pixels_show(
    sides: tuple[int, int], size: tuple[int, int], fit: str, crop_pct: float, floor_crop: bool
) -> None:
    preprocess = Preprocess(
        size=size, fit=fit, crop_pct=crop_pct, mean=(0, 0, 0), interpolation="bilinear", floor_crop=floor_crop
    )
    assert preprocess.kept(*sides) == pytest.approx(simulated(preprocess, *sides), abs=0.04)
    assert 0 < preprocess.kept(*sides) <= 1


@pytest.mark.parametrize("fit", ["pad", "squash"])
def test_fits_that_show_the_whole_picture_lose_nothing(fit: str) -> None:
    preprocess = Preprocess(size=(32, 32), fit=fit)
    assert preprocess.kept(1, 4000) == 1.0
    assert told(findings.check_crop([fact(1, 4000)] * 10, preprocess)) == []


@pytest.mark.parametrize(
    ("fit", "shape", "crop_pct"),
    [
        *(("crop", (100, 100), 0.6), ("crop", (150, 100), 0.875), ("crop", (100, 250), 1.0), ("crop", (400, 100), 0.6)),
        *(("squash_crop", (100, 250), 0.6), ("squash_crop", (400, 100), 0.875), ("squash_crop", (150, 100), 1.0)),
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


def test_a_few_long_pictures_are_not_warned_of() -> None:
    preprocess = Preprocess(size=(64, 64), crop_pct=1.0)
    for long in (2, 3):
        lines = told(findings.check_crop([fact(300, 100)] * long + [fact()] * (10 - long), preprocess))
        assert bool(lines) == (long > MOST_CROPPED * 10)
