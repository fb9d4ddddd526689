"""Names that a spreadsheet or a terminal would act upon: harmless where these read them, exact where we do."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vitkit.data import read_source
from vitkit.evaluation import LabelError, write_label_errors
from vitkit.inference import ENCODING, Columns, Csv, JsonLines, Prediction
from vitkit.text import harmless, restored, sentence, visible

HOSTILE = (
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\n=1",
    "'=1",
    "''=1",
    "'\\x1b",
    "\x1b[2J",
    "a\x9bb",
    "=\x1b\\x1b\\",
    "\r=1",
)
names = st.text(st.characters(codec="utf-8") | st.sampled_from("=+-@'\\\x1b\x9b\x7f\t\r\n;,\"\udc80\udcff"), min_size=1)
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@given(names)
@example("a;=2+2.jpg")
@settings(max_examples=500)
def test_what_is_made_harmless_is_restored(text: str) -> None:
    cell = harmless(text)
    assert restored(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\n", "\r"))
    assert not _COMMANDS.search(cell)
    assert all(not part.strip(" '\"").startswith(("=", "+", "-", "@")) for part in cell.split(";")[1:])


@given(st.text(st.sampled_from("'\\=x1b-"), max_size=8))
@settings(max_examples=500)
def test_no_two_texts_become_one_cell(text: str) -> None:
    assert restored(harmless(text)) == text
    assert harmless(restored(text)) == text or restored(text) == text or harmless(text) != text


@pytest.mark.parametrize("plain", ["cat", "a-b", "C:\\x1b.png", "\\\\server\\a", "'quoted'", "it's", "ümlaut"])
def test_ordinary_names_stay_as_they_are(plain: str) -> None:
    assert harmless(plain) == restored(plain) == plain


@given(path=names, label=names, reject=st.sampled_from([None, 0.9]))
@example(path="=1", label="-1", reject=None)
@settings(max_examples=300)
def test_a_row_of_predictions_is_read_as_it_was_written(path: str, label: str, reject: float | None) -> None:
    columns = Columns(top=2, reject=reject)
    prediction = Prediction(path, label, 0.75, ((label, 0.75), ("other", 0.25)))
    for form in (Csv(columns), JsonLines(columns)):
        (record,) = form.records(io.BytesIO(form.encode(prediction).encode(*ENCODING)))
        row = form.decode(record.decode(*ENCODING))
        assert row == columns.row(prediction)
    cells = next(csv.reader([Csv(columns).encode(prediction)], strict=True))
    assert not cells[0].startswith(("=", "+", "-", "@"))
    assert [own for own in cells[1:] if re.fullmatch(r"0\.\d{6}", own) and own != label] == ["0.750000", "0.250000"]


@given(st.lists(names.map(str.strip).filter(bool), min_size=2, max_size=6, unique=True))
@settings(max_examples=100)
def test_a_list_of_labels_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str]
) -> None:
    labels = [f"{label}{i}" for i, label in enumerate(labels) if not set(label) & set(";|\x00")]  # none joins others
    if len(set(labels)) < 2 or any("\udc80" <= own <= "\udfff" for label in labels for own in label):
        return
    file = tmp_path_factory.mktemp("labels") / "label_errors.csv"
    write_label_errors(file, [LabelError(f"{label}.png", label, "other", 0.5, 0.1) for label in labels])
    table = read_source(file)
    assert [table.name_of(i) for i in range(len(table))] == labels
    assert list(table.paths) == [f"{label}.png".strip() for label in labels]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_terminal_gets_no_commands(text: str) -> None:
    assert not _COMMANDS.search(visible(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the model is better", "The model is better."),
        ("none, of all: so", "None, of all: so."),
        ("vit_tiny@none is better", "vit_tiny@none is better."),
        ("timm:resnet18 is worse.", "timm:resnet18 is worse."),
        ("pre-trained, it is better!", "Pre-trained, it is better!"),
        ("6 images", "6 images."),
        ("\u201ca b\u201d is better", "\u201ca b\u201d is better."),
    ],
)
def test_a_sentence_keeps_names_that_it_begins_with(text: str, expected: str) -> None:
    assert sentence(text) == expected
