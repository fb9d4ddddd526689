"""What cannot be read is found before training, and only that is left out."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from photos import folder, save, scene
from refusals import refused
from vitkit.data import Diagnosis, examine, read_source


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return folder(tmp_path, {"cat": 4, "dog": 3, "owl": 2})


def spoil(path: Path, content: bytes = b"<html>") -> str:
    path.write_bytes(content)
    return f"{path.parent.name}/{path.name}"


def test_only_what_cannot_be_read_is_left_out_with_its_reason(photos: Path) -> None:
    before = read_source(photos)
    diagnosis = examine(before)
    assert (diagnosis.table, diagnosis.unreadable, diagnosis.copies) == (before, {}, ())
    assert not diagnosis.has_problems
    html, empty = spoil(photos / "cat" / "cat_1.png"), spoil(photos / "dog" / "dog_0.png", b"")
    half = photos / "owl" / "owl_1.png"
    spoil(half, half.read_bytes()[: half.stat().st_size // 2])
    diagnosis = examine(before)
    table, unreadable = diagnosis.table, diagnosis.unreadable
    assert unreadable == {html: "not an image", empty: "empty file", "owl/owl_1.png": "truncated"}
    assert sorted([*table.paths, *unreadable]) == sorted(before.paths)
    assert table.counts() == {"cat": 3, "dog": 2, "owl": 1}


def test_a_class_with_no_readable_image_is_no_class_and_one_class_is_refused(photos: Path) -> None:
    with refused("data.images-unreadable"):
        examine(read_source(photos).take([0, 1]))  # as `--max-images 1` leaves it
    for i in range(3):
        spoil(photos / "dog" / f"dog_{i}.png")
    diagnosis = examine(read_source(photos))
    table = diagnosis.table
    assert table.classes == ("cat", "owl") and len(diagnosis.unreadable) == 3
    assert [table.name_of(i) for i in range(len(table))] == [path.split("/")[0] for path in table.paths]
    for i in range(2):
        spoil(photos / "owl" / f"owl_{i}.png")
    with refused("data.images-unreadable", "5 of 9", "dog/dog_0.png"):
        examine(read_source(photos))


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "exact": lambda picture: picture,
    "near": lambda picture: picture.resize((picture.width // 2, picture.height // 2)),
    "mirrored": ImageOps.mirror,
}


def texts(diagnosis: Diagnosis, severity: str) -> list[str]:
    return [finding.text for finding in diagnosis.findings if finding.severity == severity]


def copies(diagnosis: Diagnosis) -> list[tuple[set[str], str, bool, bool]]:
    paths = diagnosis.table.paths
    return [({paths[i] for i in own.images}, own.kind, own.is_leak, own.is_conflict) for own in diagnosis.copies]


def in_splits(root: Path) -> Path:
    for k, part in enumerate(("train", "val", "test")):
        for name in ("cat", "dog"):
            for i in range(3):
                save(scene(100 * k + 10 * i + ord(name[0]), 96), root / part / name / f"{i}.png")
    return root


@pytest.mark.parametrize(("kind", "part"), [("exact", "val"), ("near", "test"), ("mirrored", "val")])
def test_a_training_picture_that_is_tested_on_or_has_another_class_is_a_problem(
    tmp_path: Path, kind: str, part: str
) -> None:
    root = in_splits(tmp_path)
    copy = CHANGES[kind](Image.open(root / "train" / "cat" / "1.png"))
    leak = save(copy, root / part / "cat" / "leak.png")
    diagnosis = examine(read_source(root))
    assert copies(diagnosis) == [({"train/cat/1.png", f"{part}/cat/leak.png"}, kind, True, False)]
    assert diagnosis.has_problems
    (text,) = texts(diagnosis, "problem")
    assert f"(1 {part} image)" in text and "train/cat/1.png" in text and f"{part}/cat/leak.png" in text
    if kind != "mirrored":
        leak.rename(root / "train" / "dog" / "also.png")
        diagnosis = examine(read_source(root))
        assert copies(diagnosis) == [({"train/cat/1.png", "train/dog/also.png"}, kind, False, True)]
        (text,) = texts(diagnosis, "problem")
        assert "train/cat/1.png = " in text


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_mirror_image_is_a_copy_in_its_own_class_and_a_note_in_another(tmp_path: Path, part: str) -> None:
    root = in_splits(tmp_path)
    for i in range(2):
        save(ImageOps.mirror(Image.open(root / "train" / "cat" / f"{i}.png")), root / part / "dog" / f"m{i}.png")
    diagnosis = examine(read_source(root))
    assert copies(diagnosis) == [] and not diagnosis.has_problems
    assert diagnosis.twins == tuple(range(20))
    (note,) = [text for text in texts(diagnosis, "note") if "mirror" in text]
    assert note.startswith("2 images") and "--no-hflip" in note
    save(ImageOps.mirror(Image.open(root / "train" / "cat" / "2.png")), root / "train" / "cat" / "m.png")
    assert copies(examine(read_source(root))) == [({"train/cat/2.png", "train/cat/m.png"}, "mirrored", False, False)]


def test_a_leak_by_a_mirror_image_is_seen_beside_a_mirror_image_of_another_class(tmp_path: Path) -> None:
    root = in_splits(tmp_path)
    mirrored = ImageOps.mirror(Image.open(root / "train" / "dog" / "0.png"))
    save(mirrored.resize((48, 36)), root / "train" / "cat" / "wrong.png")
    save(mirrored, root / "val" / "dog" / "leak.png")
    diagnosis = examine(read_source(root))
    together = next((own for own, *_ in copies(diagnosis) if "val/dog/leak.png" in own), set())
    assert "train/dog/0.png" in together


def test_copies_of_unsplit_data_are_a_note_that_says_what_is_done(tmp_path: Path) -> None:
    for i in range(8):
        save(scene(i, 96), tmp_path / ("cat", "dog")[i % 2] / f"{i // 2}.png")
    save(Image.open(tmp_path / "cat" / "0.png"), tmp_path / "cat" / "copy.png")
    save(Image.open(tmp_path / "cat" / "1.png").resize((48, 36)), tmp_path / "cat" / "half.png")
    save(Image.open(tmp_path / "cat" / "1.png").resize((64, 48)), tmp_path / "cat" / "part.png")
    diagnosis = examine(read_source(tmp_path))
    assert any("2 pictures" in text and "(1 exact, 1 near)" in text for text in texts(diagnosis, "note"))
    table = diagnosis.table
    twins = {path: diagnosis.twins[i] for i, path in enumerate(table.paths)}
    assert twins["cat/0.png"] == twins["cat/copy.png"]
    assert twins["cat/1.png"] == twins["cat/half.png"] == twins["cat/part.png"]
    assert len(set(twins.values())) == len(table) - 3


def test_indices_are_of_the_readable_images(tmp_path: Path) -> None:
    root = in_splits(tmp_path)
    diagnosis = examine(read_source(root))
    assert (diagnosis.copies, diagnosis.twins) == ((), tuple(range(18))) and not diagnosis.has_problems
    (root / "train" / "cat" / "00.png").write_text("not a picture")
    (root / "train" / "dog" / "00.png").write_text("not a picture")
    save(Image.open(root / "test" / "dog" / "2.png"), root / "test" / "dog" / "z.png")
    diagnosis = examine(read_source(root))
    assert copies(diagnosis) == [({"test/dog/2.png", "test/dog/z.png"}, "exact", False, False)]
    table = diagnosis.table
    assert len(diagnosis.facts) == len(diagnosis.twins) == len(table) == 19
    assert all(path.startswith(str(own)) for path, own in zip(table.paths, table.splits, strict=True))
