"""Names that a spreadsheet or a terminal would act upon: harmless where these read them, exact where we do."""

import csv
import io
import re
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from refusals import refused
from vitkit.data import Preprocess, read_source
from vitkit.errors import VitkitError
from vitkit.evaluation import LabelError, write_label_errors
from vitkit.inference import ENCODING, Columns, Csv, JsonLines
from vitkit.inference.prediction import Ranking, rank
from vitkit.model import ViTConfig
from vitkit.text import as_typed, harmless, restored, sentence, visible, workbook
from vitkit.text.pages import write_page
from vitkit.training import Recipe

names = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("=+-@'\\\x1b\x9b\x7f\t\r\n;,\"\udc80\udcff"), min_size=1
)
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@given(names)
@example("a;=2+2.jpg")
@settings(max_examples=300)
def test_what_is_made_harmless_is_restored(text: str) -> None:
    """Without commands for spreadsheets and, as what is said has none either, for terminals."""
    cell = harmless(text)
    assert restored(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\n", "\r"))
    assert not _COMMANDS.search(cell) and not _COMMANDS.search(visible(text))
    assert all(not part.strip(" '\"").startswith(("=", "+", "-", "@")) for part in cell.split(";")[1:])


@pytest.mark.parametrize("plain", ["cat", "a-b", "C:\\x1b.png", "\\\\server\\a", "'quoted'", "it's", "ümlaut"])
def test_ordinary_names_stay_as_they_are(plain: str) -> None:
    assert harmless(plain) == restored(plain) == plain


@given(path=names, classes=st.lists(names, min_size=2, max_size=5, unique=True), data=st.data())
@settings(max_examples=100)
def test_a_row_of_predictions_is_read_as_it_was_written(path: str, classes: list[str], data: st.DataObject) -> None:
    scores = [data.draw(st.floats(0, 1, width=32)) for _ in classes]
    assume(sum(scores) > 0)
    probabilities = np.array(scores, np.float32) / np.float32(sum(scores))
    familiar = data.draw(st.none() | st.floats(0.001, 1))
    top, reject = data.draw(st.integers(1, len(classes))), data.draw(st.none() | st.floats(0.01, 1))
    columns = Columns(top=top, reject=reject, has_familiar=familiar is not None)
    prediction = rank(path, Ranking(tuple(classes), probabilities), None, familiar)
    expected = columns.row(prediction)
    for form in (Csv(columns), JsonLines(columns)):
        (record,) = form.records(io.BytesIO(form.encode(prediction).encode(*ENCODING)))
        found = form.decode(record.decode(*ENCODING))
        assert (found.path, found.label, found.is_rejected) == (expected.path, expected.label, expected.is_rejected)
        assert [name for name, _ in found.top] == [name for name, _ in expected.top]
        numbers = [[row.confidence, row.familiar or 0, *(p for _, p in row.top)] for row in (found, expected)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)
    cells = next(csv.reader([Csv(columns).encode(prediction)], strict=True))
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


@given(st.lists(names.map(str.strip).filter(bool), min_size=2, max_size=6, unique=True))
@settings(max_examples=30)
def test_lists_of_labels_are_read_as_written(tmp_path_factory: pytest.TempPathFactory, labels: list[str]) -> None:
    labels = [f"{label}{i}" for i, label in enumerate(labels) if not set(label) & set(";|\x00")]  # none joins others
    if len(set(labels)) < 2 or any("\udc80" <= own <= "\udfff" for label in labels for own in label):
        return
    file = tmp_path_factory.mktemp("labels") / "label_errors.csv"
    write_label_errors(file, [LabelError(f"{label}.png", label, "other", 0.5, 0.1) for label in labels])
    table = read_source(file)
    assert [table.name_of(i) for i in range(len(table))] == labels
    assert list(table.paths) == [f"{label}.png".strip() for label in labels]


def test_a_sentence_keeps_names_that_it_begins_with() -> None:
    for text, expected in {
        "the model is better": "The model is better.",
        "pre-trained, it is better!": "Pre-trained, it is better!",
        "vit_tiny@none is better": "vit_tiny@none is better.",
        "timm:resnet18 is worse.": "timm:resnet18 is worse.",
        "6 images": "6 images.",
    }.items():
        assert sentence(text) == expected


def test_what_means_the_same_is_taken_and_nothing_is_guessed() -> None:
    taken: list[tuple[Any, Any, Any]] = [(float, 1, 1.0), (tuple[float, float], [0, 1], (0.0, 1.0))]
    taken += [(tuple[int, ...] | None, None, None), (str, Path("a"), "a"), (Literal["a", "b"] | None, "b", "b")]
    for hint, value, expected in taken:
        found = as_typed("field", hint, value)
        assert (found, type(found)) == (expected, type(expected))
    wrong: list[tuple[Any, Any]] = [(int, True), (int, 2.0), (int | None, "2"), (bool, 1), (float, float("nan"))]
    wrong += [(float, float("inf")), (str, 3), (str, None), (Literal["a", "b"], "c"), (Literal["a", "b"], ["a"])]
    wrong += [(float, 10**400), (tuple[int, ...], [1, "2"]), (tuple[int, ...], "12"), (tuple[float, float], [0.5])]
    for hint, value in wrong:
        with refused("text.value-wrong", "field"):
            as_typed("field", hint, value)
    with refused("text.value-wrong", "epochs", "'3'"):
        Recipe(epochs="3")  # type: ignore[arg-type]
    assert Recipe(split=[0.5, 0.25, 0.25]).split == (0.5, 0.25, 0.25)  # type: ignore[arg-type]


_PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=3)
)


