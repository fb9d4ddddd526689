import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from model.test_config import PAPER
from refusals import refused
from tiny import VARIETY, build, gradients, images, kinds, largest_difference, some, tiny
from vitkit.model import Attention, VisionTransformer, ViTConfig, config_for, list_models
from vitkit.weights import create_model

GOLDEN = Path(__file__).parents[1] / "golden"
COUNTS: dict[str, int] = json.loads((GOLDEN / "param_counts.json").read_text())
variety = pytest.mark.parametrize("fields", kinds())


def on_meta(name: str, **overrides: Any) -> VisionTransformer:
    """A model without storage, so that H/14 costs nothing."""
    with torch.device("meta"):
        return create_model(name, **overrides)


def count(model: VisionTransformer) -> int:
    assert all(parameter.is_meta for parameter in model.parameters())
    return sum(parameter.numel() for parameter in model.parameters())


def count_by_hand(name: str) -> int:
    """What the paper's dimensions add up to; the name is read by its words, not by vitkit's grammar."""
    words = name.removesuffix("_in21k").removesuffix("_gap").split("_")
    layers, D, M, _ = PAPER[words[1]]
    side, prefix = int(words[-1]), 0 if name.endswith("gap") else 2 if "distilled" in name else 1
    classes = 21843 if name.endswith("in21k") else 1000
    if "_r" in name:
        stem, channels, patch, stride = RESNETS[name.split("_r")[1].rpartition(f"_{side}")[0]]
    else:
        stem, channels, patch, stride = 0, 3, int(words[-2].removeprefix("patch")), 1
    grid = side // (stride * patch)
    embedding = stem + (channels * patch**2 + 1) * D + (grid**2 + prefix) * D + prefix * D
    layer = 4 * (D + 1) * D + (D + 1) * M + (M + 1) * D + 4 * D
    head = (D + 1) * classes * max(prefix, 1) + ((D + 1) * D if name.endswith("in21k") else 0)
    total = embedding + layers * layer + 2 * D + head
    # A depthwise 3x3 convolution has 9 weights and a bias for each channel. Where the class token alone is read, the
    # last layer convolves nothing that nobody reads.
    if "convmlp" in name:
        total += (layers - 1) * 10 * M
    if "convproj" in name:
        total += (3 * layers - 1) * 10 * D
    if "interleaved" in name:  # layers 0 and 2 convolve, depthwise and pointwise, in the place of q, k, v and out
        total += 2 * (10 * D + (D + 1) * D - 4 * (D + 1) * D)
    return total


RESNETS = {  # parameters of the stem, its channels, patch, stride
    "_s16_p8": (9_536, 64, 8, 4),
    "_s4": (9_536, 64, 1, 4),
    "26_s32": (13_946_176, 2048, 1, 32),
    "50_s16": (11_894_848, 1024, 1, 16),
    "50_s32": (23_508_032, 2048, 1, 32),
}


def test_every_listed_model_has_its_golden_parameter_count_and_no_count_is_left_over() -> None:
    assert sorted(COUNTS) == sorted(list_models())
    assert {name: count_by_hand(name) for name in COUNTS} == COUNTS


@pytest.mark.parametrize("name", some(COUNTS, [name for name in COUNTS if name.startswith(("vit_micro", "vit_tiny"))]))
def test_a_model_has_its_golden_parameter_count(name: str) -> None:
    assert count(on_meta(name)) == COUNTS[name]


def macs(model: VisionTransformer) -> float:
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        logits = model.eval()(torch.empty(1, 3, *model.config.image_size, device="meta"))
    assert logits.is_meta
    return counter.get_total_flops() / 2


PUBLISHED_WORK = {  # billions of multiply-accumulates
    "vit_tiny_patch16_224": 1.254,
    "vit_base_patch8_224": 78.148,
    "vit_base_patch16_224": 17.564,
    "vit_large_patch16_224": 61.555,
    "vit_huge_patch14_224": 167.295,
    "deit_tiny_distilled_patch16_224": 1.261,
    "vit_tiny_r_s16_p8_224": 0.434,
    "vit_base_r26_s32_224": 6.711,
    "vit_large_r50_s32_224": 19.413,
}
_QUICK_TO_BUILD = {"vit_base_patch16_224", "deit_tiny_distilled_patch16_224", "vit_tiny_r_s16_p8_224"}


@pytest.mark.parametrize("name", some(PUBLISHED_WORK, _QUICK_TO_BUILD))
def test_published_models_cost_their_published_work(name: str) -> None:
    model = on_meta(name)
    model.shortcut = False
    assert macs(model) / 1e9 == pytest.approx(PUBLISHED_WORK[name], rel=0.002)


