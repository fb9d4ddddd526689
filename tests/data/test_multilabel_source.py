"""Images of several classes, or none: from the CSV to the split and back."""

import csv
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import photos
from refusals import refused
from vitkit.data import (
    MULTI_LABEL,
    SINGLE_LABEL,
    ImageTable,
    examine,
    fold,
    limit_training,
    read_source,
    split,
    split_from_file,
    split_to_dict,
)


def csv_of(folder: Path, *rows: str, header: str = "path,labels") -> Path:
    file = folder / "all.csv"
    file.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return file


def names_of(table: ImageTable) -> list[str]:
    return [table.name_of(i) for i in range(len(table))]


def table_of(own: list[tuple[int, ...]], classes: int, splits: list[str | None] | None = None) -> ImageTable:
    sets, labels = MULTI_LABEL.encode([tuple(sorted(labels)) for labels in own])
    names, paths = tuple(f"c{k}" for k in range(classes)), tuple(f"{i}.png" for i in range(len(own)))
    return ImageTable("some", Path("/photos"), names, paths, labels, tuple(splits or [None] * len(own)), sets=sets)


def random_sets(images: int, classes: int, seed: int) -> list[tuple[int, ...]]:
    """Classes from common to rare, some of them going together."""
    rng = np.random.default_rng(seed)
    chances = np.geomspace(0.5, 3 / images, classes)
    has = rng.random((images, classes)) < chances
    has[:, 1] |= has[:, 0] & (rng.random(images) < 0.7)
    has[rng.integers(images, size=classes), np.arange(classes)] = True  # every class has an image
    return [tuple(np.flatnonzero(row).tolist()) for row in has]


def test_names_are_split_stripped_sorted_and_counted_once(tmp_path: Path) -> None:
    table = read_source(csv_of(tmp_path, "a.png, dog ;cat", "b.png,", "c.png,cat;cat;", "d.png,;", "e.png,Zebra"))
    assert table.task is MULTI_LABEL
    assert table.classes == ("Zebra", "cat", "dog")
    assert names_of(table) == ["cat;dog", "", "cat", "", "Zebra"]
    assert [table.set_targets()[table.labels[i]] for i in range(3)] == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert table.counts() == {"Zebra": 1, "cat": 2, "dog": 1}
    small = table.take([1, 2]).compact()
    assert small.classes == ("cat",) and names_of(small) == ["", "cat"] and small.sets == ((), (0,))


@pytest.mark.parametrize(
    ("header", "rows", "names"),
    [
        ("filename,LABELS", ("a.png,cat", "b.png,dog"), ["cat", "dog"]),
        ("path,label", ("a.png,cat;dog", "b.png,dog", "c.png,"), ["cat;dog", "dog", ""]),
        ("path;labels;split", ('a.png;"cat;dog";train', "b.png;;val"), ["cat;dog", ""]),
    ],
)
def test_what_is_of_several_classes(tmp_path: Path, header: str, rows: tuple[str, ...], names: list[str]) -> None:
    table = read_source(csv_of(tmp_path, *rows, header=header))
    assert table.task is MULTI_LABEL and names_of(table) == names
    assert table.splits == (("train", "val") if "split" in header else (None,) * len(rows))
    single = read_source(csv_of(tmp_path, "a.png,cat", "b.png,dog", header="path,label"))
    assert single.task is SINGLE_LABEL and single.sets == () and single.labels == (0, 1)


@pytest.mark.parametrize(
    ("header", "rows", "code"),
    [
        ("path,label", ("a.png,cat", "b.png,"), "data.label-missing"),
        ("path,labels", ("a.png,", "b.png,;"), "data.classes-missing"),
        *((f"path,{title}", ("a.png,cat,dog",), "data.cells-too-many") for title in ("label", "labels")),
    ],
)
def test_labels_that_cannot_be_meant_are_refused(tmp_path: Path, header: str, rows: tuple[str, ...], code: str) -> None:
    with refused(code):
        read_source(csv_of(tmp_path, *rows, header=header))


_NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters=";|,/+& []{}()"), min_size=1
)


@given(st.lists(st.sets(_NAMES.map(str.strip).filter(bool), max_size=4), min_size=2).filter(any))
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_any_names_survive_csv_and_split_json(tmp_path_factory: pytest.TempPathFactory, own: list[set[str]]) -> None:
    folder = tmp_path_factory.mktemp("csv")
    rows = [(f"{i}.png", ";".join(labels), "train") for i, labels in enumerate(own)]
    with (folder / "all.csv").open("w", encoding="utf-8", newline="") as text:
        csv.writer(text).writerows([("path", "labels", "split"), *rows])
    table = read_source(folder / "all.csv")
    assert [{*table.name_of(i).split(";")} - {""} for i in range(len(table))] == own
    (folder / "split.json").write_text(json.dumps(split_to_dict(table)), encoding="utf-8")
    again = split_from_file(folder / "split.json")
    assert dict(zip(again.paths, names_of(again), strict=True)) == dict(zip(table.paths, names_of(table), strict=True))
    assert again.classes == table.classes and again.task is MULTI_LABEL


