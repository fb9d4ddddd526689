"""Patch dropout: what it keeps, what it leaves alone, and a run with it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runs import SIZE, assert_same_weights, metrics, photos, quick
from tiny import VARIETY, build, images, largest_difference
from vitkit.errors import VitkitError
from vitkit.training import SPARED, PatchDropout, check_patch_dropout, drop_patches, spare_patches, train
from vitkit.training import build as build_recipe

REFUSED = ["relative", "every_layer", "shared", "conv", "interleaved", "mixtures"]


@given(rate=st.floats(0, 0.99), ahead=st.integers(0, 4), patches=st.integers(1, 30), seed=st.integers(0, 99))
def test_what_is_kept_is_whole_in_order_and_never_a_token_ahead(
    rate: float, ahead: int, patches: int, seed: int
) -> None:
    torch.manual_seed(seed)
    n = ahead + patches
    tokens = torch.arange(3 * n).view(3, n, 1).repeat(1, 1, 2).float()
    out = PatchDropout(rate, ahead).train()(tokens)
    assert out.shape == (3, ahead + max(1, round(patches * (1 - rate))), 2)
    assert torch.equal(out[:, :ahead], tokens[:, :ahead])
    for image, rows in enumerate(out[:, :, 0] - n * torch.arange(3)[:, None]):
        assert (rows.diff() > 0).all(), "each once, in order"
        assert torch.equal(out[image], tokens[image, rows.long()])


def test_every_patch_is_kept_as_often_and_images_lose_others() -> None:
    torch.manual_seed(0)
    tokens = torch.arange(12.0).view(1, 12, 1).expand(4000, 12, 1)
    out = PatchDropout(0.5, 2)(tokens)[:, 2:, 0]
    often = out.long().flatten().bincount(minlength=12)[2:] / 4000
    assert (often - 0.5).abs().max() < 0.04
    assert len(out.unique(dim=0)) > 200  # of 252


@pytest.mark.parametrize("name", [n for n in VARIETY if not any(word in n for word in REFUSED)])
def test_evaluation_and_state_are_the_plain_models(name: str) -> None:
    model = build(**VARIETY[name])
    expected, keys = model(images()), list(model.state_dict())
    drop_patches(model, 0.5)
    assert largest_difference(model(images()), expected) == 0
    assert list(model.state_dict()) == keys
    model.train()
    torch.manual_seed(0)
    logits = model(images())
    assert logits.shape == expected.shape
    assert largest_difference(logits, expected) > 0
    copied = copy.deepcopy(model)
    torch.manual_seed(0)
    assert torch.equal(copied(images()), logits)


@pytest.mark.parametrize("name", [n for n in VARIETY if any(word in n for word in REFUSED)])
def test_models_that_need_all_patches_are_refused(name: str) -> None:
    with pytest.raises(VitkitError, match=r"--patch-dropout: .* needs all patches"):
        check_patch_dropout(build(**VARIETY[name]).config)


def test_full_fine_tuning_spares_patches_unless_it_is_told_or_cannot() -> None:
    full, plain = build_recipe({"method": "full", "weights": "x"}), build().config
    assert spare_patches(full, {}, plain).patch_dropout == SPARED > 0
    assert spare_patches(full, {"patch_dropout": 0.0}, plain) == full
    assert spare_patches(build_recipe({"method": "lora", "weights": "x"}), {}, plain).patch_dropout == 0
    for name in VARIETY:
        if any(word in name for word in REFUSED):
            assert spare_patches(full, {}, build(**VARIETY[name]).config) == full


def test_the_blocks_see_fewer_tokens_in_training_alone() -> None:
    model, seen = build(), list[int]()
    model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    drop_patches(model, 0.5)
    for training in (False, True):
        model.train(training)(images())
    assert seen == [1 + 12, 1 + 6]


def test_a_run_with_patch_dropout_is_repeatable_and_its_model_is_a_plain_one(tmp_path: Path) -> None:
    data = photos(tmp_path / "data")
    fields = {"epochs": 2, "model": "vit_micro_patch4_16", "model_fields": SIZE, "ema": 0.9}
    for name in ("a", "b"):
        train(quick(data, patch_dropout=0.5, **fields), tmp_path / name, say=lambda line: None)
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    train(quick(data, **fields), tmp_path / "c", say=lambda line: None)
    assert metrics(tmp_path / "a") != metrics(tmp_path / "c")
