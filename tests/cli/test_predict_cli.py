"""`vitkit predict`: a row an image, in order, as the Python API has it."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import photos as pictures
import runs
import warm
from test_text import read as read_workbook
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, find_images
from vitkit.errors import Interrupted
from vitkit.text import restored
from vitkit.verbs.predict import predict
from vitkit.weights import load

EXACT = ("--backend", "eager", "--precision", "float32")  # as the Python API computes by default
NOT_UTF8 = os.fsdecode(b"caf\xe9 \xff.png")


@pytest.fixture
def here(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with photographs under `photos` and files that are none under `odd`."""
    shutil.copytree(data, tmp_path / "photos")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "text.jpg").write_text("not a picture")
    (tmp_path / "odd" / "empty.png").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_agree_with_python(vitkit: Any, trained: Path, here: Path) -> None:
    outcome = vitkit("predict", trained, "photos/red/img1.png", "photos", "photos/red", "--top", 3, "--batch-size", 5)
    assert (outcome.code, outcome.err) == (0, "36 images (0 unreadable), eager, float32\n")
    assert outcome.out.startswith("path,label,confidence,error,familiar")
    rows = table(outcome.out)
    paths = [row["path"] for row in rows]
    assert paths[0] == "photos/red/img1.png" and len(paths) == 36, "what is named twice is one row"
    for row, expected in zip(rows, load(trained).predict(paths), strict=True):
        cells = [(row["label"], row["confidence"])] + [(row[f"label_{i}"], row[f"confidence_{i}"]) for i in (2, 3)]
        assert [label for label, _ in cells] == [label for label, _ in expected.ranking]
        assert [float(c) for _, c in cells] == pytest.approx([c for _, c in expected.ranking], abs=2e-6)
    printed = vitkit("predict", trained, "photos").out
    (here / "out.csv").write_text("precious")
    outcome = vitkit("predict", trained, "photos", "-o", "out.csv", "--force")
    assert (outcome.code, (here / "out.csv").read_text()) == (0, printed)
    assert "36 images (0 unreadable)" in outcome.out


def test_a_workbook_has_the_cells_of_the_csv_file_and_no_formula(vitkit: Any, trained: Path, here: Path) -> None:
    shutil.copy("photos/red/img1.png", "photos/=1+1.png")
    sources = ("photos/red/img1.png", "photos/blue", "photos/=1+1.png", "odd/text.jpg")
    known = [float(row["confidence"] or 0) for row in table(vitkit("predict", trained, *sources).out)]
    flags = ("--top", 2, "--reject", (min(known[:-1]) + max(known)) / 2)
    rows = table(vitkit("predict", trained, *sources, *flags).out)
    assert {row["label"] for row in rows} > {""}, "some are withheld"
    assert vitkit("predict", trained, *sources, *flags, "-o", "a.xlsx").code == 1
    header, *cells = read_workbook(here / "a.xlsx")
    assert list(header.values()) == list(rows[0])
    for row, line in zip(rows, cells, strict=True):
        for letter, name in header.items():
            expected: Any = restored(row[name]) or None
            if name.startswith(("confidence", "familiar")) and expected is not None:
                expected = pytest.approx(float(expected), abs=1e-6)
            assert line.get(letter) == expected, name
    vitkit("predict", trained, "photos", "-o", "a.xlsx").refused("verbs.out-exists")
    vitkit("predict", trained, "photos", "-o", "a.xlsx", "--resume").refused("verbs.resume-impossible", "a.xlsx")