@settings(max_examples=60)
@given(data=st.data(), value=_PLAIN | st.dictionaries(st.text(max_size=2), _PLAIN, max_size=2))
def test_every_configuration_takes_a_plain_value_or_refuses_it_in_a_line(data: st.DataObject, value: Any) -> None:
    """Whatever a damaged or hostile file says."""
    kind, make = data.draw(
        st.sampled_from([(ViTConfig, ViTConfig.from_dict), (Preprocess, Preprocess.from_dict), (Recipe, Recipe.of)])
    )
    name = data.draw(st.sampled_from(sorted(kind.__dataclass_fields__)))
    fields: dict[str, Any] = {"size": (16, 16)} if kind is Preprocess else {}
    try:
        made = make({**fields, name: value})  # type: ignore[operator]
    except VitkitError as error:
        assert "\n" not in str(error).replace(repr(value), "").strip()
    else:
        assert getattr(made, name) is not None or value is None


MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def read(file: Path) -> list[dict[str, Any]]:
    """The cells of each row by their column's letters."""
    restore = partial(re.sub, "_x([0-9A-Fa-f]{4})_", lambda match: chr(int(match[1], 16)))
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))
    rows = []
    for row in sheet.iter(f"{MAIN}row"):
        cells: dict[str, Any] = {}
        for cell in row:
            assert cell.find(f"{MAIN}f") is None, "a formula"
            text = cell.find(f"{MAIN}is/{MAIN}t")
            value = cell.findtext(f"{MAIN}v")
            letters = str(cell.get("r")).rstrip("0123456789")
            cells[letters] = float(str(value)) if text is None else restore(text.text or "")
        rows.append(cells)
    return rows


@settings(max_examples=15)
@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.floats(0, 1)), max_size=4))
def test_every_text_and_number_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    file = tmp_path_factory.mktemp("book") / "a.xlsx"
    rows = [*rows, ("=1+1", 0.5), ("_x0041_", None), ("a\x07\nb & <c>", 1.0), ("\r\t ", 0.25)]
    workbook.write_workbook(file, ("path", "confidence"), [*rows, ("caf\udce9.jpg", None)])
    rows.append(("caf\\udce9.jpg", None))  # a name that is not UTF-8 can be recognised
    expected = [{"A": text, **({} if number is None else {"B": number})} for text, number in rows]
    assert read(file) == [{"A": "path", "B": "confidence"}, *expected]


def test_a_page_is_utf_8_whatever_a_file_is_called(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "title", "caf\udce9.png")
    assert "caf?.png" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_more_rows_than_a_sheet_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook, "ROWS", 3)
    workbook.write_workbook(tmp_path / "a.xlsx", ["path"], [["a"], ["b"]])
    with refused("text.table-long"):
        workbook.write_workbook(tmp_path / "b.xlsx", ["path"], [["a"], ["b"], ["c"]])
    assert [file.name for file in tmp_path.iterdir()] == ["a.xlsx"]
    assert len(read(tmp_path / "a.xlsx")) == 3


def test_columns_have_the_letters_of_spreadsheets(tmp_path: Path) -> None:
    workbook.write_workbook(tmp_path / "a.xlsx", [str(number) for number in range(1, 704)], [])
    letters = {number: letter for letter, number in read(tmp_path / "a.xlsx")[0].items()}
    assert [letters[number] for number in ("1", "26", "27", "52", "703")] == ["A", "Z", "AA", "AZ", "AAA"]