def assert_same_answers(model: VisionTransformer, other: VisionTransformer, tolerance: float) -> None:
    """Logits, and gradients of all parameters."""
    dtype = next(model.parameters()).dtype
    batch = images(3, config=model.config).to(dtype)
    expected = model(batch)
    assert 0.1 < expected.std().item() < 30, "the logits should be of a size at which a difference shows"
    assert largest_difference(other(batch), expected) <= tolerance
    of_model, of_other = gradients(model, batch), gradients(other, batch)
    scale = max(gradient.abs().max().item() for gradient in of_model.values())
    for name, gradient in of_model.items():
        assert largest_difference(of_other[name], gradient) <= tolerance * max(scale, 1), name


@pytest.mark.parametrize("fields", [*kinds(), {"layers": 1}, {"layers": 2}])
def test_fused_attention_and_the_shortcut_change_neither_logits_nor_gradients(fields: dict[str, Any]) -> None:
    quick, plain = build(**fields).double(), build(**fields).double()
    plain.shortcut = plain.fused_attention = False
    assert_same_answers(plain, quick, 1e-13)


def test_fused_attention_is_a_switch_for_all_layers() -> None:
    model = build()
    attention = [module for module in model.modules() if isinstance(module, Attention)]
    assert model.fused_attention and all(module.fused for module in attention)
    model.fused_attention = False
    assert not model.fused_attention and not any(module.fused for module in attention)
    attention[0].fused = True
    assert not model.fused_attention, "one layer is not all"


def test_the_shortcut_drops_the_same_samples_in_training() -> None:
    short, whole = (build(drop_path=0.5).double().train() for _ in range(2))
    whole.shortcut = False
    batch, answers = images(16).double(), []
    for model in (short, whole):
        torch.manual_seed(0)
        answers.append(model(batch))
    assert largest_difference(*answers) <= 1e-13
    assert largest_difference(answers[0], whole.eval()(batch)) > 1e-3


@pytest.mark.parametrize("name", ["token", "post-norm", "learned_2d every_layer", "relative every_layer"])
def test_checkpointing_changes_neither_logits_nor_gradients(name: str) -> None:
    fields = VARIETY[name] | {"dropout": 0.3, "attention_dropout": 0.3, "position_dropout": 0.3, "drop_path": 0.5}
    answers = []
    for checkpointing in (False, True):
        model = build(**fields).train()
        model.checkpointing = checkpointing
        torch.manual_seed(0)
        logits = model(images(4))
        torch.manual_seed(0)
        answers.append({"logits": logits.detach()} | gradients(model, images(4)))
    plain, recomputed = answers
    for key, value in plain.items():
        assert torch.equal(value, recomputed[key]), key


def test_checkpointing_runs_each_block_again_in_training_alone() -> None:
    model = build()
    model.checkpointing = True
    calls: list[nn.Module] = []
    for block in model.blocks:
        block.attn.register_forward_pre_hook(lambda module, inputs: calls.append(module))
    for training, runs in ((True, 2), (False, 1)):
        calls.clear()
        gradients(model.train(training), images())
        assert [calls.count(block.attn) for block in model.blocks] == [runs] * 3


@variety
def test_every_parameter_gets_a_gradient_and_is_saved_but_no_fixed_table(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(tiny(**fields)).train()
    nn.functional.cross_entropy(model(images(4)), torch.tensor([0, 3, 6, 2])).backward()
    learned = {
        n for n, p in model.named_parameters() if p.grad is not None and p.grad.isfinite().all() and p.grad.any()
    }
    assert learned == dict(model.named_parameters()).keys() == model.state_dict().keys()


@pytest.mark.parametrize("head", [0, 1])
def test_each_distillation_head_learns_alone(head: int) -> None:
    model = build(distill_token=True, distill_head=True)
    model.forward_heads(images())[head].sum().backward()
    assert (model.head.weight.grad is None) == (head == 1)
    assert (model.head_dist.weight.grad is None) == (head == 0)


NAMED: dict[str, ViTConfig] = {
    "plain": tiny(layers=1),
    "in21k": config_for("vit_micro_patch4_16_in21k", layers=1, num_classes=9),
    "distilled": tiny(layers=1, distill_token=True, distill_head=True),
    "gap": tiny(layers=1, pool="gap"),
    "token+gap": tiny(layers=1, pool="token+gap"),
    "learned_2d": tiny(layers=1, position="learned_2d"),
    "relative every_layer": tiny(layers=2, position="relative", position_at="every_layer"),
    "shared": tiny(layers=2, position="relative", position_at="shared"),
    "learned_1d every_layer": tiny(layers=2, position_at="every_layer"),
    "sincos_2d": tiny(layers=1, position="sincos_2d"),
    "patch_norm": tiny(layers=1, patch_norm=True),
    "post-norm, no qkv bias, no head": tiny(layers=1, norm="post", qkv_bias=False, num_classes=0),
}


def test_the_names_and_shapes_of_weights_are_public_and_do_not_change() -> None:
    golden = json.loads((GOLDEN / "state_dict_keys.json").read_text())
    found = {
        kind: {name: list(tensor.shape) for name, tensor in VisionTransformer(config).state_dict().items()}
        for kind, config in NAMED.items()
    }
    assert found == golden


@variety
@torch.no_grad()
def test_forward_is_forward_head_of_forward_features(fields: dict[str, Any]) -> None:
    model, bare = build(**fields), build(num_classes=0, **fields)
    tokens, logits = model.forward_features(images(3)), model(images(3))
    assert tokens.shape == (3, model.config.tokens, 32) and logits.shape == (3, 7)
    torch.testing.assert_close(model.forward_head(tokens), logits, rtol=0, atol=1e-5)
    heads = model.forward_heads(images(3))
    assert len(heads) == 1 + model.config.distill_head
    torch.testing.assert_close(torch.stack(heads).mean(dim=0), logits, rtol=0, atol=1e-6)
    # A model of no classes returns what the head would read.
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("head")})
    features = model.forward_head(tokens, pre_logits=True)
    assert features.shape == (3, bare.config.feature_size)
    torch.testing.assert_close(bare(images(3)), features, rtol=0, atol=1e-5)