def test_bad_images_are_rows_and_patterns_are_expanded_in_natural_order(vitkit: Any, trained: Path, here: Path) -> None:
    outcome = vitkit("predict", trained, "photos/red/img1.png", "odd/text.jpg", "odd/empty.png", "--top", 2)
    assert outcome.code == vitkit("predict", trained, "odd").code == 1
    rows = [[row["path"], row["label"], row["confidence"], row["label_2"], row["error"]] for row in table(outcome.out)]
    assert rows[0][4] == ""
    assert rows[1:] == [["odd/text.jpg", "", "", "", "not an image"], ["odd/empty.png", "", "", "", "empty file"]]
    rows = table(vitkit("predict", trained, "photos/*/img[12]*.png").out)
    expected = [f"photos/{colour}/img{i}.png" for colour in ("blue", "green", "red") for i in (1, 2, 10, 11, 12)]
    assert [row["path"] for row in rows] == expected
    assert len(table(vitkit("predict", trained, "photos/**/*.png").out)) == 36
    given = [here / "photos" / "red" / "img1.png", "./photos/red/img1.png", "photos/../photos/red/img1.png"]
    assert [row["path"] for row in table(vitkit("predict", trained, *given).out)] == list(map(str, given))
    vitkit("predict", trained, "photos/*", "-o", "photos/red/out.csv").refused("verbs.out-in-source")


def test_json_is_the_lines_of_a_jsonl_file_and_beside_a_file_the_counts(
    vitkit: Any, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = next(load(trained).predict("photos/red/img1.png"))
    for reject, label in ((0, "red"), (1.0, None)):
        asked = ("predict", trained, "photos/red/img1.png", "odd/text.jpg", "--reject", reject)
        outcome = vitkit(*asked, "--json")
        assert outcome.code == 1 and "1 unreadable" in outcome.err
        assert vitkit(*asked, "-o", "out.jsonl", "--force").code == 1
        assert outcome.out == (here / "out.jsonl").read_text()
        first, second = (json.loads(line) for line in outcome.out.splitlines())
        assert first.pop("familiar") == expected.familiar and first.pop("rejected") == (None if label else "red")
        assert first == {"path": "photos/red/img1.png", "label": label, "confidence": expected.confidence}
        assert (second["path"], second["label"], second["error"]) == ("odd/text.jpg", None, "not an image")
        assert (second["confidence"], second["rejected"]) == (None, None)
    outcome = vitkit("predict", trained, "photos/red/img1.png", "odd/text.jpg", "-o", "out.csv", "--json")
    found = json.loads(outcome.out)
    assert (found["images"], found["unreadable"], found["rejected"], found["out"]) == (2, 1, 0, "out.csv")
    assert (here / "out.csv").read_text().startswith("path,label,confidence,error,familiar\n")
    again = vitkit("predict", trained, "photos/red/img1.png", "odd/text.jpg", "-o", "out.csv", "--json", "--resume")
    assert json.loads(again.out) == found and "2 of 2 images are in out.csv" in again.err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert json.loads(vitkit("predict", trained, "photos/red/img1.png", "--json").out)["label"]


@pytest.mark.parametrize("batches", [0, 3])
def test_ctrl_c_leaves_nothing_or_says_how_to_go_on(
    vitkit: Any, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, batches: int
) -> None:
    original, calls = Classifier.calibrated, iter(range(batches))

    def stop(classifier: Classifier, logits: Any) -> Any:
        if next(calls, None) is None:
            raise Interrupted(2)  # as a handler of SIGINT does
        return original(classifier, logits)

    Path("a name.csv").write_text("old")
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Classifier, "calibrated", stop)
        vitkit("predict", "--force", trained, "-o", "a name.csv", "--batch-size", 4, "--", "photos")
    assert Path("a name.csv").read_text() == "old"
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in told] == ["to continue"] * (batches > 0)
    assert Path("a name.csv.partial").exists() == (batches > 0)
    if batches:
        words = shlex.split(told[0].removeprefix("to continue: "))
        assert words[:3] == ["vitkit", "predict", "--resume"]
        assert vitkit(*words[1:]).code == 0
        assert len(read(here / "a name.csv")) == 36


