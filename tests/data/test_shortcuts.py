"""Properties of files that tell the classes apart are named, and chance alone hardly ever is."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from vitkit.data import FactDatabase, Facts, FactTable, read_source, scan
from vitkit.data.doctor.examine import check_shortcuts, examine
from vitkit.data.doctor.shortcuts import CHANCE, find_shortcuts
from vitkit.data.table import UNLABELLED, ImageTable


def table_of(labels: Sequence[int], names: Sequence[str] = "abcdefghij") -> ImageTable:
    paths = tuple(f"{i}.png" for i in range(len(labels)))
    classes = tuple(names[: max(labels) + 1])
    return ImageTable("photos", Path("/photos"), classes, paths, tuple(labels), (None,) * len(labels))


def scene(rng: np.random.Generator, side: int = 64) -> Image.Image:
    coarse = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


Save = Callable[[Image.Image, int, Path], None]


def border(picture: Image.Image, label: int, file: Path) -> None:
    inner = ImageOps.expand(picture.resize((56, 56)), 4, ("red", "green", "navy")[label])
    inner.save(file.with_suffix(".jpg"), quality=80)


def bar(picture: Image.Image, label: int, file: Path) -> None:
    if label:
        picture.paste((230, 230, 40), (0, 58, 64, 64))
    picture.save(file.with_suffix(".png"))


def camera(picture: Image.Image, label: int, file: Path) -> None:
    exif = Image.Exif()
    exif[0x110] = f"Cam {label}"
    picture.save(file.with_suffix(".jpg"), exif=exif)


SHORTCUTS: dict[str, Save] = {
    "border": border,
    "border at one edge": bar,
    "camera": camera,
    "format": lambda picture, label, file: picture.save(file.with_suffix((".png", ".jpg", ".png")[label])),
    "JPEG quality": lambda picture, label, file: picture.save(file.with_suffix(".jpg"), quality=95 - 15 * label),
    "size": lambda picture, label, file: picture.resize((64 + 9 * label,) * 2).save(file.with_suffix(".png")),
    "colour mode": lambda picture, label, file: picture.convert("L" if label else "RGB").save(file.with_suffix(".png")),
}


@pytest.mark.parametrize("name", SHORTCUTS)
def test_what_tells_the_classes_apart_is_named(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(45):
        folder = tmp_path / "abc"[i % 3]
        folder.mkdir(exist_ok=True)
        SHORTCUTS[name](scene(rng), i % 3, folder / f"{i}.x")
    (finding,) = (each for each in examine(read_source(str(tmp_path))).findings if "guessed" in each.text)
    assert finding.severity == "problem"
    assert f"{name.split(' at ')[0]} (right for " in finding.text
    assert "the most frequent label is right for 33 %" in finding.text


def test_a_property_of_a_part_of_a_class_is_a_warning_and_a_faint_one_is_not_spoken_of() -> None:
    """Half of class b is PNG, or a tenth of it, and all other images are JPEG."""
    labels = [i % 2 for i in range(20_000)]
    half = [Facts(b"", None, "PNG" if i % 4 == 1 else "JPEG", "RGB", 9, 9) for i in range(200)]
    (finding,) = check_shortcuts(table_of(labels[:200]), half)
    assert finding.severity == "warning"
    assert "format (right for 75 %" in finding.text and "for 50 %" in finding.text
    faint = [Facts(b"", None, "PNG" if i % 20 == 1 else "JPEG", "RGB", 9, 9) for i in range(20_000)]
    assert find_shortcuts(table_of(labels), FactTable.of(faint)) == []


def test_images_without_a_label_are_left_out_and_those_of_several_classes_count_by_their_set() -> None:
    labels = tuple(i % 3 for i in range(90))
    facts = [Facts(b"", None, "PNG" if i % 3 == 2 else "JPEG", "RGB", 9, 9) for i in range(90)]
    assert find_shortcuts(table_of(labels, ("a", "b", UNLABELLED)), facts) == []
    assert find_shortcuts(table_of(labels), facts)
    several = replace(table_of(labels), classes=("a", "b"), sets=((0,), (1,), (0, 1)))
    (found,) = find_shortcuts(several, facts)
    assert found.strength > 0.9


def test_photographs_of_one_site_have_no_shortcut() -> None:
    root = Path(os.environ.get("VITKIT_TEST_DATA", "")) / "data" / "flowers"
    if not root.is_dir():
        pytest.skip("needs the flowers")
    table = read_source(str(root))
    table = table.take(list(range(0, len(table), 12)))
    with FactDatabase() as database:
        assert find_shortcuts(table, scan(table.files(), database)) == []


def test_permuted_labels_have_shortcuts_at_the_nominal_rate() -> None:
    """Of 100 times, 1 is expected, and 5 or more have a chance of .4 %."""
    rng = np.random.default_rng(1)
    sizes, cameras = [(640, 480), (480, 640), (500, 333)], ("", "A", "B", "C")
    facts = [
        Facts(
            *(b"", None, ("PNG", "JPEG")[rng.integers(2)], ("RGB", "L")[rng.integers(2)]),
            *sizes[rng.integers(3)],
            quality=int(rng.integers(200, 900)),
            camera=cameras[rng.integers(4)],
            border=int(rng.geometric(0.3)) - 2,
        )
        for _ in range(120)
    ]
    said = [find_shortcuts(table_of(rng.permutation(120) % 4), facts) for _ in range(100)]
    assert sum(map(bool, said)) < 5
    assert CHANCE == 0.01


@pytest.mark.parametrize(("ending", "side"), [("png", 8), ("jpg", 400)])
def test_pictures_of_one_colour_are_named(ending: str, side: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(12):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        scene(rng, side).save(tmp_path / "ab"[i % 2] / f"{i}.{ending}")
    Image.new("RGB", (side, side), (12, 200, 30)).save(tmp_path / "a" / f"plain.{ending}")
    spot = Image.new("RGB", (side, side), "white")
    spot.putpixel((3, 3), (0, 0, 0))
    spot.save(tmp_path / "b" / f"spot.{ending}")
    found = [str(each) for each in examine(read_source(str(tmp_path))).findings if "one colour" in each.text]
    assert len(found) == 1 and "1 picture" in found[0] and found[0].endswith(f": a/plain.{ending}")
