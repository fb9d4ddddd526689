"""A label file changes the pictures that it names and no other, and says what it changed and what it could not."""

import unicodedata
from pathlib import Path

import pytest

from photos import folder, noise, save
from refusals import refused
from vitkit.data import (
    EXCLUDED,
    Edit,
    ImageTable,
    add_edits,
    correct,
    labels_of,
    read_corrected,
    read_labels,
    read_source,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return folder(tmp_path / "data", {"cat": 3, "dog": 3})


def labelled(table: ImageTable) -> dict[str, str]:
    return dict(labels_of(table))


def corrected(data: Path, *edits: Edit) -> ImageTable:
    file = data.parent / "labels.csv"
    file.unlink(missing_ok=True)
    add_edits(file, edits)
    return read_corrected(data, file)


def test_named_pictures_change_and_no_others_and_later_rows_win(data: Path) -> None:
    before = labelled(read_source(data))
    table = corrected(data, Edit("cat/cat_1.png", "dog", "cat"), Edit("dog/dog_0.png", EXCLUDED, "dog"))
    expected = before | {"cat/cat_1.png": "dog"}
    del expected["dog/dog_0.png"]
    assert labelled(table) == expected
    (line,) = table.corrections
    assert "1 picture with another label" in line and "1 picture left out" in line and table.unmatched == ()
    assert labelled(read_source(data)) == before
    assert read_corrected(data, None) == read_source(data)
    rows = [Edit("cat/cat_1.png", "dog"), Edit("cat/cat_1.png", EXCLUDED), Edit("cat/cat_1.png", "fox")]
    assert labelled(corrected(data, *rows))["cat/cat_1.png"] == "fox"
    assert labelled(corrected(data, *rows, Edit("cat/cat_1.png", "cat"))) == before


def test_paths_may_be_absolute_through_links_and_in_other_spellings(data: Path, tmp_path: Path) -> None:
    save(noise(seed=99), data / "cat" / unicodedata.normalize("NFD", "café.png"))
    (tmp_path / "link").symlink_to(data)
    for path in (str(tmp_path / "link" / "cat" / "cat_1.png"), "./cat/../cat/cat_1.png", " cat/cat_1.png "):
        table = corrected(data, Edit(path, "dog"))
        assert labelled(table)["cat/cat_1.png"] == "dog" and table.unmatched == (), path
    table = corrected(data, Edit(unicodedata.normalize("NFC", "cat/café.png"), "dog"))
    assert table.counts() == {"cat": 3, "dog": 4}


def test_a_class_that_looks_the_same_is_one_however_it_is_written(tmp_path: Path) -> None:
    apart, together = (unicodedata.normalize(form, "röse") for form in ("NFD", "NFC"))
    data = folder(tmp_path / "data", {apart: 2, "dog": 4})
    table = corrected(data, Edit("dog/dog_0.png", together), Edit("dog/dog_1.png", apart))
    assert table.classes == ("dog", apart) and table.counts() == {"dog": 2, apart: 4}
    new = (unicodedata.normalize("NFC", "élan"), unicodedata.normalize("NFD", "élan"), "dog\u200b")
    table = corrected(data, *(Edit(f"dog/dog_{i}.png", name) for i, name in enumerate(new)))
    assert table.counts() == {"dog": 2, apart: 2, unicodedata.normalize("NFC", "élan"): 2}


def test_rows_that_match_no_picture_are_said(data: Path) -> None:
    table = corrected(data, *(Edit(f"cat/none_{i}.png", "dog") for i in range(5)), Edit("cat_1.png", EXCLUDED))
    assert labelled(table) == labelled(read_source(data))
    (line,) = table.unmatched
    assert "6 paths of labels.csv" in line and "cat/none_0.png, cat/none_1.png, cat/none_2.png and 3 more" in line
    save(noise(seed=50), data / "new.png")  # a run is not given pictures that it does not know
    add_edits(data.parent / "run.csv", [Edit("new.png", "cat"), Edit("cat/cat_1.png", "dog")])
    after = correct(read_source(data), read_labels(data.parent / "run.csv"), may_add=False)
    assert labelled(after) == labelled(read_source(data)) | {"cat/cat_1.png": "dog"}


def test_new_classes_appear_and_empty_ones_go_with_a_line_but_not_the_last_but_one(data: Path) -> None:
    table = corrected(data, *(Edit(f"cat/cat_{i}.png", EXCLUDED) for i in range(3)), Edit("dog/dog_0.png", "ape"))
    assert table.classes == ("ape", "dog")  # sorted, as class folders are
    for said in ("adds the class ape", "no picture in the class cat"):
        assert any(said in line for line in table.corrections)
    with refused("data.class-single"):
        corrected(data, *(Edit(f"cat/cat_{i}.png", "dog") for i in range(3)))
    with refused("data.images-missing"):
        corrected(data, *(Edit(path, EXCLUDED) for path in labelled(read_source(data))))


def test_pictures_in_the_folder_and_in_no_class_are_added(data: Path) -> None:
    save(noise(seed=50), data / "new.png")
    save(noise(seed=51), data / "other.png")
    table = corrected(data, Edit("new.png", "cat"), Edit("other.png", "cat"), Edit("other.png", EXCLUDED))
    assert labelled(table) == labelled(read_source(data)) | {"new.png": "cat"}
    assert "1 picture added" in table.corrections[0]
    outside = save(noise(seed=52), data.parent / "outside.png")
    assert "match" in corrected(data, Edit(str(outside), "cat")).unmatched[0]


def test_splits_stay_and_what_is_added_takes_that_of_its_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for split in ("train", "val"):
        folder(data / split, {"cat": 2, "dog": 2})
    save(noise(seed=60), data / "train" / "new.png")
    save(noise(seed=61), data / "nowhere.png")
    before = dict(zip((table := read_source(data)).paths, table.splits, strict=True))
    after = corrected(data, Edit("train/new.png", "cat"), Edit("nowhere.png", "cat"), Edit("val/cat/cat_0.png", "dog"))
    assert dict(zip(after.paths, after.splits, strict=True)) == before | {"train/new.png": "train"}
    (line,) = after.unmatched
    assert "outside the folders" in line and "nowhere.png" in line


def test_a_heap_of_pictures_has_the_classes_of_its_label_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for i in range(6):
        save(noise(seed=i), data / f"{i}.png")
    table = corrected(data, Edit("0.png", "a"), Edit("1.png", "b"), Edit("2.png", "a"), Edit("3.png", EXCLUDED))
    assert labelled(table) == {"0.png": "a", "1.png": "b", "2.png": "a"}
    assert any(line.startswith("2 pictures without a label") for line in table.corrections)
    several = corrected(data, Edit("0.png", "a;b"), Edit("1.png", "b"), Edit("2.png", ";"))
    assert several.task.name == "multi"
    assert labelled(several) == {"0.png": "a;b", "1.png": "b", "2.png": ";"}
    named = folder(tmp_path / "named", {"cat": 3, "dog": 3, "unlabelled": 3})  # which is no class then
    table = corrected(named, Edit("unlabelled/unlabelled_1.png", "dog", "unlabelled"))
    assert table.counts() == {"cat": 3, "dog": 4}
    assert any(line.startswith("2 pictures without a label") for line in table.corrections)


def test_several_classes_where_pictures_have_one_are_refused_with_the_line(data: Path) -> None:
    with refused("data.label-several-classes", "line 3"):
        corrected(data, Edit("cat/cat_0.png", "dog"), Edit("cat/cat_1.png", "cat;dog"))
    folder(data, {"a;b": 2})  # which is one class, by its folder
    assert labelled(corrected(data, Edit("cat/cat_1.png", "a;b")))["cat/cat_1.png"] == "a;b"


def test_pictures_of_several_classes(tmp_path: Path) -> None:
    for i in range(4):
        save(noise(seed=i), tmp_path / f"{i}.png")
    (tmp_path / "data.csv").write_text('path,labels\n0.png,"a;b"\n1.png,b\n2.png,\n3.png,a\n')
    edits = Edit("0.png", " c ; a;c"), Edit("1.png", ";"), Edit("2.png", "b"), Edit("3.png", EXCLUDED)
    table = corrected(tmp_path / "data.csv", *edits)
    assert labelled(table) == {"0.png": "a;c", "1.png": ";", "2.png": "b"}
    assert table.classes == ("a", "b", "c")


def test_labels_that_the_data_no_longer_have_or_that_nobody_changed_are_told(data: Path) -> None:
    stale = corrected(data, Edit("cat/cat_0.png", "dog", "fox"))
    assert any("cat/cat_0.png" in line and "in another class of the data" in line for line in stale.corrections)
    # The same file over labels that it has corrected already, as a run's are, says nothing new.
    again = correct(stale, read_labels(data.parent / "labels.csv"))
    assert again.corrections[len(stale.corrections) :] == ("labels.csv: changes no label",)
    file = data.parent / "label_errors.csv"
    file.write_text("path,label,suggested,score\ncat/cat_0.png,cat,dog,0.9\ncat/cat_1.png,cat,dog,0.8\n")
    with refused("data.labels-unchanged"):
        read_corrected(data, file)
