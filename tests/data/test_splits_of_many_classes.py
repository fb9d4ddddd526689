"""Splitting many classes: every image is looked at a few times, however many classes there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.data import ImageTable, fold, limit_training, split, stratify

USUAL = (0.7, 0.1, 0.2)


class Counted(tuple[Any, ...]):
    """Labels that count how often they are asked for."""

    asked = [0]  # noqa: RUF012  # of all of them

    def __getitem__(self, index: Any) -> Any:
        self.asked[0] += 1
        return super().__getitem__(index)


def table_of(labels: Sequence[int], classes: int) -> ImageTable:
    n = len(labels)
    names, paths = tuple(f"class {i}" for i in range(classes)), tuple(f"{i}.png" for i in range(n))
    return ImageTable("made up", Path("/photos"), names, paths, Counted(labels), (None,) * n)


@pytest.mark.parametrize(
    "work",
    [
        lambda table: split(table, USUAL, 0),
        lambda table: split(table, USUAL, 0, kept=("train", None) * (len(table) // 2)),
        lambda table: fold(table, 2, 0),
        lambda table: limit_training(split(table, USUAL, 0), 1300, 0),
    ],
    ids=["split", "split as before", "fold", "limit"],
)
def test_an_image_is_asked_for_its_label_as_often_with_many_classes(work: Callable[[ImageTable], object]) -> None:
    asked = []
    for classes in (10, 1200):
        table = table_of([i % classes for i in range(2400)], classes)
        Counted.asked[0] = 0
        work(table)
        asked.append(Counted.asked[0])
    assert asked[1] <= 1.2 * asked[0] <= 12 * 2400


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


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_the_rarest_class_is_always_dealt_first(groups: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    members = [list(range(rng.integers(1, 4))) for _ in range(groups)]
    counts = [Counter(rng.integers(-1, classes, rng.integers(1, 5)).tolist()) for _ in range(groups)]
    whole = sum(counts, Counter({-2: sum(map(len, members))}))
    wants = [{label: share * images for label, images in whole.items()} for share in (0.7, 0.1, 0.2)]
    dealt = [deal(members, counts, wants, np.random.default_rng(seed)) for deal in (stratify, stratify_slowly)]
    assert dealt[0] == dealt[1]