def test_a_terminal_shows_every_class(vitkit: Any, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    outcome = vitkit("predict", trained, "photos/red/img1.png")
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines][:2] == ["photos/red/img1.png", "red"]
    assert len(lines) == 5 and re.match(r"familiar: \d\.\d{4}, ", lines[4])
    expected = next(load(trained).predict("photos/red/img1.png"))
    said = vitkit("predict", trained, "photos/red/img1.png", "--reject", "0.99999999").out.splitlines()[-1]
    assert said.startswith(f"rejected: the probability of {expected.label} is {expected.confidence:.4f}")


@pytest.fixture
def unsure(here: Path) -> Path:
    """A random model of the same three classes, which trusts itself in some of the images alone."""
    model = build(seed=3, image_size=(16, 16), num_classes=3)
    Classifier(model, ("blue", "green", "red"), Preprocess(size=(16, 16))).save(here / "unsure")
    return here / "unsure"


def test_below_the_threshold_the_label_is_withheld(vitkit: Any, unsure: Path, here: Path) -> None:
    images = sorted(Path("photos").rglob("*.png"))
    reject = float(np.median([prediction.confidence for prediction in load(unsure).predict(images)]))
    outcome = vitkit("predict", unsure, "photos", "odd", "--reject", reject, "--top", 2)
    found = table(outcome.out)
    assert list(found[0]) == ["path", "label", "confidence", "error", "rejected", "label_2", "confidence_2"]
    for row, expected in zip(found, load(unsure).predict([row["path"] for row in found]), strict=True):
        trusted = expected.confidence is not None and expected.confidence >= reject
        assert row["label"] == ((expected.label or "") if trusted else "")
        assert row["rejected"] == ("" if trusted else expected.label or "")
        assert row["label_2"] == (expected.ranking[1][0] if expected.ranking else "")
    assert outcome.err == "38 images (2 unreadable, 18 rejected), eager, float32\n18 answered, 20 to look at.\n"
    assert "36 answered, none to look at." in vitkit("predict", unsure, "photos", "--reject", 0).err


def many(folder: Path, count: int) -> Path:
    """So many images that a process is found at work on them; some are none."""
    (folder / "many").mkdir()
    own = [*sorted((folder / "photos").rglob("*.png")), folder / "odd" / "text.jpg"]
    for i in range(count):
        os.link(own[i % len(own)], folder / "many" / f'{i}, "quoted"\n{i}.png')
    return folder / "many"


