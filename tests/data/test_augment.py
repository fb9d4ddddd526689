"""Random changes that depend on their seeds and on nothing else."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2

from photos import noise, smooth
from vitkit.data import Augment, Mixing, Preprocess, apply_seeded

PREPROCESS = Preprocess(size=(24, 32))
ALL = Augment(crop_scale=(0.3, 1.0), hflip=True, rotate=10, translate=0.1, zoom=0.1, shear=5, color_jitter=0.3)


def outcome(augment: Augment, *seeds: int, picture: Image.Image | None = None) -> np.ndarray:
    return np.asarray(apply_seeded(augment.build(PREPROCESS), picture or smooth(60, 40), *seeds))


def test_the_seeds_alone_decide_the_picture() -> None:
    transform = ALL.build(PREPROCESS)
    first = np.asarray(apply_seeded(transform, smooth(60, 40), 1, 2, 3))
    torch.manual_seed(99)
    before = torch.get_rng_state()
    apply_seeded(transform, smooth(60, 40), 5, 5, 5)
    np.testing.assert_array_equal(np.asarray(apply_seeded(transform, smooth(60, 40), 1, 2, 3)), first)
    assert torch.equal(torch.get_rng_state(), before)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (3, 2, 1)):
        assert (outcome(ALL, *other) != first).any()


def test_the_global_generator_is_left_as_it_was_also_after_an_error() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()

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
    *({"crop_scale": (0.3, 0.8)}, {"hflip": True}, {"rotate": 20.0}, {"translate": 0.3}, {"zoom": 0.3}),
    *({"shear": 15.0}, {"color_jitter": 0.5}, {"rand_augment": 9}),
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
    whole = np.asarray(smooth(60, 40).resize((32, 24))).astype(int)
    much = np.mean([abs(outcome(Augment(crop_scale=(0.98, 1.0)), s) - whole).mean() for s in range(10)])
    little = np.mean([abs(outcome(Augment(crop_scale=(0.05, 0.1)), s) - whole).mean() for s in range(10)])
    assert much < little / 3


def test_erasing_puts_the_mean_colour_into_one_rectangle_as_often_as_asked() -> None:
    random_erasing = Augment(random_erasing=1.0).build_pixels()
    pixels = torch.rand(3, 24, 32) + 1
    erased = apply_seeded(random_erasing, pixels, 3)
    hole = (erased == 0).all(dim=0)
    assert torch.equal(erased[:, ~hole], pixels[:, ~hole])
    rows, columns = hole.any(dim=1).nonzero().flatten(), hole.any(dim=0).nonzero().flatten()
    assert hole[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
    assert 0 < hole.sum() == len(rows) * len(columns) < hole.numel() / 2
    assert torch.equal(apply_seeded(random_erasing, pixels, 3), erased)
    sometimes = Augment(random_erasing=0.25).build_pixels()
    assert 70 <= sum(bool((apply_seeded(sometimes, pixels, seed) == 0).any()) for seed in range(400)) <= 130
    assert torch.equal(apply_seeded(Augment().build_pixels(), pixels, 0), pixels)


IMAGES = torch.rand(6, 3, 12, 20, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 4, 0])
TARGETS = torch.nn.functional.one_hot(LABELS, 5).float()


def share_of(targets: Tensor) -> float:
    """Of the first image of each pair, read from the second row, whose own class is 1."""
    return targets[1, 1].item()


@pytest.mark.parametrize("seed", range(3))
def test_mixup_and_cutmix_are_torchvisions_with_the_same_share(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, targets = Mixing(mixup=0.8).apply(IMAGES, TARGETS, seed)
    mixup = v2.MixUp(num_classes=5)
    monkeypatch.setattr(mixup, "make_params", lambda _: {"lam": share_of(targets)})
    expected, labels = mixup(IMAGES, LABELS)
    assert torch.allclose(images, expected, atol=1e-6)
    assert torch.allclose(targets, labels, atol=1e-6)
    images, targets = Mixing(cutmix=1.0).apply(IMAGES, TARGETS, seed)
    random = np.random.default_rng(seed)
    share, y, x = random.beta(1.0, 1.0), random.integers(12), random.integers(20)
    oracle = v2.CutMix(num_classes=5)
    drawn = iter([torch.tensor([x]), torch.tensor([y])])
    with monkeypatch.context() as patch:
        patch.setattr(oracle, "_dist", type("Share", (), {"sample": lambda self, _: torch.tensor(share)})())
        patch.setattr(torch, "randint", lambda *_, **__: next(drawn))
        expected, labels = oracle(IMAGES, LABELS)
    assert torch.equal(images, expected)
    assert torch.allclose(targets, labels, atol=1e-6)


@given(st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.integers(0, 2**62), st.integers(1, 5))
def test_mixed_targets_are_the_shares_of_the_images(mixup: float, cutmix: float, seed: int, batch: int) -> None:
    mixing = Mixing(mixup=mixup, cutmix=cutmix)
    if not mixing:
        return
    own = torch.eye(batch)  # every image its own class, and of the one colour that is its number
    images, targets = mixing.apply(torch.arange(batch).float().view(-1, 1, 1, 1).expand(-1, 3, 8, 8), own, seed)
    assert torch.allclose(targets.sum(dim=1), torch.ones(batch))
    assert (targets >= 0).all()
    assert torch.allclose(images.mean(dim=(1, 2, 3)), targets @ torch.arange(batch).float(), atol=1e-4)


def test_mixing_is_decided_by_its_seed_and_leaves_batch_and_generators_alone() -> None:
    mixing, before = Mixing(mixup=0.8, cutmix=1.0), IMAGES.clone()
    torch.manual_seed(1)
    first = mixing.apply(IMAGES, TARGETS, 5)
    state = torch.get_rng_state()
    again = mixing.apply(IMAGES, TARGETS, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(before, IMAGES)
    assert not torch.equal(mixing.apply(IMAGES, TARGETS, 6)[0], first[0])
    assert [bool(own) for own in (Mixing(), Mixing(mixup=0.1), Mixing(cutmix=0.1))] == [False, True, True]


def test_with_both_half_of_the_batches_are_cut_and_the_share_follows_the_beta_distribution() -> None:
    shares = [share_of(Mixing(mixup=0.3).apply(IMAGES, TARGETS, seed)[1]) for seed in range(400)]
    drawn = np.random.default_rng(1).beta(0.3, 0.3, 4000)
    assert stats.ks_2samp(shares, drawn).pvalue > 1e-3
    mixing = Mixing(mixup=1.0, cutmix=1.0)
    black, white = torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 8)
    outcomes = [mixing.apply(torch.cat([black, white]), TARGETS[:2], seed)[0] for seed in range(200)]
    cut = [bool(((images == 0) | (images == 1)).all()) for images in outcomes]
    assert 70 <= sum(cut) <= 130
