"""Random changes that depend on their seeds and on nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photos import noise, smooth
from vitkit.data.augment import Augment, apply_seeded, mix_seeds
from vitkit.data.preprocess import Preprocess

PREPROCESS = Preprocess(size=(24, 32))
ALL = Augment(crop_scale=(0.3, 1.0), hflip=True, rotate=10, translate=0.1, zoom=0.1, shear=5, color_jitter=0.3)


def outcome(augment: Augment, *seeds: int, picture: Image.Image | None = None) -> np.ndarray:
    return np.asarray(apply_seeded(augment.build(PREPROCESS), picture or smooth(60, 40), *seeds))


def test_the_same_seeds_give_the_same_picture_whatever_was_drawn_before() -> None:
    transform = ALL.build(PREPROCESS)
    first = np.asarray(apply_seeded(transform, smooth(), 1, 2, 3))
    torch.manual_seed(99)
    torch.rand(7)
    np.random.default_rng(0).random()
    apply_seeded(transform, smooth(), 5, 5, 5)
    np.testing.assert_array_equal(np.asarray(apply_seeded(transform, smooth(), 1, 2, 3)), first)
    np.testing.assert_array_equal(np.asarray(apply_seeded(ALL.build(PREPROCESS), smooth(), 1, 2, 3)), first)


@pytest.mark.parametrize("other", [(2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (3, 2, 1)])
def test_another_seed_epoch_or_index_gives_another_picture(other: tuple[int, int, int]) -> None:
    assert (outcome(ALL, 1, 2, 3) != outcome(ALL, *other)).any()


def test_the_global_generator_is_left_as_it_was_also_after_an_error() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    outcome(ALL, 1)
    assert torch.equal(torch.get_rng_state(), before)

    def fail(_picture: Image.Image) -> None:
        torch.rand(3)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        apply_seeded(fail, smooth(), 1)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)


def test_without_any_change_it_is_evaluations_fit() -> None:
    for fit in ("crop", "pad", "squash"):
        preprocess = Preprocess(size=(24, 32), fit=fit)
        out = apply_seeded(Augment().build(preprocess), noise(61, 47), 0)
        np.testing.assert_array_equal(np.asarray(out), np.asarray(preprocess.resize(noise(61, 47))))


FIELDS: list[dict[str, Any]] = [
    {"crop_scale": (0.3, 0.8)},
    {"hflip": True},
    {"rotate": 20.0},
    {"translate": 0.3},
    {"zoom": 0.3},
    {"shear": 15.0},
    {"color_jitter": 0.5},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: next(iter(fields)))
def test_each_field_changes_something_and_differs_by_seed(fields: dict[str, Any]) -> None:
    plain = outcome(Augment(), 0)
    pictures = [outcome(Augment(**fields), seed) for seed in range(8)]
    assert all(picture.shape == (24, 32, 3) for picture in pictures)
    assert sum((picture != plain).any() for picture in pictures) >= 2
    assert len({picture.tobytes() for picture in pictures}) >= 2


def test_mirroring_happens_to_about_half_of_the_pictures_and_exactly() -> None:
    plain = outcome(Augment(), 0)
    mirrored = [outcome(Augment(hflip=True), seed) for seed in range(100)]
    flips = [np.array_equal(picture, plain[:, ::-1]) for picture in mirrored]
    assert all(flip or np.array_equal(picture, plain) for flip, picture in zip(flips, mirrored, strict=True))
    assert 30 <= sum(flips) <= 70


def test_without_hflip_left_stays_left() -> None:
    dark_left = Image.fromarray(np.repeat(np.repeat(np.array([[0, 255]], np.uint8), 30, 1), 40, 0)).convert("RGB")
    strong = Augment(crop_scale=(0.6, 1.0), rotate=10, translate=0.05, zoom=0.1, shear=5, color_jitter=0.2)
    for seed in range(50):
        out = outcome(strong, seed, picture=dark_left)[8:16].astype(int)
        assert out[:, :6].mean() < out[:, 20:26].mean()


def test_a_random_crop_keeps_the_area_that_it_should() -> None:
    """A crop of almost all of the picture looks like the picture, a crop of a tenth does not."""
    whole = np.asarray(smooth(60, 40).resize((32, 24))).astype(int)
    much = np.mean([abs(outcome(Augment(crop_scale=(0.98, 1.0)), s) - whole).mean() for s in range(10)])
    little = np.mean([abs(outcome(Augment(crop_scale=(0.05, 0.1)), s) - whole).mean() for s in range(10)])
    assert much < little / 3


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 2**20))
def test_mixing_notices_a_change_of_any_number_and_gives_a_seed_that_torch_takes(
    seeds: list[int], at: int, change: int
) -> None:
    mixed = mix_seeds(*seeds)
    assert 0 <= mixed < 2**63
    assert mixed == mix_seeds(*seeds)
    torch.Generator().manual_seed(mixed)
    other = list(seeds)
    other[at % len(seeds)] += change
    assert mix_seeds(*other) != mixed
    assert mix_seeds(*seeds, 0) != mixed


def test_mixing_small_numbers_collides_nowhere() -> None:
    triples = {mix_seeds(seed, epoch, index) for seed in range(10) for epoch in range(30) for index in range(100)}
    assert len(triples) == 10 * 30 * 100
