"""Which images a run trains on and is judged by, settled before anything is trained."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import runs
from vitkit.errors import VitkitError
from vitkit.training import Recipe, resolve


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("settling") / "photos", images=20)


def images(data: Path, **fields: Any) -> dict[str, set[str]]:
    """The paths of each split."""
    (own,) = resolve(runs.quick_fields(data=str(data), **fields)).parts
    table = own.images.table
    return {name: set(table.of_split(name).paths) for name in ("train", "val", "test")}


def test_a_split_seed_keeps_the_split_whatever_the_seed(data: Path) -> None:
    one, two = (images(data, seed=seed, split_seed=7) for seed in (0, 1))
    assert one == two
    assert one == images(data, seed=7)  # without it the seed decides
    assert one != images(data, seed=1)


def test_smaller_subsets_are_nested_for_each_seed_and_fresh_for_another(data: Path) -> None:
    whole = images(data, split_seed=7)
    few, more, other = (
        images(data, split_seed=7, seed=seed, max_images=limit) for seed, limit in ((1, 9), (1, 20), (2, 9))
    )
    assert len(few["train"]) == 9
    assert few["train"] < more["train"] < whole["train"]
    assert few["train"] != other["train"]
    for own in (few, more, other):
        assert (own["val"], own["test"]) == (whole["val"], whole["test"])


def test_folds_go_by_the_split_seed_too(data: Path) -> None:
    def tested(**fields: Any) -> list[set[str]]:
        settled = resolve(runs.quick_fields(data=str(data), folds=3, **fields))
        return [set(own.images.table.of_split("test").paths) for own in settled.parts]

    assert tested(seed=0, split_seed=5) == tested(seed=1, split_seed=5) != tested(seed=1)


def test_the_seed_of_the_split_is_the_seed_where_none_is_given() -> None:
    assert Recipe(seed=3).seed_of_split == 3
    assert Recipe(seed=3, split_seed=0).seed_of_split == 0
    with pytest.raises(VitkitError, match="split_seed"):
        Recipe(split_seed=-1)


def test_groups_that_names_reveal_are_reported_until_the_printed_flag_is_given(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for number, file in enumerate(sorted(runs.photos(tmp_path / "unnamed").rglob("*.png"))):
        own = root / file.parent.name
        own.mkdir(parents=True, exist_ok=True)
        file.rename(own / f"patient{number // 3:02}_{number % 3}.png")
    (line,) = (each.text for each in resolve(runs.quick_fields(data=str(root))).findings if "--group-by" in each.text)
    assert "show 12 groups" in line
    flag = shlex.split(line[line.index("--group-by") :])[1]
    settled = resolve(runs.quick_fields(data=str(root), group_by=flag))
    assert not any("--group-by" in each.text for each in settled.findings)
    (own,) = settled.parts
    table = own.images.table
    splits = {(path.split("/")[1][:9], split) for path, split in zip(table.paths, table.splits, strict=True)}
    assert len(splits) == 12, "each patient is in one split"
