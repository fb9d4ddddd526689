"""Attention within rows, columns and windows: eqs. 6-7 by hand, who reads whom, and every way to compute it."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import runs
import vitkit
from refusals import refused
from tiny import GRID, LOCAL, build, gradients, images, largest_difference, some, tiny
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.explanation import attention_maps, can_explain, gradient_rollout, rollout
from vitkit.inference import cast_copy, prepare
from vitkit.model import VisionTransformer, ViTConfig
from vitkit.model.vit import Attention
from vitkit.profiling import describe

every = pytest.mark.parametrize("fields", [pytest.param(fields, id=name) for name, fields in LOCAL.items()])
few = pytest.mark.parametrize("fields", [pytest.param(LOCAL[name], id=name) for name in ("axial", "window")])


def reads(config: ViTConfig, layer: int) -> Tensor:
    """Which token reads which, (N, N): written down patch by patch."""
    P, (h, w) = config.prefix_tokens, config.grid
    allowed = torch.ones(config.tokens, config.tokens, dtype=torch.bool)
    for query in range(h * w):
        for key in range(h * w):
            (y, x), (v, u) = divmod(query, w), divmod(key, w)
            if config.attention == "axial":
                near = y == v if layer % 2 == 0 else x == u
            else:
                assert config.window_size is not None
                p, q = config.window_size
                near = layer in config.global_layers or (y // p == v // p and x // q == u // q)
            allowed[P + query, P + key] = near
    return allowed


def by_hand(model: VisionTransformer, layer: int, x: Tensor) -> Tensor:
    """Eqs. 5-8 with explicit loops over heads, and logits of minus infinity where nothing is read."""
    config, attention = model.config, model.blocks[layer].attn
    q, k, v = attention.project(x)
    relative = model.positions_of(layer)[1]
    q, k, bias = (q, k, None) if relative is None else relative(q, k, attention.scale)
    heads = []
    for head in range(config.heads):
        logits = q[:, head] @ k[:, head].transpose(1, 2) * attention.scale
        logits = logits if bias is None else logits + bias.expand(1, config.heads, -1, -1)[:, head]
        logits[:, ~reads(config, layer)] = -torch.inf
        heads.append(logits.softmax(dim=-1) @ v[:, head])
    return attention.proj(attention.norm(torch.cat(heads, dim=-1)))


@every
def test_each_layer_is_attention_by_hand(fields: dict[str, Any]) -> None:
    model = build(**fields).double()
    x = torch.randn(2, model.config.tokens, model.config.hidden_size, dtype=torch.float64)
    for layer in range(model.config.layers):
        attention = model.blocks[layer].attn
        if isinstance(attention, Attention):
            wanted = by_hand(model, layer, x)
            for queries, fused in itertools.product((None, 1, model.config.prefix_tokens + 3), (True, False)):
                attention.fused = fused
                made = attention(x, queries, model.positions_of(layer)[1])
                assert largest_difference(made, wanted[:, :queries]) < 1e-12


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"attention": "axial", "image_size": (8, 48)}, (0,)),  # a single row
        ({"attention": "axial", "image_size": (48, 8)}, (1,)),  # a single column
        ({"attention": "window", "window_size": (5, 7)}, (0, 1)),
        ({"attention": "window", "window_size": 9}, (0, 1)),  # larger than the grid, which is not padded
        ({"attention": "window", "window_size": 2, "global_layers": (0, 1)}, (0, 1)),
    ],
)
def test_it_is_full_attention_where_windows_cover_the_grid(fields: dict[str, Any], layers: tuple[int, ...]) -> None:
    same = {**GRID, "layers": 2, **fields}
    full = {name: value for name, value in same.items() if name not in ("attention", "window_size", "global_layers")}
    local, plain_model = build(**same), build(**full)
    x = torch.randn(2, local.config.tokens, local.config.hidden_size)
    for layer in range(2):
        equal = torch.equal(local.blocks[layer](x), plain_model.blocks[layer](x))
        assert equal == (layer in layers)


@every
def test_every_parameter_is_trained(fields: dict[str, Any]) -> None:
    for name, gradient in gradients(build(**fields).train(), images(config=tiny(**fields))).items():
        assert torch.isfinite(gradient).all(), name
        assert gradient.abs().max() > 0 or "qkv.bias" in name or "kv.bias" in name, name


@every
def test_every_way_to_compute_it_gives_the_same_answer(fields: dict[str, Any]) -> None:
    model = build(**fields)
    batch = images(config=model.config)
    with torch.inference_mode():
        wanted = model(batch)
        bound = max(1.0, wanted.abs().max().item())
        assert largest_difference(prepare(model)(batch), wanted) <= 1e-5 * bound
        assert largest_difference(prepare(model, torch.bfloat16)(batch), wanted) <= 0.1 * bound
        assert largest_difference(cast_copy(model)(batch), wanted) <= 0.1 * bound
        model.shortcut = False
        assert largest_difference(model(batch), wanted) <= 1e-5
        model.fused_attention = False
        assert largest_difference(model(batch), wanted) <= 1e-5


@pytest.mark.parametrize("name", some(LOCAL, ["axial registers", "window bias", "window global", "window mixtures"]))
def test_costs_are_those_of_the_flop_counter(name: str) -> None:
    fields = LOCAL[name]
    config = tiny(**fields)
    model, counter = build(**fields), FlopCounterMode(display=False)
    model.fused_attention = model.shortcut = False
    with counter:
        model(images(1, config=config))
    info = describe(config)
    assert round(info.gmacs * 1e9) == counter.get_total_flops() // 2
    assert sum(stage.macs * stage.times for stage in info.stages) == round(info.gmacs * 1e9)
    assert sum(stage.parameters * stage.times for stage in info.stages) == info.parameters
    model.shortcut, counter = True, FlopCounterMode(display=False)
    with counter:
        model(images(1, config=config))
    assert round(info.gmacs_executed * 1e9) == counter.get_total_flops() // 2


@every
def test_maps_are_the_matrices_of_each_layer_with_zeros_outside(fields: dict[str, Any]) -> None:
    model = build(**fields)
    config, batch = model.config, images(config=model.config)
    attending = [layer for layer in range(config.layers) if layer not in config.conv_layers]
    assert can_explain(model) or config.pool == "map"
    maps = list(attention_maps(model, batch))
    for layer, attention in zip(attending, maps, strict=True):
        assert largest_difference(attention.sum(dim=-1), torch.ones(attention.shape[:-1])) < 1e-5
        assert ((attention > 0) == reads(config, layer)).all()
    if not config.conv_layers and config.norm == "pre":
        block, x = model.blocks[0], model.blocks[0].norm1(model.embed(batch))
        joined = (maps[0] @ block.attn.project(x)[2]).transpose(1, 2).flatten(2)
        made = block.attn(x, None, model.positions_of(0)[1])
        assert largest_difference(block.attn.proj(block.attn.norm(joined)), made) < 1e-5
    if config.pool != "map":
        assert torch.isfinite(rollout(model, batch)).all()
        assert torch.isfinite(gradient_rollout(model, batch, 1)).all()


def saved(model: VisionTransformer, folder: Path) -> None:
    names = [f"c{i}" for i in range(model.config.num_classes)]
    Classifier(model, names, Preprocess(size=model.config.image_size)).save(folder)


@few
def test_a_model_survives_its_folder_and_another_size_of_image_keeps_the_windows(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    model = build(**fields)
    saved(model, tmp_path / "model")
    again = vitkit.load(tmp_path / "model").model
    assert again.config == model.config == ViTConfig.from_dict(model.config.to_dict())
    assert torch.equal(again(images(config=model.config)), model(images(config=model.config)))
    larger = vitkit.load(tmp_path / "model", image_size=(72, 48)).model
    assert larger.config.grid == (9, 6) and larger.config.window_size == fields.get("window_size")
    x = torch.randn(1, larger.config.tokens, larger.config.hidden_size)
    assert largest_difference(larger.blocks[0].attn(x), by_hand(larger, 0, x)) < 1e-5
    assert torch.isfinite(larger(images(config=larger.config))).all()


def test_a_run_trains_and_is_loaded_and_explained(tmp_path: Path) -> None:
    photos = runs.shared_photos()
    fields = {**runs.SIZE, "attention": "axial", "layers": 2}
    quick = runs.quick_fields(model_fields=fields, drop_path=0.1, epochs=1)
    vitkit.train(photos, vitkit.Recipe(**quick), out=tmp_path / "run")
    run = tmp_path / "second"
    quick = {name: value for name, value in quick.items() if name not in ("model", "model_fields", "weights")}
    vitkit.train(photos, vitkit.Recipe(**quick, method="lora", weights=str(tmp_path / "run")), out=run)
    assert vitkit.load(run).model.config.attention == "axial"
    vitkit.explain(run, photos / "red" / "img1.png", method="all", out=tmp_path / "maps")


@few
def test_what_needs_other_tokens_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    name = fields["attention"]
    saved(build(**fields, num_classes=5), tmp_path / "model")
    for to, end in (("timm", ".safetensors"), ("hf", ""), ("npz", ".npz")):
        with refused("weights.layout-unsuitable", f"attention '{name}'"):
            vitkit.convert(tmp_path / "model", tmp_path / f"written{end}", to=to)
    quick = runs.quick_fields(model_fields={**runs.SIZE, "attention": name, "layers": 2})
    with refused("training.patch-dropout-unsupported", name):
        vitkit.train(runs.shared_photos(), vitkit.Recipe(**quick, patch_dropout=0.5), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fields_follow_the_kind_of_attention() -> None:
    config = tiny().replace(attention="window")
    assert config.window_size == (7, 7)
    assert config.replace(window_size=3).window_size == (3, 3)
    config = config.replace(layers=6, global_layers=(2, 5))
    assert config.replace(layers=3).global_layers == (2,)
    back = config.replace(attention="softmax")
    assert (back.window_size, back.global_layers) == (None, ())
    model = vitkit.create_model("vit_tiny_patch16_32", num_classes=2, attention="window", window_size=1)
    assert model.config.window_size == (1, 1)
