import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tiny import build, images, tiny
from vitkit.model import MLP, Attention, DropPath, Head, ViTConfig

SAMPLES = 20_000


def test_drop_path_drops_whole_samples_and_scales_the_others() -> None:
    torch.manual_seed(0)
    x = torch.rand(1000, 5, 4) + 1
    kept = DropPath(0.25)(x) / x  # (1000, 5, 4): one number a sample
    assert torch.equal(kept.amin(dim=(1, 2)) > 0, kept.amax(dim=(1, 2)) > 0), "a sample is kept whole or dropped whole"
    of_sample = kept[:, 0, 0]
    torch.testing.assert_close(kept, of_sample[:, None, None].expand_as(kept))
    torch.testing.assert_close(of_sample, (of_sample > 0) / 0.75)
    assert 200 < (of_sample == 0).sum() < 300


def test_drop_path_is_the_identity_in_eval_mode_and_at_rate_zero_and_keeps_the_dtype() -> None:
    x = torch.randn(50, 3)
    assert torch.equal(DropPath(0.9).eval()(x), x)
    assert torch.equal(DropPath(0.0).train()(x), x)
    assert DropPath(0.5)(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_drops_attention_and_mlp_apart_and_never_the_tokens(norm: str) -> None:
    rate = 0.5
    block = build(norm=norm, drop_path=rate).blocks[-1]
    torch.manual_seed(0)
    x = torch.randn(1, 5, 32).expand(128, -1, -1)
    with torch.no_grad():
        dropped = block.train()(x)
        expected = []
        for a in (0.0, 1 / rate):
            for m in (0.0, 1 / rate):
                if norm == "pre":
                    y = x[:1] + a * block.attn(block.norm1(x[:1]))
                    expected.append(y + m * block.mlp(block.norm2(y)))
                else:
                    y = block.norm1(x[:1] + a * block.attn(x[:1]))
                    expected.append(block.norm2(y + m * block.mlp(y)))
    distances = torch.stack([(dropped - e).abs().amax(dim=(1, 2)) for e in expected])  # (4, 128)
    assert distances.min(dim=0).values.max() < 1e-5, "every sample is one of the four outcomes"
    counts = torch.bincount(distances.argmin(dim=0), minlength=4)
    assert counts.min() > 12, f"all four outcomes are equally likely, not {counts.tolist()} of 128"


def layer(cls: type[Attention] | type[MLP], config: ViTConfig) -> Attention | MLP:
    torch.manual_seed(0)
    return cls(config).train()


@pytest.mark.parametrize("cls", [Attention, MLP])
@torch.no_grad()
def test_dropout_zeroes_single_features_of_a_layers_output_and_scales_the_rest(cls: type[Attention]) -> None:
    rate = 0.25
    x = torch.randn(20, 13, 32)
    hidden_sizes: list[Tensor] = []
    module = layer(cls, tiny(dropout=rate))
    if isinstance(module, MLP):
        module.fc2.register_forward_pre_hook(lambda _, inputs: hidden_sizes.append(inputs[0]))
    dropped = module(x)
    assert abs((dropped == 0).double().mean().item() - rate) < 0.04
    for hidden in hidden_sizes:  # the MLP drops between its two layers as well
        assert abs((hidden == 0).double().mean().item() - rate) < 0.04
    if cls is Attention:
        whole = module.eval()(x)
        kept = dropped != 0
        torch.testing.assert_close(dropped[kept], whole[kept] / (1 - rate))


@torch.no_grad()
def test_position_dropout_zeroes_features_of_the_embedded_tokens() -> None:
    model = build(position_dropout=0.25)
    whole = model.embed(images(20))
    torch.manual_seed(0)
    dropped = model.train().embed(images(20))
    kept = dropped != 0
    assert abs(kept.double().mean().item() - 0.75) < 0.04
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@torch.no_grad()
def test_attention_dropout_keeps_the_expectation_in_both_paths(fused: bool) -> None:
    module = layer(Attention, tiny(attention_dropout=0.5))
    module.fused = fused
    x = torch.randn(1, 13, 32)
    torch.manual_seed(0)
    draws = module(x.expand(SAMPLES // 4, -1, -1))
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert error.min() > 0, "nothing was dropped"
    assert ((draws.mean(dim=0) - module.eval()(x)[0]).abs() < 6 * error).all()


@pytest.mark.parametrize(
    ("fields", "compiled"),
    [
        ({"pool": "token+gap", "representation_size": 20}, False),
        ({"distill_token": True, "distill_head": True}, False),
        pytest.param({"distill_token": True, "distill_head": True}, True, marks=pytest.mark.accept),
    ],
    ids=str,
)
def test_autocast_does_not_round_logits(fields: dict[str, object], compiled: bool) -> None:
    model = build(**fields)  # type: ignore[arg-type]
    heads = [head for head in (model.head, model.head_dist) if head is not None]
    read: list[Tensor] = []
    for head in () if compiled else heads:
        head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    run = torch.compile(model.forward_heads, backend="eager", fullgraph=True) if compiled else model.forward_heads
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = run(images())
    for logits in found:
        assert logits.dtype == torch.float32
        assert not torch.equal(logits, logits.bfloat16().float())
    for logits, x, head in zip(found, read, heads, strict=not compiled):
        assert torch.equal(logits, F.linear(x.float(), head.weight, head.bias))


@pytest.mark.parametrize("classes", [1, 2, 3, 4])
def test_logits_do_not_depend_on_the_images_beside_them(classes: int) -> None:
    """Not in a single bit, as parts of a prediction join to what one command writes."""
    generator = torch.Generator().manual_seed(classes)
    for features in (16, 32, 64, 192, 768):
        head = Head(features, classes)
        for batch in range(2, 40):
            x = torch.randn(batch, features, generator=generator)
            order = torch.randperm(batch, generator=generator)
            assert torch.equal(head(x)[order], head(x[order])), (features, batch)


@pytest.mark.parametrize(("classes", "outputs"), [(1, 4), (2, 4), (3, 4), (4, 4), (5, 5)])
def test_a_head_computes_four_outputs_or_more(classes: int, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the test before shows to be necessary on Intel processors alone."""
    linear, seen = F.linear, list[int]()

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(len(weight))
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", counted)
    logits = Head(6, classes)(torch.zeros(3, 6))
    assert seen == [outputs] and logits.shape == (3, classes) and logits.is_contiguous()


def test_a_head_of_few_classes_computes_a_linear_layer_and_its_gradients() -> None:
    for classes in (1, 2, 3, 5):
        head = Head(6, classes).double()
        x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(head(x), F.linear(x, head.weight, head.bias))
        expected = torch.autograd.grad(F.linear(x, head.weight, head.bias).pow(2).sum(), [*head.parameters(), x])
        torch.testing.assert_close(torch.autograd.grad(head(x).pow(2).sum(), [*head.parameters(), x]), expected)


def test_a_head_has_the_precision_of_its_weights() -> None:
    x = torch.randn(2, 8)
    assert Head(8, 3)(x.bfloat16()).dtype == torch.float32
    assert Head(8, 3).bfloat16()(x).dtype == torch.bfloat16
