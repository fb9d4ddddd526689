"""`predict --classes` and `search`: words in the place of a model that was trained on them."""

import csv
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit as package
import wordy
from photos import noise, save
from vitkit.errors import VitkitError
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
EXACT = package.Compute(backend="eager", precision="float32")


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
    with pytest.raises(VitkitError, match="has only 'daisy'"):
        package.zero_shot(place / "siglip", ["daisy"], one=True)


def test_classes_and_templates_by_the_command(place: Path, vitkit: Any) -> None:
    templates = ("--template", "a {}", "--template", "the {}")
    asked = ("predict", place / "clip", place / "photos", "--backend", "eager", *templates)
    first = vitkit(*asked, "--classes", "daisy, rose,red tulip")
    second = vitkit(*asked, "--classes", place / "classes.txt")
    assert first.code == second.code == 1
    assert first.out == second.out
    rows = list(csv.DictReader(io.StringIO(first.out)))
    assert len(rows) == 5
    assert {row["label"] for row in rows if not row["error"]} <= set(CLASSES)
    assert "exactly one (softmax) of 3 classes, given by name in the text 'a {}', 'the {}'" in first.err


def test_what_goes_with_classes_alone_is_refused_without_them(place: Path) -> None:
    with pytest.raises(VitkitError, match="templates requires classes by name"):
        package.predict(place / "clip", place / "photos", names=package.Names(templates=["a {}"]))
    with pytest.raises(VitkitError, match="not a classifier in memory"):
        package.predict(
            package.zero_shot(place / "clip", CLASSES), place / "photos", names=package.Names(classes=CLASSES)
        )
    with pytest.raises(VitkitError, match="cannot be read"):
        named_classes("nowhere.txt")


