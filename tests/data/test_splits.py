"""Every image gets exactly one split, the classes in proportion, the same for the same seed."""

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refused
from vitkit.data import (
    SPLITS,
    ImageTable,
    fold,
    limit_training,
    merge_by_scene,
    split,
    split_from_file,
    split_to_dict,
    stratify,
)
from vitkit.data import table_of as table_of_rows
from vitkit.system import write_json

USUAL = (0.7, 0.1, 0.2)


def table_of(*images: int, splits: tuple[str | None, ...] = ()) -> ImageTable:
    """So many images of each class, in class order."""
    labels = [label for label, count in enumerate(images) for _ in range(count)]
    given_ = splits or (None,) * len(labels)
    rows = [
        (f"{label}/{i}.png", f"class {label}", own) for i, (label, own) in enumerate(zip(labels, given_, strict=True))
    ]
    return table_of_rows("made up", Path("/photos"), rows)


def counts(table: ImageTable, label: int) -> dict[str | None, int]:
    return dict(Counter(own for of, own in zip(table.labels, table.splits, strict=True) if of == label))


sizes = st.lists(st.integers(1, 60), min_size=1, max_size=5)
fractions = st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20)).map(
    lambda parts: tuple(part / sum(parts) for part in parts)
)


@given(images=sizes, parts=fractions, seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_images_are_in_one_split_in_proportion(images: list[int], parts: tuple[float, float, float], seed: int) -> None:
    before = table_of(*images)
    table = split(before, parts, seed)
    assert (table.paths, table.labels, table.classes) == (before.paths, before.labels, before.classes)
    assert set(table.splits) <= set(SPLITS)
    for label, n in enumerate(images):
        found = counts(table, label)
        assert found.get("train", 0) >= 1, "a class that is not trained on cannot be learnt"
        for name, part in zip(SPLITS[1:], parts[1:], strict=True):
            share = found.get(name, 0)
            if part == 0:
                assert share == 0
            elif n * parts[0] >= 3:  # else the class has too few to give
                assert share >= 1
                assert abs(share - n * part) <= 1


def test_splits_folds_and_limits_are_decided_by_their_seed_and_mix_the_order() -> None:
    table = table_of(40, 40)
    assert split(table, USUAL, 3) == split(table, USUAL, 3) != split(table, USUAL, 4)
    assert set(split(table_of(100), USUAL, 0).splits[:30]) == set(SPLITS)
    assert fold(table, 3, 1) == fold(table, 3, 1) != fold(table, 3, 2)
    assert set(fold(table, 3, 0)[:8]) == {0, 1, 2}
    done = split(table, USUAL, 0)
    assert limit_training(done, 20, 1) == limit_training(done, 20, 1) != limit_training(done, 20, 2)
    assert limit_training(done, 56, 1) == limit_training(done, 1000, 1) == done


def test_small_classes_give_to_train_first_then_test_then_val() -> None:
    for images, expected in enumerate(({"train"}, {"train", "test"}, {"train", "test", "val"}), 1):
        assert counts(split(table_of(images, 50), USUAL, 0), 0) == dict.fromkeys(expected, 1)


def test_images_that_came_split_stay_and_missing_splits_are_taken_from_train() -> None:
    for splits in (("train",) * 6 + ("val",) * 3 + ("test",), ("train",) * 6 + ("val",) * 4):
        assert split(table_of(5, 5, splits=splits), USUAL, 0).splits == splits
    straddling_groups = table_of(4, splits=("train", "train", "val", "test"))
    assert split(straddling_groups, USUAL, 0, [0, 0, 0, 0]) == straddling_groups
    table = table_of(40, 40, splits=(("train",) * 20 + ("test",) * 20) * 2)
    done = split(table, (0.7, 0.25, 0.05), 0)
    assert [counts(done, label) for label in (0, 1)] == [{"train": 15, "val": 5, "test": 20}] * 2
    assert all(new == "test" for old, new in zip(table.splits, done.splits, strict=True) if old == "test")
    done = split(table_of(100, splits=("train",) * 100), USUAL, 0)
    assert counts(done, 0) == {"train": 70, "val": 10, "test": 20}
    more = split(table_of(200, splits=("train",) * 200), USUAL, 0, kept=done.splits + (None,) * 100)
    assert more.splits[:100] == done.splits, "what an earlier run tested is not trained on"


def test_fractions_that_are_not_three_parts_of_one_are_refused() -> None:
    for bad in ((0.5, 0.5), (0.7, 0.1, 0.1), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1), (0.5, math.nan, 0.5)):
        with refused("data.fractions-invalid"):
            split(table_of(10, 10), bad, 0)


