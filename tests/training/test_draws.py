"""What is drawn for an image is its own: the same in any share or piece of a batch, on every device."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tiny
from refusals import refused
from tiny import VARIETY, build, images, largest_difference
from vitkit.model import Dropout, VisionTransformer, random_bits, survives
from vitkit.model.layers import _scramble
from vitkit.training import (
    PATCH_DROPOUT,
    DropoutNumbers,
    PatchDropout,
    ProcessGroup,
    Recipe,
    check_config,
    choose_patch_dropout,
    drop_patches,
)

RATES = {"dropout": 0.2, "attention_dropout": 0.2, "position_dropout": 0.2, "drop_path": 0.5}
REFUSED = ("relative", "every_layer", "shared", "conv", "interleaved", "mixtures")  # which need every patch
CPU = torch.device("cpu")


def dropping(**fields: Any) -> VisionTransformer:
    return build(**RATES, **fields).train()


def keys_of(images: int, seed: int = 0) -> Tensor:
    return torch.randint(-(2**31), 2**31, (images,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))


@given(st.integers(-(2**31), 2**31 - 1))
def test_the_scrambling_is_the_published_one(x: int) -> None:
    expected = x % 2**32
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        expected = (expected ^ expected >> shift) * factor % 2**32
    assert _scramble(torch.tensor([x], dtype=torch.int32)).item() % 2**32 == expected


def test_every_bit_is_a_fair_coin_and_independent_of_its_neighbours() -> None:
    bits = random_bits(keys_of(200), 500)  # (images, numbers)
    coins = torch.stack([bits >> place & 1 for place in range(32)]).double() * 2 - 1  # (32, images, numbers)
    n, n_pairs = coins[0].numel(), coins[0, 1:].numel()
    assert coins.mean(dim=(1, 2)).abs().max() < 5 / math.sqrt(n)
    for ahead, behind in ((coins[:, 1:], coins[:, :-1]), (coins[:, :, 1:], coins[:, :, :-1]), (coins[1:], coins[:-1])):
        assert (ahead * behind).mean(dim=(1, 2)).abs().max() < 5 / math.sqrt(n_pairs - 1)
    assert coins.mean(dim=2).abs().max() < 6 / math.sqrt(500), "of each image"
    assert coins.mean(dim=1).abs().max() < 6 / math.sqrt(200), "at each place"


def test_what_survives_is_as_much_as_the_rate_says() -> None:
    bits = random_bits(keys_of(100), 1000)
    for rate in (0.01, 0.1, 0.3, 0.5, 0.9):
        share = (~survives(bits, rate)).double().mean().item()
        assert abs(share - rate) < 6 * math.sqrt(rate * (1 - rate) / 1e5)
    ends = torch.tensor([-(2**31), 0, 2**31 - 1], dtype=torch.int32)
    for rate, expected in ((0.0, [True] * 3), (0.5, [False, True, True]), (1 - 1e-12, [False, False, True])):
        assert survives(ends, rate).tolist() == expected


def test_dropout_by_keys_scales_what_it_keeps() -> None:
    layer, x = Dropout(0.1).train(), torch.ones(40, 50, 60)
    layer.keys = keys_of(40)
    dropped = layer(x)
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.9).item()}
    assert abs((dropped == 0).double().mean().item() - 0.1) < 6 * math.sqrt(0.09 / x.numel())
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize("name", ["token", "relative distilled", "conv MLP distilled registers", "interleaved gap"])
def test_shares_and_pieces_of_a_batch_come_to_the_rows_of_the_whole(name: str) -> None:
    model = dropping(**VARIETY[name])
    if name == "token":
        drop_patches(model, 0.3)
    draws, batch = DropoutNumbers(model), images(6, config=model.config)
    with torch.no_grad(), draws.using(draws.sample(5, range(6), CPU)):
        whole = model(batch)
    assert largest_difference(whole, model.eval()(batch)) > 1e-3
    model.train()
    for places in (range(0, 6, 2), range(1, 6, 2), range(5, 6)):
        with torch.no_grad(), draws.using(draws.sample(5, places, CPU)):
            assert largest_difference(model(batch[list(places)]), whole[list(places)]) < 1e-5


def test_every_layer_draws_for_itself() -> None:
    model = dropping(layers=3)
    drop_patches(model, 0.5)
    keys = DropoutNumbers(model).sample(1, range(4), CPU)
    # Of the positions and the patches; a block's attention (2), MLP (2) and branches (2), of rate 0 in the first.
    assert keys.shape == (2 + 3 * 6 - 2, 4)
    assert len(keys.unique()) == keys.numel()


@pytest.mark.parametrize(("backend", "layers"), [("eager", 1), pytest.param("aot_eager", 2, marks=pytest.mark.accept)])
def test_checkpointing_draws_the_same_again_and_so_does_a_compiled_pass(backend: str, layers: int) -> None:
    model = dropping(layers=layers)
    draws, batch = DropoutNumbers(model), images(4, config=model.config)
    compiled = torch.compile(model.forward_heads, backend=backend, fullgraph=True)
    gradients = list[list[Tensor]]()
    for checkpointing, forward in ((0, model.forward_heads), (1, model.forward_heads), (0, compiled)):
        model.checkpointing = checkpointing
        for seed in (3, 4):  # the second time with what was compiled for the first
            with draws.using(draws.sample(seed, range(4), CPU)):
                loss = forward(batch)[0].square().sum()
                gradients.append(list(torch.autograd.grad(loss, list(model.parameters()))))
    for number in (0, 1):
        plain, again, quick = gradients[number::2]
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, quick, strict=True))
    assert not torch.equal(gradients[0][0], gradients[1][0])


@given(length=st.integers(1, 17), size=st.integers(1, 6))
def test_each_share_gets_the_images_before_its_own(length: int, size: int) -> None:
    whole = torch.arange(2.0 * length).view(length, 2)
    padded = list[Tensor]()

    def note(_: Tensor, own: Tensor) -> None:
        padded.append(own.clone())

    def gather(out: Tensor, _: Tensor) -> None:
        out.copy_(torch.cat(padded))

    with pytest.MonkeyPatch.context() as patched:
        for meet in (note, gather) if size > 1 else (gather,):
            patched.setattr(dist, "all_gather_into_tensor", meet)
            for rank in range(size):
                own = whole[rank::size] if rank < length else whole[:1]  # a stand-in
                before = ProcessGroup(rank, size).preceding_images(own, length)
                expected = whole.roll(1, dims=0)[rank::size] if rank < length else own
                assert meet is note or torch.equal(before, expected)


@given(rate=st.floats(0, 0.99), ahead=st.integers(0, 4), patches=st.integers(1, 30), seed=st.integers(0, 99))
def test_kept_is_whole_in_order_and_never_a_token_ahead(rate: float, ahead: int, patches: int, seed: int) -> None:
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


@pytest.mark.parametrize("name", ["token+gap", "map of all tokens", "eva02", "no prefix positions", "aimv2"])
def test_evaluation_and_state_are_the_plain_models(name: str) -> None:
    model, seen = build(**VARIETY[name]), list[int]()
    expected, keys = model(images()), list(model.state_dict())
    drop_patches(model, 0.5)
    model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    assert largest_difference(model(images()), expected) == 0
    assert list(model.state_dict()) == keys
    model.train()
    torch.manual_seed(0)
    logits = model(images())
    assert logits.shape == expected.shape and largest_difference(logits, expected) > 0
    assert seen[1] < seen[0], "the blocks see fewer tokens in training alone"
    copied = copy.deepcopy(model)
    torch.manual_seed(0)
    assert torch.equal(copied(images()), logits)


def test_full_fine_tuning_spares_patches_unless_it_is_told_or_cannot() -> None:
    full, plain = Recipe.of({"method": "full", "weights": "x"}), build().config
    assert choose_patch_dropout(full, {}, plain).patch_dropout == PATCH_DROPOUT > 0
    assert choose_patch_dropout(full, {"patch_dropout": 0.0}, plain) == full
    assert choose_patch_dropout(Recipe.of({"method": "lora", "weights": "x"}), {}, plain).patch_dropout == 0
    for config in (tiny.tiny(**VARIETY[name]) for name in VARIETY if any(word in name for word in REFUSED)):
        assert choose_patch_dropout(full, {}, config) == full
        with refused("training.patch-dropout-unsupported"):
            check_config(config, Recipe(patch_dropout=0.3))
