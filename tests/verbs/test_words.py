"""`predict --classes` and `search`: words in the place of a model that was trained on them."""

import csv
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit as package
import wordy
from photos import noise, save
from refusals import refused
from vitkit.verbs import named_classes


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model of each kind with its tokenizer, as transformers has them, and the folder with both."""
    folder = tmp_path_factory.mktemp("words")
    return {"folder": folder, "clip": wordy.clip(folder / "clip"), "siglip": wordy.siglip(folder / "siglip")}


@pytest.fixture(scope="module")
def place(theirs: dict[str, Any]) -> Path:
    folder: Path = theirs["folder"]
    for i in range(4):
        save(noise(16, 16, i), folder / "photos" / f"{i}.png")
    (folder / "photos" / "broken.png").write_bytes(b"no picture")
    (folder / "classes.txt").write_text("daisy\nrose\nred tulip\n")
    return folder


CLASSES = ("daisy", "rose", "red tulip")
NAMES, TEMPLATE = package.Names(classes=CLASSES), package.Names(templates=["a {}"])
EXACT = package.Compute(backend="eager", precision="float32")


def known(place: Path) -> package.Classifier:
    return package.zero_shot(place / "clip", CLASSES)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_predictions_are_transformers(place: Path, theirs: dict[str, Any], kind: str) -> None:
    model, tokenizer = theirs[kind]
    own = package.zero_shot(place / kind, CLASSES)
    paths = sorted(str(path) for path in (place / "photos").glob("[0-9].png"))
    template = "a photo of a {}." if kind == "clip" else "This is a photo of {}."
    tokens = torch.tensor(wordy.ids(tokenizer, [template.format(name) for name in CLASSES]))
    with torch.inference_mode():
        logits = model(input_ids=tokens, pixel_values=torch.stack([own.read(path) for path in paths])).logits_per_image
    expected = (logits.softmax(-1) if kind == "clip" else logits.sigmoid()).numpy()
    names = package.Names(classes="daisy, rose, red tulip")
    found = package.predict(place / kind, paths, names=names, compute=EXACT, top=3)
    rows = list(found)
    assert len(rows) == 4
    for row, probabilities in zip(rows, expected, strict=True):
        assert [name for name, _ in row.top] == [CLASSES[i] for i in np.argsort(-probabilities, kind="stable")]
        assert np.allclose([own for _, own in row.top], -np.sort(-probabilities), atol=1e-5)
    assert any(template in note and ("softmax" if kind == "clip" else "sigmoid") in note for note in found.notes)


def test_one_of_the_classes_is_named_if_that_is_asked_for(place: Path) -> None:
    exclusive = package.zero_shot(place / "siglip", CLASSES, one=True)
    found = list(package.predict(exclusive, place / "photos" / "0.png", top=3))
    assert found[0].label in CLASSES
    assert sum(own for _, own in found[0].top) == pytest.approx(1, abs=1e-5)
    # Where SigLIP may name none, one class has a probability of its own.
    assert len(package.predict(place / "siglip", place / "photos" / "0.png", names=package.Names(classes="daisy"))) == 1
    with refused("language.classes-few", "daisy"):
        package.zero_shot(place / "siglip", ["daisy"], one=True)


def test_classes_and_templates_by_the_command(place: Path, vitkit: Any) -> None:
    templates = ("--template", "a {}", "--template", "the {}")
    asked = ("predict", place / "clip", place / "photos", "--backend", "eager", *templates, "--classes")
    first, second = vitkit(*asked, "daisy, rose,red tulip"), vitkit(*asked, place / "classes.txt")
    assert first.code == second.code == 1 and first.out == second.out
    rows = list(csv.DictReader(io.StringIO(first.out)))
    assert len(rows) == 5 and {row["label"] for row in rows if not row["error"]} <= set(CLASSES)
    assert "exactly one (softmax) of 3 classes, given by name in the text 'a {}', 'the {}'" in first.err


def test_the_images_that_a_text_describes_best(place: Path, theirs: dict[str, Any]) -> None:
    model, tokenizer = theirs["clip"]
    own = known(place)
    text = "a red daisy on the beach"
    found = package.embed(place / "clip", place / "photos", text=text, top=3)
    pixels = {path: own.read(place / "photos" / path) for path in ("0.png", "1.png", "2.png", "3.png")}
    with torch.inference_mode():
        tokens = torch.tensor(wordy.ids(tokenizer, [text]))
        told = model(input_ids=tokens, pixel_values=torch.stack(list(pixels.values())))
        cosines = (told.image_embeds @ told.text_embeds.T)[:, 0]
    expected = sorted(zip(map(float, cosines), pixels, strict=True), reverse=True)[:3]
    assert [Path(path).name for path, _ in found.nearest] == [name for _, name in expected]
    assert np.allclose([similarity for _, similarity in found.nearest], [own for own, _ in expected], atol=1e-5)
    assert [Path(path).name for path in found.errors] == ["broken.png"]
    assert (len(found.nearest), len(found)) == (3, 4)
    assert json.dumps(found.to_dict())
    assert "0.png" in found._repr_html_() or "0.png" not in str(found.nearest)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda own: package.embed(own / "clip", own / "photos", text="  "), "verbs.text-empty"),
        (lambda own: package.embed(own / "clip", own / "photos", text="a", near="0.png"), "verbs.option-conflict"),
        (lambda own: package.embed(own / "clip", own / "photos/broken.png", text="a"), "verbs.images-unreadable"),
        (lambda own: package.embed(known(own), own / "photos", text="a"), "verbs.model-in-memory"),
        (lambda own: package.predict(own / "clip", own / "photos", names=TEMPLATE), "verbs.option-missing"),
        (lambda own: package.evaluate(own / "clip", names=NAMES), "verbs.record-missing"),
    ],
)
def test_a_search_or_classes_that_make_no_sense_are_refused(
    place: Path, call: Callable[[Path], Any], code: str
) -> None:
    with refused(code):
        call(place)


@pytest.fixture(scope="module")
def labelled(place: Path) -> Path:
    for name in ("daisy", "red_tulip", "rose"):
        for i in range(4):
            save(noise(16, 16, 10 * len(name) + i), place / "labelled" / name / f"{i}.png")
    return place / "labelled"


def test_zero_shot_figures_are_of_transformers_answers(place: Path, labelled: Path, theirs: dict[str, Any]) -> None:
    model, tokenizer = theirs["siglip"]
    names = package.Names(classes="rose, daisy, red_tulip")
    found = package.evaluate(place / "siglip", labelled, names=names, compute=EXACT)
    spoken = ["rose", "daisy", "red tulip"]
    tokens = torch.tensor(wordy.ids(tokenizer, [f"This is a photo of {name}." for name in spoken]))
    own = package.zero_shot(place / "siglip", spoken)
    pixels = torch.stack([own.read(labelled / path) for path in found.evaluation.paths])
    with torch.inference_mode():
        probabilities = model(input_ids=tokens, pixel_values=pixels).logits_per_image.softmax(-1).numpy()
    assert found.evaluation.classes == ("rose", "daisy", "red_tulip")
    assert np.abs(found.evaluation.probabilities - probabilities).max() <= 1e-5
    right = [found.evaluation.classes[i] for i in probabilities.argmax(axis=1)]
    folders = [Path(path).parent.name for path in found.evaluation.paths]
    assert found.accuracy == pytest.approx(np.mean([a == b for a, b in zip(right, folders, strict=True)]))
    assert any("exactly one (softmax)" in note for note in found.notes)
    assert found.figures["images"] == 12


@pytest.mark.parametrize(
    ("classes", "code", "named"),
    [
        ("daisy, rose", "verbs.names-differ", "has images of red_tulip"),
        ("daisy, daisy", "language.classes-alike", "daisy"),
    ],
)
def test_names_that_are_of_no_images_and_images_without_a_name_are_refused(
    place: Path, labelled: Path, classes: str, code: str, named: str
) -> None:
    with refused(code, named):
        package.evaluate(place / "clip", labelled, names=package.Names(classes=classes))


def test_names_may_be_separated_and_quoted_as_people_do() -> None:
    for text in (" daisy , rose,  red tulip ", '"daisy","rose", "red tulip"'):
        assert named_classes(text) == list(CLASSES), text
    assert named_classes('"daisy, the common one", rose') == ["daisy, the common one", "rose"]
    names = [f"St. Bernard {i}" for i in range(400)]
    assert named_classes(", ".join(names)) == names, "no path, though they have a dot"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("list.txt", "daisy\nrose\n\nred tulip\n"),
        ("line.txt", "daisy, rose, red tulip\n"),
    ],
)
def test_names_may_be_in_a_file(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content, encoding="utf-8")
    assert named_classes(str(tmp_path / file)) == list(CLASSES)


@pytest.mark.parametrize(
    ("text", "content", "code"),
    [
        ("list.csv", b"label\ndaisy\nrose\n", "verbs.names-invalid"),
        ("list.txt", b"caf\xe9\nrose\n", "verbs.names-unreadable"),
        ("list.txt", "daisy\nrose\n".encode("utf-16"), "data.csv-encoding"),
        ("/etc/passwd", None, "verbs.names-invalid"),
        ("nowhere.csv", None, "verbs.names-invalid"),
        ('daisy, "rose', None, "verbs.names-invalid"),
    ],
)
def test_names_that_are_unclear_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, content: bytes | None, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(text).write_bytes(content)
    with refused(code, "--classes"):
        named_classes(text)


def test_a_single_name_is_refused(place: Path) -> None:
    for given in ("daisy", ["daisy"]):
        with refused("language.classes-few", "daisy"):
            package.predict(place / "clip", place / "photos", names=package.Names(classes=given))


PAGE = Path(__file__).parents[2] / "docs" / "guide" / "words.md"


@pytest.fixture
def guide(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(place / "clip", tmp_path / "clip-vit-base-patch32")
    shutil.copytree(place / "siglip", tmp_path / "siglip-base-patch16-224")
    names = ("daisy", "rose", "tulip")
    for i, name in enumerate(names * 6):
        save(noise(16, 16, i), tmp_path / "photos" / f"{i}.png")
        save(noise(16, 16, i), tmp_path / "labelled" / name / f"{i}.png")
    (tmp_path / "PHOTOS").symlink_to("labelled")
    (tmp_path / "names.txt").write_text("\n".join(names))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_and_program_runs(guide: Path, vitkit: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ vitkit ")]
    assert len(commands) == 6
    for command in commands:
        quickly = ("--epochs", 1) if command.startswith("vitkit train") else ()
        outcome = vitkit(*shlex.split(command)[1:], *quickly)
        assert outcome.code == 0, outcome.err
    (program,) = re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S)
    exec(compile(program, str(PAGE), "exec"), {})
    assert (guide / "flowers" / "model.json").is_file()
    assert (guide / "answers.csv").is_file()