@given(images=sizes, limits=st.lists(st.integers(1, 200), min_size=2, max_size=2).map(sorted), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_a_limit_cuts_training_alone_in_proportion_and_nested(images: list[int], limits: list[int], seed: int) -> None:
    table = split(table_of(*images), USUAL, seed)
    trained = table.of_split("train")
    cut = []
    for limit in limits:
        if limit < min(len(images), len(trained)):
            with refused("data.limit-too-small", str(limit)):
                limit_training(table, limit, seed)
            return
        some = limit_training(table, limit, seed)
        kept = some.of_split("train")
        assert len(kept) == min(limit, len(trained))
        assert list(some.paths) == [path for path in table.paths if path in set(some.paths)], "in the table's order"
        for name in ("val", "test"):
            assert some.of_split(name) == table.of_split(name)
        for label in range(len(images)):
            share = trained.labels.count(label) * len(kept) / len(trained)
            assert kept.labels.count(label) >= 1
            assert abs(kept.labels.count(label) - share) <= len(images), (label, images, limit)
        cut.append(set(kept.paths))
    assert cut[0] <= cut[1]


def test_a_limit_is_in_proportion_to_the_image() -> None:
    some = limit_training(table_of(900, 100, splits=("train",) * 1000), 50, 0)
    assert Counter(some.labels) == {0: 45, 1: 5}


def test_the_hash_is_of_the_rows_not_of_where_they_lie() -> None:
    table = split(table_of(9, 9), USUAL, 0)
    moved = replace(table, root=Path("/elsewhere"), name="other")
    assert split_to_dict(moved)["hash"] == split_to_dict(table)["hash"]
    assert split_to_dict(split(table, (1, 0, 0), 0))["hash"] == split_to_dict(table)["hash"], "already split"
    assert split_to_dict(split(table_of(9, 9), USUAL, 1))["hash"] != split_to_dict(table)["hash"]


@pytest.mark.parametrize(
    "tamper",
    [
        lambda own: own["splits"]["train"]["class 0"].append(own["splits"]["test"]["class 0"].pop()),
        lambda own: own["splits"]["train"]["class 0"].reverse(),
        lambda own: own["classes"].reverse(),
        lambda own: own["splits"].update(extra={"class 0": ["x.png"], "class 1": []}),
        lambda own: own.pop("hash"),
        lambda own: own.update(splits={"train": []}),
        lambda own: own.update(root=None),
    ],
)
def test_a_changed_file_is_noticed(tmp_path: Path, tamper: Any) -> None:
    with refused("data.run-file-missing", str(tmp_path / "split.json")):
        split_from_file(tmp_path / "split.json")
    content = split_to_dict(split(table_of(9, 9), USUAL, 0))
    tamper(content)
    for written in (json.dumps(content), "{", "[]"):
        (tmp_path / "split.json").write_text(written, encoding="utf-8")
        with refused("data.run-damaged", str(tmp_path / "split.json")):
            split_from_file(tmp_path / "split.json")


def test_any_file_name_that_a_disk_can_hold_comes_back(tmp_path: Path) -> None:
    names = ("latin-1 caf\udce9.png", 'quo"te\\back.png', "猫 🐈.png")
    write_json(tmp_path / "split.json", split_to_dict(replace(table_of(3, splits=("train",) * 3), paths=names)))
    assert set(split_from_file(tmp_path / "split.json").paths) == set(names)


def table_in_groups(sizes_of_class: list[list[int]]) -> tuple[ImageTable, list[int]]:
    """Groups of such sizes in each class, their images mixed; each known by its lowest index, as the doctor has it."""
    table = table_of(*map(sum, sizes_of_class))
    groups, first = [0] * len(table), 0
    rng = random.Random(0)
    for own in sizes_of_class:
        indices = list(range(first, first + sum(own)))
        rng.shuffle(indices)
        for size in own:
            members, indices = indices[:size], indices[size:]
            for i in members:
                groups[i] = min(members)
        first += sum(own)
    return table, groups


def straddling(labels: Sequence[object], groups: Sequence[int]) -> list[int]:
    """Groups whose images have more than one label."""
    return [own for own in set(groups) if len({labels[i] for i, group in enumerate(groups) if group == own}) > 1]


grouped = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=25), min_size=1, max_size=3)