def wait_for_rows(partial: Path, size: int, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if partial.exists() and partial.stat().st_size > size:
            return
        time.sleep(0.002)
    pytest.fail(f"the process did not get that far; it ended with {process.poll()}")


@pytest.mark.parametrize("name", ["out.csv", pytest.param("out.jsonl", marks=pytest.mark.accept)])
def test_a_run_killed_with_sigkill_is_gone_on_with(vitkit: Any, trained: Path, here: Path, name: str) -> None:
    arguments = ("predict", trained, many(here, 400), "--batch-size", "4", "--top", "2", *EXACT)
    assert vitkit(*arguments, "-o", f"whole-{name}").code == 1
    process = subprocess.Popen([warm.vitkit(), *arguments, "-o", name], env=runs.environment(), stdout=subprocess.PIPE)
    wait_for_rows(here / f"{name}.partial", 2000, process)
    process.kill()
    process.communicate()
    assert not (here / name).exists()
    assert (here / f"{name}.partial").stat().st_size < (here / f"whole-{name}").stat().st_size / 2
    outcome = vitkit(*arguments, "-o", name, "--resume")
    assert (outcome.code, outcome.err) == (1, "")
    last = [f"400 images (10 unreadable), eager, float32: {name}", "390 answered, 10 to look at."]
    assert outcome.out.splitlines()[-2:] == last
    assert not (here / f"{name}.partial").exists()
    assert_same_rows(here / name, here / f"whole-{name}")


def assert_same_rows(file: Path, other: Path) -> None:
    """To the last digits, which a batch of other images may change."""
    assert [row[::2] for row in read(file)] == [row[::2] for row in read(other)]
    for row, expected in zip(read(file), read(other), strict=True):
        assert row[1] == pytest.approx(expected[1], abs=2e-6)


def read(file: Path) -> list[tuple[str, float | None, str | None]]:
    """Path, confidence and label of each row."""
    if file.suffix == ".csv":
        with file.open(newline="") as stream:
            found: Any = list(csv.DictReader(stream))
    else:
        found = [json.loads(line) for line in file.read_text().splitlines()]
    return [(row["path"], float(row["confidence"] or 0), row["label"]) for row in found]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the images that are decoded for the model."""
    paths: list[str] = []
    original = Classifier.pixels

    def spy(self: Classifier, path: str | Path) -> Any:
        paths.append(str(path))
        return original(self, path)

    monkeypatch.setattr(Classifier, "pixels", spy)
    return paths


def cut_short(vitkit: Any, *arguments: object, rows: int, out: str = "out.csv") -> bytes:
    """Leaves a partial file of some rows and a torn one; the whole file's content."""
    assert vitkit("predict", *arguments, "-o", out).code in (0, 1)
    whole = Path(out).read_bytes()
    lines = whole.splitlines(keepends=True)
    Path(f"{out}.partial").write_bytes(b"".join(lines[: rows + out.endswith(".csv")]) + lines[-1][:9])
    Path(out).unlink()
    return whole


@pytest.mark.parametrize(("out", "rows"), [("out.csv", 0), ("out.csv", 38), ("out.jsonl", 32)])
def test_only_what_is_missing_is_computed(
    vitkit: Any, trained: Path, here: Path, computed: list[str], out: str, rows: int
) -> None:
    whole = cut_short(vitkit, trained, "photos", "odd", "--batch-size", 1, rows=rows, out=out)
    everything = [str(path) for path in find_images(["photos", "odd"])]
    computed.clear()
    outcome = vitkit("predict", trained, "photos", "odd", "--batch-size", 1, "-o", out, "--resume")
    assert outcome.code == 1
    assert outcome.out.splitlines() == [
        f"{rows} of 38 images are in {out}.partial",
        f"38 images (2 unreadable), eager, float32: {out}",
        "36 answered, 2 to look at.",
    ]
    again = everything[: min(rows, 8)]  # to learn whether the same model wrote the rows
    assert sorted(computed) == sorted(again + everything[rows:])
    assert (here / out).read_bytes() == whole
    assert not (here / f"{out}.partial").exists()


def test_resume_adds_what_a_file_lacks(vitkit: Any, trained: Path, here: Path, computed: list[str]) -> None:
    vitkit("predict", trained, "photos", "-o", "whole.csv", "--batch-size", 1)
    assert vitkit("predict", trained, "photos/red", "-o", "out.csv", "--batch-size", 1, "--resume").code == 0
    for left in (24, 0):
        computed.clear()
        outcome = vitkit("predict", trained, "photos", "-o", "out.csv", "--batch-size", 1, "--resume")
        assert outcome.out.splitlines()[0] == f"{36 - left} of 36 images are in out.csv"
        assert len(computed) == left + 8
        assert (here / "out.csv").read_bytes() == (here / "whole.csv").read_bytes()


def test_a_full_disk_keeps_the_rows_that_fit(vitkit: Any, trained: Path, here: Path) -> None:
    vitkit("predict", trained, "photos", "-o", "whole.csv")
    with runs.files_of_at_most(500):
        vitkit("predict", trained, "photos", "-o", "out.csv").refused(None, "out.csv.partial", "--resume")
    assert (here / "out.csv.partial").read_bytes() == (here / "whole.csv").read_bytes()[:500]
    assert not (here / "out.csv").exists()
    assert vitkit("predict", trained, "photos", "-o", "out.csv", "--resume").code == 0
    assert_same_rows(here / "out.csv", here / "whole.csv")


def test_memory_that_is_short_ends_the_command_and_the_rest_can_be_had_later(
    vitkit: Any, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("predict", trained, "photos", "--batch-size", 4, "-o")
    vitkit(*asked, "whole.csv")
    original = Classifier.assessing

    def assessing(classifier: Classifier) -> Any:
        def compute(pixels: Any) -> Any:
            red, green, blue = np.asarray(pixels).mean(axis=(2, 3)).T
            if ((red > green) & (red > blue)).any():
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9.")
            return original(classifier)(pixels)

        return compute

    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "assessing", assessing)
        outcome = vitkit(*asked, "out.csv")
    outcome.refused("inference.memory-short", "4 images")
    kept = (here / "out.csv.partial").read_bytes()
    assert (here / "whole.csv").read_bytes().startswith(kept) and len(kept.splitlines()) >= 9
    assert vitkit(*shlex.split(outcome.out.removeprefix("to continue: vitkit "))).code == 0
    assert (here / "out.csv").read_bytes() == (here / "whole.csv").read_bytes()


@pytest.fixture(scope="module")
def precious(trained: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, rows of them, finished and not, and much that is nobody's to write over."""
    folder = tmp_path_factory.mktemp("precious")
    shutil.copytree(data, folder / "photos")
    (folder / "folder.csv").mkdir()
    (folder / "link").symlink_to("photos/blue", target_is_directory=True)
    (folder / "thesis.csv").write_text("precious")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        predict(str(trained), ["photos"], out=Path("done.csv"))
    lines = (folder / "done.csv").read_bytes().splitlines(keepends=True)
    (folder / "out.csv.partial").write_bytes(b"".join(lines[:6]) + lines[6][:9])
    return folder


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("-o out.csv", "verbs.out-exists", "out.csv.partial"),
        ("-o out.csv --resume --force", "verbs.option-conflict", "--force"),
        ("--resume", "verbs.option-missing", "--out"),
        ("-o out.csv --resume --top 2", "inference.rows-differ", "--top"),
        ("-o thesis.csv --resume", "inference.rows-differ", "thesis.csv"),
        ("-o photos/out.csv", "verbs.out-in-source", "photos/out.csv"),
        ("-o link/out.csv", "verbs.out-in-source", "link/out.csv"),
        ("-o folder.csv --force", "verbs.out-kind", "folder.csv"),
        ("--reject 1.5", "text.value-outside", "--reject"),
    ],
)
def test_mistakes_end_in_a_line_and_change_nothing(
    vitkit: Any, trained: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: str, named: str
) -> None:
    monkeypatch.chdir(precious)
    before = pictures.fingerprint(precious)
    outcome = vitkit("predict", trained, "photos", *arguments.split())
    outcome.refused(code, named)
    assert outcome.out == ""
    assert pictures.fingerprint(precious) == before


def test_strange_names_go_through_a_pipe_and_a_resume(vitkit: Any, trained: Path, here: Path) -> None:
    """Names that break lines, quotes and encodings."""
    names = (NOT_UTF8, "z\r.png", 'a "b",\nc.png')
    for i, name in enumerate(names, 1):
        shutil.copy(f"photos/red/img{i}.png", here / "odd" / name)
    command = [warm.vitkit(), "predict", trained, "odd", *EXACT]
    done = subprocess.run(command, env=runs.environment(), capture_output=True, timeout=60, check=False)
    last = b"5 images (2 unreadable), eager, float32\n3 answered, 2 to look at.\n"
    assert (done.returncode, done.stderr) == (1, last)
    assert done.stdout == cut_short(vitkit, trained, "odd", rows=2)
    assert vitkit("predict", trained, "odd", "-o", "out.csv", "--resume").code == 1
    assert done.stdout == Path("out.csv").read_bytes()
    rows = csv.reader(io.StringIO(os.fsdecode(done.stdout), newline=""))
    assert {restored(row[0]) for row in rows} == {"path", *map(str, Path("odd").iterdir())}