@given(seed=st.integers(0, 10**6), images=st.integers(12, 400), classes=st.integers(2, 12))
@settings(max_examples=25)
def test_every_class_is_in_train_with_about_the_shares_asked_for(seed: int, images: int, classes: int) -> None:
    table = split(table_of(random_sets(images, classes, seed), classes), (0.7, 0.1, 0.2), seed)
    parts = {name: table.of_split(name).counts() for name in ("train", "val", "test")}
    little = split(replace(table, splits=(None,) * images), (0.1, 0.1, 0.8), seed).of_split("train")
    assert all(little.counts().values())
    for name, count in table.counts().items():
        assert parts["train"][name] >= 1
        # One class in 10,000 with 20 to 29 images has none in val or in test, as its images have rarer classes.
        if count >= 40:
            assert abs(parts["train"][name] / count - 0.7) < 0.2
            assert parts["val"][name] and parts["test"][name]
    assert abs(table.splits.count("test") - 0.2 * images) <= classes + 8


def test_groups_stay_together_given_splits_stay_and_the_seed_decides() -> None:
    table, groups = table_of(random_sets(120, 5, 3), 5), [i // 3 for i in range(120)]
    one, again, other = (split(table, (0.6, 0.2, 0.2), seed, groups).splits for seed in (7, 7, 8))
    assert all(len({one[3 * g + k] for k in range(3)}) == 1 for g in range(40))
    assert one == again != other
    given_splits: list[str | None] = ["test" if i % 5 == 0 else "train" for i in range(60)]
    table = split(table_of(random_sets(60, 3, 1), 3, given_splits), (0.7, 0.1, 0.2), 0)
    assert [own == "test" for own in table.splits] == [own == "test" for own in given_splits]
    assert 3 <= table.splits.count("val") <= 10


def test_folds_share_every_class_equally_and_keep_groups() -> None:
    table = table_of(random_sets(300, 6, 5), 6)
    groups = [i // 2 for i in range(300)]
    fold_of = fold(table, 5, 0, groups)
    assert set(fold_of) == set(range(5))
    assert all(fold_of[2 * g] == fold_of[2 * g + 1] for g in range(150))
    for label, count in enumerate(table.counts().values()):
        have = Counter(fold_of[i] for i in range(300) if label in table.classes_of(i))
        assert max(have.values()) - min(have[k] for k in range(5)) <= 3 + 0.1 * count
    with refused("data.folds-invalid"):
        fold(table, 300, 0)


@given(seed=st.integers(0, 10**6), limit=st.integers(6, 70))
@settings(max_examples=30)
def test_a_limit_keeps_every_class_and_is_nested(seed: int, limit: int) -> None:
    table = split(table_of(random_sets(100, 6, seed), 6), (0.7, 0.1, 0.2), seed)
    some, more = (limit_training(table, images, seed) for images in (limit, limit + 7))
    for name in ("val", "test"):
        assert some.of_split(name) == table.of_split(name)
    kept = some.of_split("train")
    assert len(kept) == min(limit, len(table.of_split("train")))
    has = {label for i in range(len(kept)) for label in kept.classes_of(i)}
    assert has == {label for i, own in enumerate(table.splits) if own == "train" for label in table.classes_of(i)}
    assert set(kept.paths) <= set(more.of_split("train").paths)


def test_split_json_is_restored_with_its_hash_and_damage_is_noticed(tmp_path: Path) -> None:
    table = split(table_of(random_sets(40, 4, 0), 4), (0.5, 0.25, 0.25), 0)
    stored = split_to_dict(table)
    file = tmp_path / "split.json"
    file.write_text(json.dumps(stored))
    again = split_from_file(file)
    assert split_to_dict(again)["hash"] == stored["hash"]
    for name in ("train", "val", "test"):
        assert again.of_split(name).counts() == table.of_split(name).counts()
    train = stored["splits"]["train"]
    key = next(key for key in train if train[key])
    train[next(other for other in train if other != key)].append(train[key].pop())
    for damaged in (stored, {**stored, "splits": {"train": {"c0;unknown": []}}}):
        file.write_text(json.dumps(damaged))
        with refused("data.run-damaged"):
            split_from_file(file)


def test_a_single_label_split_json_is_what_it_always_was(tmp_path: Path) -> None:
    table = ImageTable("d", tmp_path, ("a", "b"), ("a/1", "b/1", "b/2"), (0, 1, 1), ("train", "train", "val"))
    content = {"classes": ["a", "b"], "splits": {"train": {"a": ["a/1"], "b": ["b/1"]}, "val": {"a": [], "b": ["b/2"]}}}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    wanted = {"data": "d", "root": str(tmp_path), "hash": digest, **content}
    assert json.dumps(split_to_dict(table)) == json.dumps(wanted)


def test_the_doctor_counts_each_class_and_finds_copies_with_other_classes(tmp_path: Path) -> None:
    for i in range(6):
        photos.save(photos.noise(seed=i), tmp_path / f"{i}.png")
    (tmp_path / "copy.png").write_bytes((tmp_path / "0.png").read_bytes())
    (tmp_path / "same.png").write_bytes((tmp_path / "1.png").read_bytes())
    rows = ["0.png,a;b", "1.png,a", "2.png,b", "3.png,", "4.png,b;c", "5.png,a", "copy.png,a", "same.png,a", "x.png,d"]
    diagnosis = examine(read_source(csv_of(tmp_path, *rows)))
    found = [str(finding) for finding in diagnosis.findings]
    for said in ("0.png = copy.png", "2 of 8 have several", "a (5), b (3), c (1)", "left out: d"):
        assert any(said in own for own in found)
    assert diagnosis.to_dict()["classes"] == {"a": 5, "b": 3, "c": 1}
    classes = {own["path"]: own["class"] for copies in diagnosis.to_dict()["copies"] for own in copies["images"]}
    assert classes == {"0.png": "a;b", "copy.png": "a", "1.png": "a", "same.png": "a"}