def test_the_images_that_a_text_describes_best(place: Path, theirs: dict[str, Any]) -> None:
    model, tokenizer = theirs["clip"]
    own = package.zero_shot(place / "clip", CLASSES)
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
    ("asked", "message"),
    [
        ({"text": "  "}, "text to search for is empty"),
        ({"text": "a dog", "near": "0.png"}, "^text and near are two ways"),
        ({"text": "a dog", "what": "mean"}, "leave out what mean"),
        ({"text": "a dog", "shard": "1/2"}, "leave out shard"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(place: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(VitkitError, match=message):
        package.embed(place / "clip", place / "photos", **asked)


def test_a_search_among_nothing_or_without_a_text_encoder_is_refused(place: Path) -> None:
    with pytest.raises(VitkitError, match="can be read"):
        package.embed(place / "clip", place / "photos" / "broken.png", text="a dog")
    with pytest.raises(VitkitError, match="not a classifier in memory"):
        package.embed(package.zero_shot(place / "clip", CLASSES), place / "photos", text="a dog")


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
    tokens = torch.tensor(
        wordy.ids(tokenizer, [f"This is a photo of {name}." for name in ("rose", "daisy", "red tulip")])
    )
    own = package.zero_shot(place / "siglip", ["rose", "daisy", "red tulip"])
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


def test_zero_shot_figures_by_the_command(place: Path, labelled: Path, vitkit: Any) -> None:
    names = place / "labels.txt"
    names.write_text("daisy\nred tulip\nrose\n")
    asked = ("eval", place / "clip", labelled, "--classes", names, "--template", "a {}", "--template", "the {}")
    told = vitkit(*asked, "--json", "--out", place / "judged")
    assert told.code == 0
    spoken = package.Names(classes=names.read_text().split("\n"), templates=["a {}", "the {}"])
    expected = package.evaluate(place / "clip", labelled, names=spoken)
    assert json.loads(told.out)["accuracy"] == expected.accuracy
    assert json.loads(told.out)["zero_shot"] == ["a {}", "the {}"]
    told_there = "by the class names alone, as &#x27;a {}&#x27;, &#x27;the {}&#x27;"
    assert told_there in (place / "judged" / "report.html").read_text()


def test_names_that_are_of_no_images_and_images_without_a_name_are_refused(place: Path, labelled: Path) -> None:
    for classes, said in (
        ("daisy, rose", "has images of red_tulip, which are not named"),
        ("daisy, rose, red tulip, pansy", "has no images of pansy"),
        ("daisy, rose, tulip", "has no images of tulip and images of red_tulip, which are not named"),
        ("daisy, daisy", "contains 'daisy' twice"),
    ):
        with pytest.raises(VitkitError, match=said):
            package.evaluate(place / "clip", labelled, names=package.Names(classes=classes))
    with pytest.raises(VitkitError, match="templates requires classes by name"):
        package.evaluate(place / "clip", labelled, names=package.Names(templates=["a {}"]))
    with pytest.raises(VitkitError, match="has no record of its data"):
        package.evaluate(place / "clip", names=package.Names(classes="daisy"))


# --- What --classes names ---------------------------------------------------------------------------------

NAMED = ["daisy", "rose", "red tulip"]


def test_names_may_be_separated_and_quoted_as_people_do() -> None:
    for text in (
        " daisy , rose,  red tulip ",
        "daisy;rose;red tulip",
        "daisy\uff0crose\u3001red tulip",
        "daisy\nrose\nred tulip\n",
        '"daisy","rose", "red tulip"',
        "'daisy', 'rose', 'red tulip'",
        "\u201cdaisy\u201d, \u201crose\u201d, \u201cred tulip\u201d",
    ):
        assert named_classes(text) == NAMED, text
    assert named_classes('"daisy, the common one", rose') == ["daisy, the common one", "rose"]


def test_many_names_are_no_path_though_they_have_a_dot() -> None:
    names = [f"St. Bernard {i}" for i in range(400)]
    assert named_classes(", ".join(names)) == names


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("list.txt", "daisy\nrose\n\nred tulip\n"),
        ("list.TXT", "\ufeffdaisy\r\nrose\r\nred tulip\r\n"),
        ("line.txt", "daisy, rose, red tulip\n"),
        ("one.csv", "daisy\nrose\nred tulip\n"),
        ("named.csv", "class\ndaisy\nrose\nred tulip\n"),
        ("LIST.CSV", "id;Name\n1;daisy\n2;rose\n3;red tulip\n"),
        ("labels.csv", "path,label\na.jpg,daisy\nb.jpg,rose\nc.jpg,daisy\nd.jpg,red tulip\n"),
        ("list.tsv", "label\tnumber\ndaisy\t1\nrose\t2\nred tulip\t3\n"),
        ("list.json", '["daisy", "rose", "red tulip"]'),
        ("class_indices.json", '{"1": "rose", "0": "daisy", "2": "red tulip"}'),
        ("other_way.json", '{"daisy": 0, "red tulip": 2, "rose": 1}'),
    ],
)
def test_names_may_be_in_a_file(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content, encoding="utf-8")
    assert named_classes(str(tmp_path / file)) == NAMED


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"path,id\na,1\nb,2\n", "needs a column called class, label or name; it has: path, id"),
        (b"caf\xe9\nrose\n", "is not in UTF-8"),
        ("daisy\nrose\n".encode("utf-16"), "but in UTF-16"),
        (b"daisy\nrose;tulip\n", "contains a semicolon"),
    ],
)
def test_a_list_that_is_unclear_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(VitkitError, match=said):
        named_classes(str(tmp_path / "list.csv"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/etc/passwd", "/etc/passwd is not a list of classes: expected a .txt, .csv, .tsv, .json file, or names"),
        ("/", "/ is not a list of classes"),
        ("nowhere.csv", "nowhere.csv: cannot be read"),
        ("daisy, rose;tulip", "'rose;tulip' contains a semicolon"),
        ('daisy, "rose', "a quote is not closed"),
    ],
)
def test_text_that_is_no_names_is_refused(text: str, said: str) -> None:
    with pytest.raises(VitkitError, match=said):
        named_classes(text)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ("daisy", "^classes has only 'daisy', which would be the prediction for every image"),
        ("daisy\u200b, rose", r"U\+200B ZERO WIDTH SPACE, which is invisible: remove it"),
        ("dai\u00adsy, rose", r"U\+00AD SOFT HYPHEN"),
        ("\ufeffdaisy, rose", r"U\+FEFF ZERO WIDTH NO-BREAK SPACE"),
        ("\u3164, rose", r"U\+3164 HANGUL FILLER"),
        ("daisy, ro\x1bse", r"U\+001B"),
        ("da\udcffisy, rose", "the byte 0xFF, which is not UTF-8"),
        ("ros\u00e9, rose\u0301", r"look the same, and differ in U\+0301"),
    ],
)
def test_names_that_nobody_can_mean_are_refused(place: Path, classes: str, said: str) -> None:
    for given in (classes, [own.strip() for own in classes.split(",")]):
        with pytest.raises(VitkitError, match=said):
            package.predict(place / "clip", place / "photos", names=package.Names(classes=given))


# --- The commands of docs/guide/words.md run --------------------------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "guide" / "words.md"
NAMES_OF_THE_GUIDE = ("daisy", "rose", "tulip")


@pytest.fixture
def guide(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(place / "clip", tmp_path / "clip-vit-base-patch32")
    shutil.copytree(place / "siglip", tmp_path / "siglip-base-patch16-224")
    for i, name in enumerate(NAMES_OF_THE_GUIDE * 6):
        save(noise(16, 16, i), tmp_path / "photos" / f"{i}.png")
        save(noise(16, 16, i), tmp_path / "labelled" / name / f"{i}.png")
    (tmp_path / "PHOTOS").symlink_to("labelled")
    (tmp_path / "names.txt").write_text("\n".join(NAMES_OF_THE_GUIDE))
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
