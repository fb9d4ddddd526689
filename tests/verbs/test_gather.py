"""`--shard` and `vitkit gather`: parts join to what one command writes, and nothing else joins."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import photos
import vitkit as package
from tiny import build, with_score
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources import read_source
from vitkit.errors import VitkitError
from vitkit.inference import Among, flow
from vitkit.verbs.parts import Part, find_parts, open_part

CLASSES = ("blue", "green", "red")
EXACT: dict[str, Any] = {"backend": "eager", "precision": "float32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gather") / "model"
    Classifier(build(image_size=(16, 16), num_classes=3), CLASSES, Preprocess(size=(16, 16))).save(folder)
    return folder


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 photographs of three classes, some of them alike, and a file that is none."""
    root = tmp_path_factory.mktemp("gather") / "photos"
    for i in range(23):
        photos.save(photos.noise(20 + i % 3, 24, seed=i), root / CLASSES[i % 3] / f"{i}.png")
    shutil.copy(root / "red" / "2.png", root / "blue" / "a copy.png")
    (root / "green" / "broken.png").write_text("not a picture")
    return root


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_parts(verb: Callable[..., Any], *arguments: Any, out: str, count: int, **flags: Any) -> Any:
    """Write each part, the last one first, and gather them."""
    for number in range(count, 0, -1):
        verb(*arguments, out=out, shard=f"{number}/{count}", **flags)
    return package.gather(f"{out}.parts", out)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_predictions_are_those_of_one_command(model: Path, album: Path, here: Path, name: str, count: int) -> None:
    flags = {**EXACT, "top": 2, "reject": 0.4}
    whole = package.predict(model, album, out=f"whole-{name}", **flags)
    gathered = in_parts(package.predict, model, album, out=name, count=count, **flags)
    assert Path(name).read_bytes() == Path(f"whole-{name}").read_bytes()
    assert (
        (gathered.images, gathered.unreadable, gathered.parts)
        == (whole.images, whole.unreadable, count)
        == (25, 1, count)
    )


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 25, 30])
def test_the_last_bits_are_those_of_one_command(model: Path, album: Path, here: Path, batch_size: int) -> None:
    """Batches of parts are shorter than those of all images, and kernels differ with the size of a batch."""
    package.predict(model, album, out="whole.jsonl", batch_size=batch_size, **EXACT)
    in_parts(package.predict, model, album, out="rows.jsonl", count=4, batch_size=batch_size, **EXACT)
    assert Path("rows.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_a_batch_of_a_part_has_the_size_of_that_of_the_whole() -> None:
    def sizes(count: int, among: Among | None = None) -> set[tuple[int, int]]:
        """The size of the batch of each source."""
        found = set()

        def compute(images: Any) -> Any:
            for value in images:
                found.add((int(value[0]), len(images)))
            return images

        read = lambda source: np.array([source], np.float32)  # noqa: E731
        positions = range(count) if among is None else among.positions
        assert [source for source, _ in flow(positions, read, compute, 4, is_concurrent=True, among=among)] == list(
            positions
        )
        return found

    for total in (0, 1, 3, 4, 5, 8, 11):
        whole = sizes(total)
        parts = [positions for n in (1, 2, 3) for i in range(n) if (positions := list(range(total))[i::n])]
        assert all(sizes(0, Among(positions, total)) <= whole for positions in parts)


def test_values_for_unknown_images_and_several_views(model: Path, album: Path, here: Path) -> None:
    for i in range(40):
        photos.save(photos.noise(20, 24, seed=100 + i), here / "known" / f"{i}.png")
    with_score(package.load(model), here / "known").save(here / "scored")
    for flags in ({"unknown": 0.5}, {"tta": "flip"}):
        package.predict("scored", album, out="whole.jsonl", force=True, **EXACT, **flags)
        for number in (1, 2, 3):
            package.predict("scored", album, out="rows.jsonl", shard=f"{number}/3", force=True, **EXACT, **flags)
        package.gather("rows.jsonl.parts", "rows.jsonl", force=True)
        assert Path("rows.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_parts_of_shards_are_whole_shards(model: Path, album: Path, here: Path) -> None:
    index = write_shards(read_source(album), here / "shards", 10_000)
    assert len(index.shards) > 3
    package.predict(model, "shards", out="whole.jsonl", **EXACT)
    in_parts(package.predict, model, "shards", out="rows.jsonl", count=3, **EXACT)
    assert Path("rows.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    rows = [json.loads(line)["path"].removeprefix("shards/") for line in Path("whole.jsonl").read_text().splitlines()]
    shard_of = dict(zip(index.keys, index.shard_of, strict=True))
    used = [{shard_of[rows[i]] for i, _ in file.values()} for file in find_parts(["rows.jsonl.parts"]).files]
    assert all(used) and sum(map(len, used)) == len(index.shards)


def test_features_are_those_of_one_command(model: Path, album: Path, here: Path) -> None:
    (here / "labels.csv").write_text("path,label\nred/2.png,red\nblue/3.png,\n")
    for what, labels in (("head", None), ("patches", here / "labels.csv")):
        whole = package.embed(model, album, out=f"whole-{what}.npz", what=what, labels=labels)
        in_parts(package.embed, model, album, out=f"{what}.npz", count=4, what=what, labels=labels)
        assert Path(f"{what}.npz").read_bytes() == Path(f"whole-{what}.npz").read_bytes()
        assert whole.errors
    with pytest.raises(VitkitError, match="--near needs all features"):
        package.embed(model, album, out="x.npz", shard="1/2", near=album / "red" / "2.png")


@pytest.mark.parametrize("count", [1, 3, 30])
def test_an_evaluation_is_that_of_one_command(model: Path, album: Path, here: Path, count: int) -> None:
    whole = package.evaluate(model, album, out="whole", **EXACT)
    gathered = in_parts(package.evaluate, model, album, out="figures", count=count, **EXACT)
    assert gathered.result.figures == whole.figures
    assert np.array_equal(gathered.result.evaluation.probabilities, whole.evaluation.probabilities)
    for file in ("evaluation.json", "predictions.csv", "report.html"):
        assert (here / "figures" / file).read_bytes() == (here / "whole" / file).read_bytes()
    with pytest.raises(VitkitError, match="--tta cannot be combined"):
        package.evaluate(model, album, out="x", shard="1/2", tta="flip")


def test_a_run_is_evaluated_on_its_images(vitkit: Any, trained: Path, here: Path) -> None:
    whole = vitkit("eval", trained, "-o", "whole")
    for number in (1, 2):
        outcome = vitkit("eval", trained, "-o", "figures", "--shard", f"{number}/2")
        assert (outcome.code, outcome.out[:10]) == (0, f"part {number}/2: ")
    outcome = vitkit("gather", "figures.parts", "-o", "figures")
    assert outcome.code == 0
    assert outcome.out.splitlines()[1:-1] == whole.out.splitlines()[:-1]  # the last is the path of the report
    assert Path("figures/evaluation.json").read_bytes() == Path("whole/evaluation.json").read_bytes()


def test_a_checkup_is_that_of_one_command(vitkit: Any, album: Path, here: Path) -> None:
    whole = vitkit("doctor", album, "-o", "whole.html")
    assert whole.code == 1 and "problem: 1 picture" in whole.out
    for number in (1, 2, 3):
        assert vitkit("doctor", album, "-o", "report.html", "--shard", f"{number}/3").code == 0
    outcome = vitkit("gather", "report.html.parts", "-o", "report.html")
    assert outcome.code == 1, "the copies are in different parts"
    assert outcome.out.splitlines()[1:-1] == whole.out.splitlines()[:-1]
    assert Path("report.html").read_bytes() == Path("whole.html").read_bytes()


def test_images_that_have_changed_are_refused(album: Path, model: Path, here: Path) -> None:
    shutil.copytree(album, "photos")
    for number in (1, 2):
        package.doctor("photos", "report.html", shard=f"{number}/2")
        package.evaluate(model, "photos", out="figures", shard=f"{number}/2")
    Path("photos/red/2.png").unlink()
    for out in ("report.html", "figures"):
        with pytest.raises(VitkitError, match=r"no longer matches this command: it is of other images"):
            package.gather(f"{out}.parts", out)
        assert not Path(out).exists()


# --- Refusals -----------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(model: Path, album: Path, here: Path) -> Path:
    for number in (1, 2, 3):
        package.predict(model, album, out="rows.csv", shard=f"{number}/3", **EXACT)
    return here / "rows.csv.parts"


def refused(*sources: object) -> str:
    """The message, without what changes from test to test; nothing is written."""
    with pytest.raises(VitkitError) as caught:
        package.gather(list(map(str, sources)), "all.csv")
    assert not list(Path().glob("all.csv*"))
    return str(caught.value)


def test_missing_parts_are_named(parts: Path) -> None:
    (parts / "2-of-3.part").rename(parts / "2-of-3.part.partial")
    assert refused(parts) == "part 2 of 3 is missing: write the rest with --shard first"
    assert refused(parts / "2-of-3.part").startswith("no such part")
    (parts / "1-of-3.part").unlink()
    assert refused(parts) == "parts 1, 2 of 3 are missing: write the rest with --shard first"
    (parts / "3-of-3.part").unlink()
    assert refused(parts) == f"no parts (*.part, written with --shard) in {parts}"


def test_parts_without_a_readable_image_are_a_failure(vitkit: Any, model: Path, here: Path) -> None:
    (here / "photos").mkdir()
    for name in "abc":
        (here / "photos" / f"{name}.png").write_text("not a picture")
    assert vitkit("predict", model, "photos", "-o", "whole.csv").code == 1
    assert [vitkit("predict", model, "photos", "-o", "rows.csv", "--shard", f"{i}/2").code for i in (1, 2)] == [0, 0]
    assert vitkit("gather", "rows.csv.parts", "-o", "rows.csv").code == 1
    assert Path("rows.csv").read_bytes() == Path("whole.csv").read_bytes()


def test_a_part_that_is_there_twice_is_named(parts: Path) -> None:
    shutil.copy(parts / "2-of-3.part", parts / "again.part")
    assert refused(parts).startswith("part 2 occurs 2 times: ")
    assert "again.part" in refused(parts)
    assert package.gather([str(parts / f"{i}-of-3.part") for i in (1, 2, 3, 3)], "all.csv").images == 25


def test_parts_of_other_commands_are_named(model: Path, album: Path, parts: Path) -> None:
    others = {
        "other images": {"sources": album / "red"},
        "other flags (--top: 2, not 1)": {"top": 2},
        "another model": {"preprocess": "mean=0.1,std=0.5"},
        "computed in another way (--merge 1, not 0)": {"merge": 1},
    }
    for words, flags in others.items():
        arguments = {"sources": album, **EXACT, **flags}
        package.predict(model, out="other.csv", shard="3/3", force=True, **arguments)
        message = refused(parts / "1-of-3.part", parts / "2-of-3.part", "other.csv.parts/3-of-3.part")
        assert message.startswith("other.csv.parts/3-of-3.part") and words in message, message
    package.predict(model, album, out="four.csv", shard="3/4", **EXACT)
    assert "3-of-4.part is one of 4 parts" in refused(parts / "1-of-3.part", parts / "2-of-3.part", "four.csv.parts")
    package.embed(model, album, out="f.npz", shard="3/3")
    assert "is of another command" in refused(parts / "1-of-3.part", parts / "2-of-3.part", "f.npz.parts")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"version": 1', '"version": 2', "has version 2 of the format"),
        ('"format": "vitkit part"', '"format": "something"', "is not a part written with --shard"),
        ('"top": 1', '"top": 2', "1-of-3.part is damaged in line 1"),
        ('[0, {"path"', '[1, {"path"', "1-of-3.part is damaged in line 2"),
        ('"confidence": 0.', '"confidence": 1.', "1-of-3.part is damaged in line 2"),
        ('"label": "', '"label": "g', "1-of-3.part is damaged in line 2"),
        ('{"path"', '{"pa', "1-of-3.part is damaged in line 2"),
        ("\n", "\r\n", "1-of-3.part is damaged in line 1"),
    ],
)
def test_damaged_parts_and_other_formats_are_named(parts: Path, old: str, new: str, words: str) -> None:
    file = parts / "1-of-3.part"
    text = file.read_bytes()
    assert old.encode() in text
    file.write_bytes(text.replace(old.encode(), new.encode(), 1))
    assert words in refused(parts)


def test_lines_that_are_missing_repeated_or_those_of_another_part_are_named(parts: Path) -> None:
    file, other = parts / "1-of-3.part", parts / "2-of-3.part"
    head, *lines = file.read_bytes().splitlines(keepends=True)
    for content, words in (
        (lines[1:], "is damaged (image 1 is missing)"),
        ([lines[0], *lines], "is damaged (image 1 is there twice)"),
        ([lines[1], lines[0], *lines[2:]], "is damaged (image 1 is missing)"),
        ([*lines[:-1], lines[-1][:-1]], f"is damaged in line {len(lines) + 1}"),
        ([*lines, head, *lines], f"is damaged in line {len(lines) + 2}"),
        ([*lines, other.read_bytes().splitlines(keepends=True)[1]], f"is damaged in line {len(lines) + 2}"),
    ):
        file.write_bytes(b"".join([head, *content]))
        assert words in refused(parts)
    file.write_bytes(b"")
    assert refused(parts) == f"{file} is not a part written with --shard"


def test_parts_of_another_version_are_named(
    model: Path, album: Path, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "__version__", "0.0.1")
    package.predict(model, album, out="rows.csv", shard="3/3", force=True, **EXACT)
    assert "3-of-3.part was written by another version of vitkit" in refused(parts)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
def test_what_is_no_file_is_refused(parts: Path) -> None:
    os.mkfifo(parts / "4.part")
    with pytest.raises(OSError, match="it is a pipe"):
        package.gather(parts, "all.csv")


def test_a_huge_number_of_parts_is_refused_at_once(model: Path, album: Path, here: Path) -> None:
    package.predict(model, album, out="rows.csv", shard="999999999/999999999", **EXACT)
    assert "19, 20 and 999999978 more of 999999999 are missing: " in refused("rows.csv.parts")


def test_a_part_without_its_last_images_is_refused(parts: Path) -> None:
    file = parts / "3-of-3.part"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    assert refused(parts) == "image 25 of 25 is in no part: delete the last part and write it again"


def test_an_existing_output_is_kept_without_force(vitkit: Any, parts: Path) -> None:
    Path("rows.csv").write_text("mine")
    outcome = vitkit("gather", parts, "-o", "rows.csv")
    assert outcome.code == 2 and "--out rows.csv exists" in outcome.err
    assert Path("rows.csv").read_text() == "mine"
    assert vitkit("gather", parts, "-o", "rows.csv", "--force").out.startswith("25 images (1 unreadable) of 3 parts")
    assert json.loads(vitkit("gather", parts, "-o", "all.jsonl", "--json").out)["images"] == 25


# --- Parts themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1", "a/b", "-1/3", "1/3/5", ""])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(VitkitError, match="--shard must be a part such as 2/8"):
        Part.of(text)


def test_flags_that_exclude_one_another(model: Path, album: Path, here: Path) -> None:
    for flags, words in (
        ({"shard": "1/2"}, "--shard requires --out"),
        ({"shard": "1/2", "cluster": "local", "out": "a.csv"}, "use only one of them"),
        ({"workers": 2, "out": "a.csv"}, "--workers requires --cluster"),
        ({"cluster": "slurm", "out": "a.csv"}, "--cluster 'slurm' is none of local, ray"),
        ({"parts": 2, "out": "a.csv"}, "--parts requires --cluster"),
        ({"shard": "1/2", "out": "a.csv", "pictures": "p"}, "leave out --pictures"),
        ({"shard": "1/2", "out": "a.txt"}, "must end in"),
    ):
        with pytest.raises(VitkitError, match=words):
            package.predict(model, album, **flags)
    assert list(here.iterdir()) == []
    with pytest.raises(VitkitError, match="nothing is written next to the photographs"):
        package.evaluate(model, album, out=album / "figures", shard="1/2")
    assert not list(album.glob("*.parts"))


def test_a_complete_part_is_kept_and_an_interrupted_one_continues(model: Path, album: Path, here: Path) -> None:
    first = package.predict(model, album, out="rows.csv", shard="1/2", **EXACT)
    assert first.out is not None
    content, lines = first.out.read_bytes(), first.out.read_bytes().splitlines(keepends=True)
    stamp = first.out.stat().st_mtime_ns
    again = package.predict(model, album, out="rows.csv", shard="1/2", **EXACT)
    assert "which was there already" in again.computed and first.out.stat().st_mtime_ns == stamp
    assert [row.path for row in again] == [row.path for row in first] and len(again) == 12
    partial = first.out.with_name(first.out.name + ".partial")
    first.out.rename(partial)
    partial.write_bytes(content.replace(b'"confidence": 0.', b'"confidence": 1.'))
    package.predict(model, album, out="rows.csv", shard="1/2", **EXACT)
    assert first.out.read_bytes() == content, "what is damaged is computed again"
    for kept in (0, 1, 5, 12):
        first.out.rename(partial)
        partial.write_bytes(b"".join(lines[:kept])[:-1] + b"\n"[: kept % 2])  # the last line may be incomplete
        package.predict(model, album, out="rows.csv", shard="1/2", **EXACT)
        assert first.out.read_bytes() == content and not partial.exists()
    with pytest.raises(VitkitError, match=r"has other flags \(--top: 1, not 2\)"):
        package.predict(model, album, out="rows.csv", shard="1/2", top=2, **EXACT)
    package.predict(model, album, out="rows.csv", shard="1/2", top=2, force=True, **EXACT)
    assert open_part(first.out).head["flags"]["top"] == 2