@variety
@torch.no_grad()
def test_forward_layers_returns_the_tokens_after_each_layer(fields: dict[str, Any]) -> None:
    model = build(**fields)
    seen: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(output))
    layers = model.forward_layers(images())
    assert len(layers) == len(seen) == 3
    for ours, hooked in zip(layers, seen, strict=True):
        assert torch.equal(ours, hooked)
    normalised = model.forward_layers(images(), normalise=True)
    assert torch.equal(normalised[-1], model.forward_features(images()))
    assert torch.equal(normalised[0], model.norm(layers[0]))


@torch.no_grad()
def test_forward_layers_returns_the_layers_asked_for_in_their_order() -> None:
    model = build()
    first, second, third = model.forward_layers(images())
    for asked, expected in (([-1], [third]), ([2, 0], [third, first]), ([-3, 1, 1], [first, second, second]), ([], [])):
        got = model.forward_layers(images(), asked)
        assert len(got) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    for layer in (3, -4, 100):
        with refused("model.layer-missing", str(layer)):
            model.forward_layers(images(), [0, layer])


@pytest.mark.parametrize("name", ["token", "relative distilled"])
@torch.no_grad()
def test_an_empty_batch_gives_no_logits(name: str) -> None:
    model = build(**VARIETY[name])
    for fused in (True, False):
        model.fused_attention = fused
        assert model(images(2)[:0]).shape == (0, 7)


@torch.no_grad()
def test_the_layout_of_the_images_in_memory_is_nothing() -> None:
    model, batch = build(), images(3)
    for other in (batch.to(memory_format=torch.channels_last), batch.mT.contiguous().mT):
        assert not other.is_contiguous()
        torch.testing.assert_close(model(other), model(batch), rtol=0, atol=1e-5)


@variety
@torch.no_grad()
def test_autocast_to_bfloat16_keeps_the_answer(fields: dict[str, Any]) -> None:
    model = build(std=0.1, **fields)
    for fused in (True, False):
        model.fused_attention = fused
        expected = model(images())
        with torch.autocast("cpu", torch.bfloat16):
            assert largest_difference(model(images()).float(), expected) < 0.05 * (1 + expected.abs().max().item())


@pytest.mark.parametrize("method", ["forward", "forward_heads", "forward_features", "forward_layers", "embed"])
def test_images_that_do_not_fit_are_refused_with_both_shapes(method: str) -> None:
    model = build()
    for shape in ((2, 3, 16, 12), (2, 3, 24, 32), (2, 1, 12, 16), (3, 12, 16), (1, 2, 3, 12, 16)):
        with refused("model.images-misshapen", "(batch, 3, 12, 16)", str(shape)):
            getattr(model, method)(torch.zeros(shape))


@pytest.fixture
def clean_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("clean_dynamo")
def test_a_model_compiles_as_one_graph_with_the_same_logits_and_gradients() -> None:
    model = build(layers=2, **VARIETY["relative post-norm"])
    expected, logits = gradients(model, images()), model(images())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model.zero_grad(set_to_none=True)
    found = compiled(images())
    torch.testing.assert_close(found, logits, rtol=0, atol=1e-5)
    (found * torch.linspace(-1.0, 1.5, found.numel()).view_as(found)).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_program_exported_with_a_free_batch_takes_any() -> None:
    model = build(layers=1, **VARIETY["relative every_layer"])
    batch = {"images": {0: torch.export.Dim("batch", min=1, max=64)}}
    exported = torch.export.export(model, (images(3),), dynamic_shapes=batch).module()
    for size in (1, 5, 64):
        torch.testing.assert_close(exported(images(size)), model(images(size)), rtol=0, atol=1e-5)