@given(sizes_of_class=grouped, parts=fractions, seed=st.integers(0, 99))
@settings(max_examples=60)
def test_no_group_is_in_two_splits_every_image_in_one_and_every_class_trained_on(
    sizes_of_class: list[list[int]], parts: tuple[float, float, float], seed: int
) -> None:
    before, groups = table_in_groups(sizes_of_class)
    table = split(before, parts, seed, groups)
    assert straddling(table.splits, groups) == []
    assert set(table.splits) <= set(SPLITS)
    assert (table.paths, table.labels) == (before.paths, before.labels)
    for name, part in zip(SPLITS[1:], parts[1:], strict=True):
        assert part > 0 or name not in table.splits
    assert split(before, parts, seed, groups) == table
    usual, little = (split(before, own, seed, groups) for own in (USUAL, (0.1, 0.45, 0.45)))
    for label, own in enumerate(sizes_of_class):
        assert all(counts(done, label).get("train", 0) >= 1 for done in (usual, little))
        if len(own) >= 3 and sum(own) >= 5:
            assert set(counts(usual, label)) == set(SPLITS), own


@given(images=st.lists(st.integers(30, 90), min_size=1, max_size=3), pairs=st.integers(0, 6), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_a_few_small_groups_leave_the_fractions_within_an_image(images: list[int], pairs: int, seed: int) -> None:
    table, groups = table_in_groups([[2] * pairs + [3] + [1] * (n - 2 * pairs - 3) for n in images])
    done = split(table, USUAL, seed, groups)
    for label, n in enumerate(images):
        for name, part in zip(SPLITS, USUAL, strict=True):
            assert abs(counts(done, label).get(name, 0) - n * part) <= 1, (label, name)


def test_groups_stay_together_when_val_is_taken_from_training_and_if_they_have_two_labels() -> None:
    table, groups = table_in_groups([[4, 3, 2, 2] + [1] * 29])
    given_ = replace(table, splits=tuple("test" if group == min(groups) else "train" for group in groups))
    done = split(given_, USUAL, 0, groups)
    assert all(new == "test" for old, new in zip(given_.splits, done.splits, strict=True) if old == "test")
    assert straddling(done.splits, groups) == [] and "val" in done.splits
    groups = [i if i not in (5, 6, 25, 30) else 5 for i in range(40)]
    for seed in range(10):
        assert straddling(split(table_of(20, 20), USUAL, seed, groups).splits, groups) == []


def named(*paths: str) -> ImageTable:
    return replace(table_of(len(paths)), paths=paths)


@pytest.mark.parametrize(
    ("paths", "pattern", "expected"),
    [
        (("a/cam1_001.png", "a/cam1_002.png", "b/cam2_001.png", "b/cam1_009.png"), r"(cam\d)_", [0, 0, 2, 0]),
        (("a/cam1_01.png", "a/cam1_02.png", "b/cam2_01.png"), r"cam(\d)_(\d+)", [0, 0, 2]),  # the first group alone
        (("a/cam1_1.png", "a/cam2_2.png", "b/cam1_3.png"), r"cam\d", [0, 1, 0]),  # no group: all that it matches
        (("a/x.png", "a/cam1_1.png", "a/y.png", "a/cam1_2.png"), r"cam\d", [0, 1, 2, 1]),  # found nowhere: alone
        (("a/x1.png", "a/x.png", "a/x1b.png", "a/xc.png"), r"x(\d)?", [0, 1, 0, 3]),  # a group that took no part
        (("a/ä\u2028 \udcff_1.png", "a/ä\u2028 \udcff_2.png", 'b/"\\n_1.png'), "/(.*)_", [0, 0, 2]),
    ],
)
def test_a_scene_is_what_the_expression_finds(paths: tuple[str, ...], pattern: str, expected: list[int]) -> None:
    assert merge_by_scene(named(*paths), pattern, range(len(paths))) == expected
    table = named("a/s1_1.png", "a/s2_1.png", "a/s1_2.png", "a/s3_1.png", "a/s2_2.png")
    copies = [0, 1, 2, 2, 4]  # the fourth is a copy of the third: scenes and copies are joined
    assert merge_by_scene(table, r"s\d", copies) == [0, 1, 0, 0, 1]
    with refused("data.groups-all-one"):
        merge_by_scene(table, "a/", copies)


@given(images=sizes, folds=st.integers(2, 8), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_every_image_is_in_one_fold_and_every_class_in_equal_parts(images: list[int], folds: int, seed: int) -> None:
    table = table_of(*images)
    with refused("data.folds-invalid"):
        fold(table, 1, seed)
    if folds > max(images):
        with refused("data.folds-invalid", str(max(images))):
            fold(table, folds, seed)
        return
    fold_of = fold(table, folds, seed)
    assert len(fold_of) == len(table)
    assert set(fold_of) == set(range(folds))
    for label in range(len(images)):
        parts = [
            sum(own == k and of == label for own, of in zip(fold_of, table.labels, strict=True)) for k in range(folds)
        ]
        assert max(parts) - min(parts) <= 1
    totals = [fold_of.count(k) for k in range(folds)]
    assert max(totals) - min(totals) <= len(images)


@given(sizes_of_class=grouped, folds=st.integers(2, 5), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_groups_stay_in_one_fold_and_parts_are_even(sizes_of_class: list[list[int]], folds: int, seed: int) -> None:
    table, groups = table_in_groups(sizes_of_class)
    if folds > max(map(len, sizes_of_class)):
        with refused("data.folds-invalid"):
            fold(table, folds, seed, groups)
        return
    fold_of = fold(table, folds, seed, groups)
    assert straddling(fold_of, groups) == []
    assert set(fold_of) == set(range(folds))
    for label, own in enumerate(sizes_of_class):
        parts = [
            sum(k == part and of == label for part, of in zip(fold_of, table.labels, strict=True)) for k in range(folds)
        ]
        assert max(parts) - min(parts) <= max(own)


def stratify_slowly(
    members: Sequence[Sequence[int]],
    counts: Sequence[Counter[int]],
    wants: Sequence[dict[int, float]],
    rng: np.random.Generator,
) -> list[int]:
    """Algorithm 1 of Sechidis et al. as it is written: the rarest class is looked for among all of them each time."""
    lacking, parts = [dict(want) for want in wants], [-1] * len(members)
    order = sorted(rng.permutation(len(members)).tolist(), key=lambda i: -len(members[i]))
    while True:
        left = Counter(label for i in order if parts[i] < 0 for label in counts[i])
        if not left:
            return parts
        rarest = min(left, key=lambda label: (left[label], label))
        for i in [i for i in order if parts[i] < 0 and rarest in counts[i]]:
            parts[i] = max(range(len(lacking)), key=lambda k: (lacking[k][rarest], lacking[k][-2]))
            for label, images in counts[i].items():
                lacking[parts[i]][label] -= images
            lacking[parts[i]][-2] -= len(members[i])


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_the_rarest_class_is_always_dealt_first(groups: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    members = [list(range(rng.integers(1, 4))) for _ in range(groups)]
    counts = [Counter(rng.integers(-1, classes, rng.integers(1, 5)).tolist()) for _ in range(groups)]
    whole = sum(counts, Counter({-2: sum(map(len, members))}))
    wants = [{label: share * images for label, images in whole.items()} for share in (0.7, 0.1, 0.2)]
    dealt = [deal(members, counts, wants, np.random.default_rng(seed)) for deal in (stratify, stratify_slowly)]
    assert dealt[0] == dealt[1]
