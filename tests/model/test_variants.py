"""Attention and blocks of other kinds: timm's answers and gradients, and every way to compute, write and explain.

Each either works or refuses by the field's name and value.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import runs
import vitkit
from tiny import build, gradients, images, largest_difference, tiny
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.explanation import attention_maps, can_explain, choose_methods, gradient_rollout, occlusion, rollout
from vitkit.inference import merge, plain, prepare
from vitkit.model import WRITTEN, VisionTransformer, ViTConfig, fields_by_names
from vitkit.model.layers import BatchNorm, affine_of
from vitkit.model.local import LocalAttention
from vitkit.model.variants import VARIANTS
from vitkit.profiling import describe
from vitkit.weights import inspect

SIDE = 64
DIFFERENTIAL = {"attention": "differential"}
SEPARATE, FUSED = {"parallel": "separate"}, {"parallel": "fused"}
KINDS: dict[str, dict[str, Any]] = {
    "differential": DIFFERENTIAL,
    "parallel": SEPARATE,
    "differential parallel": {**DIFFERENTIAL, **FUSED},
}
LOCAL: dict[str, dict[str, Any]] = {
    "axial": {"attention": "axial"},
    "window": {"attention": "window", "window": 3},  # which does not divide the grid
    "batch norm": {"norm_kind": "batch"},
}
TIMM = {
    "differential": "vit_dwee_patch16_reg1_gap_256",
    "parallel": "vit_pwee_patch16_reg1_gap_256",
    "differential parallel": "vit_dpwee_patch16_reg1_gap_256",
}
OTHERS: dict[str, dict[str, Any]] = {  # what a kind is combined with
    "alone": {},
    "gap": {"pool": "gap", "registers": 1, "layer_scale": 0.1},
    "bare": {"qkv_bias": False, "proj_bias": False, "attention_norm": True, "qk_scale": 0.3, "norm_kind": "rms"},
    "mixtures": {"mlp_kind": "conv", "conv_layers": (0,), "pool": "gap"},
    "pooled by attention": {"pool": "map", "mlp_norm": True},
}
kinds = pytest.mark.parametrize("kind", KINDS)
every = pytest.mark.parametrize(
    "fields",
    [
        pytest.param({**other, **own}, id=f"{kind} {name}")
        for kind, own in {**KINDS, **LOCAL}.items()
        for name, other in OTHERS.items()
    ],
)


def reference(kind: str, **arguments: Any) -> Any:
    """timm's model of this kind with three small layers and random weights."""
    torch.manual_seed(0)
    sizes = {"img_size": SIDE, "embed_dim": 64, "depth": 3, "num_heads": 4, "num_classes": 5}
    model = timm.create_model(TIMM[kind], **sizes | arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * (parameter.ndim == 1) + 0.15 * torch.randn_like(parameter))
    return model


def made(**fields: Any) -> VisionTransformer:
    """A tiny model with random weights. Its batch norms, if it has any, have seen a batch."""
    model = build(**fields)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    for norm in norms:
        norm.momentum = None  # all batches count alike
    if norms:
        with torch.no_grad():
            model.train()(images(8))
    return model.eval()


def pixels(count: int = 2) -> Tensor:
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def loaded(model: Any, folder: Path) -> Classifier:
    save_file(model.state_dict(), folder / "timms.safetensors")
    return vitkit.load(folder / "timms.safetensors", heads=4)


@kinds
def test_answers_and_gradients_are_timms(tmp_path: Path, kind: str) -> None:
    theirs = reference(kind)
    ours = loaded(theirs, tmp_path).model
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    found = []
    for model in (ours, theirs):
        batch = pixels().requires_grad_()
        logits = model(batch)
        (logits * torch.linspace(-1.0, 1.5, logits.numel()).view_as(logits)).sum().backward()
        found.append((logits.detach(), batch.grad, model.patch_embed.proj.weight.grad))
    assert 0.3 < found[1][0].std() < 10, "the weights should be large enough for a difference to show"
    for own, other in zip(*found, strict=True):
        assert largest_difference(own, other) <= 1e-5 * max(1.0, other.abs().max().item())


@kinds
def test_a_bare_file_tells_the_kind(tmp_path: Path, kind: str) -> None:
    config = loaded(reference(kind), tmp_path).model.config
    assert {name: getattr(config, name) for name in KINDS[kind]} == KINDS[kind]
    assert not {"attention", "parallel"} & inspect(tmp_path / "timms.safetensors", heads=4).report.assumed.keys()


@kinds
@pytest.mark.parametrize("arguments", [{}, {"qkv_bias": False}], ids=["biases", "no qkv bias"])
def test_timms_layout_is_written_with_timms_names_and_read_back(
    tmp_path: Path, kind: str, arguments: dict[str, Any]
) -> None:
    theirs = reference(kind, **arguments)
    classifier = loaded(theirs, tmp_path)
    assert largest_difference(classifier.model(pixels()), theirs(pixels())) <= 1e-5
    classifier.save(tmp_path / "model")
    vitkit.convert(tmp_path / "model", tmp_path / "timm", to="timm")
    written, expected = load_file(tmp_path / "timm" / "model.safetensors"), theirs.state_dict()
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())
    again = vitkit.load(tmp_path / "timm", heads=4)
    assert torch.equal(again.model(pixels()), classifier.model(pixels()))
    import json

    told = json.loads((tmp_path / "timm" / "config.json").read_text())
    rebuilt = timm.create_model(told["architecture"], num_classes=5, **told["model_args"]).eval()
    rebuilt.load_state_dict(written)
    assert largest_difference(rebuilt(pixels()), theirs(pixels())) <= 1e-5


@kinds
@pytest.mark.parametrize(("to", "end"), [("hf", ""), ("npz", ".npz")])
def test_layouts_without_a_handler_refuse_by_name_and_value(tmp_path: Path, kind: str, to: str, end: str) -> None:
    model = build(**KINDS[kind], num_classes=5)
    classifier = Classifier(model, [f"c{i}" for i in range(5)], Preprocess(size=model.config.image_size))
    classifier.save(tmp_path / "model")
    name, value = next(iter(KINDS[kind].items()))
    with pytest.raises(VitkitError, match=f"layout cannot express {name} '{value}'"):
        vitkit.convert(tmp_path / "model", tmp_path / f"written{end}", to=to)


@every
def test_the_shortcut_and_the_written_out_attention_change_no_answer(fields: dict[str, Any]) -> None:
    model = made(**fields)
    with torch.inference_mode():
        whole, batch = model(images()), images()
        model.shortcut = False
        assert largest_difference(model(batch), whole) <= 1e-5
        model.fused_attention = False
        assert not model.fused_attention or fields.get("conv_layers") == tuple(range(model.config.layers))
        assert largest_difference(model(batch), whole) <= 1e-5


@every
def test_every_parameter_is_initialised_and_trained(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(tiny(**fields))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    for name, own in gradients(made(**fields).train(), images()).items():
        assert torch.isfinite(own).all() and (own.abs().max() > 0 or "qkv.bias" in name or "kv.bias" in name), name


@every
def test_the_optimised_model_answers_as_the_model_does(fields: dict[str, Any]) -> None:
    model = made(**fields)
    with torch.inference_mode():
        wanted = model(images())
        assert largest_difference(prepare(model)(images()), wanted) <= 1e-5 * max(1.0, wanted.abs().max())
        assert largest_difference(plain(model)(images()), wanted) <= 0.1 * wanted.abs().max()


@every
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_graphs_answer_as_the_model_does(fields: dict[str, Any], runtime: str) -> None:
    model = made(**fields)
    with torch.inference_mode():
        wanted = model(images())
    if runtime == "onnx":
        ort = pytest.importorskip("onnxruntime")
        from vitkit.inference.backends.onnx_graph import to_graph

        session = ort.InferenceSession(to_graph(model).SerializeToString(), providers=["CPUExecutionProvider"])
        found = session.run(None, {"images": images().numpy()})[0]
    else:
        openvino = pytest.importorskip("openvino")
        from vitkit.inference.backends.openvino_graph import to_graph as to_openvino

        compiled = openvino.compile_model(to_openvino(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = compiled(images().numpy())[0]
    assert largest_difference(torch.from_numpy(found), wanted) <= 1e-5 * max(1.0, wanted.abs().max())


@kinds
@pytest.mark.parametrize("ending", ["onnx", "xml", "pt2"])
def test_exported_files_pass_their_gate(tmp_path: Path, kind: str, ending: str) -> None:
    loaded(reference(kind), tmp_path).save(tmp_path / "model")
    assert vitkit.export(tmp_path / "model", out=tmp_path / f"out.{ending}").file.is_file()


@every
def test_the_walk_through_the_model_sums_to_its_totals(fields: dict[str, Any]) -> None:
    info = describe(tiny(**fields))
    assert sum(stage.parameters * stage.times for stage in info.stages) == info.parameters
    assert sum(stage.macs * stage.times for stage in info.stages) == round(info.gmacs * 1e9)


@kinds
@pytest.mark.parametrize("more", [{}, {"method": "lora"}], ids=["all of it", "lora"])
def test_a_run_trains_is_loaded_and_explained(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    photos = runs.photos(tmp_path / "photos")
    fields = runs.quick_fields(model_fields={**runs.SIZE, **KINDS[kind], "drop_path": 0.1})
    vitkit.train(photos, **fields, out=tmp_path / "run", say=lambda line: None)
    run = tmp_path / "run"
    if more:
        fields = {name: value for name, value in fields.items() if name not in ("model", "model_fields", "weights")}
        vitkit.train(photos, **fields, **more, weights=str(run), out=tmp_path / "second", say=lambda line: None)
        run = tmp_path / "second"
    model = vitkit.load(run).model
    assert {name: getattr(model.config, name) for name in KINDS[kind]} == KINDS[kind]
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    picture = photos / "red" / "img1.png"
    if "attention" in KINDS[kind]:
        with pytest.raises(
            VitkitError, match=r"does not know attention='differential' of ViTConfig.*--method occlusion"
        ):
            vitkit.explain(run, picture, out=tmp_path / "maps")
        vitkit.explain(run, picture, method="occlusion", out=tmp_path / "maps")
    else:
        vitkit.explain(run, picture, out=tmp_path / "maps")


@kinds
def test_token_merging_is_refused_by_name_and_value(kind: str) -> None:
    name, value = next(iter(KINDS[kind].items()))
    with pytest.raises(VitkitError, match=f"token merging does not know {name}='{value}' of ViTConfig, in which"):
        merge(build(**KINDS[kind]), 1)


def test_differential_attention_has_no_maps_and_occlusion_explains_it() -> None:
    model = build(**DIFFERENTIAL, num_classes=5)
    for method in (
        lambda: next(iter(attention_maps(model, images()))),
        lambda: rollout(model, images()),
        lambda: gradient_rollout(model, images()),
    ):
        with pytest.raises(VitkitError, match=r"attention maps does not know attention='differential'.*occlusion"):
            method()
    assert not can_explain(model)
    assert choose_methods("all", None, model) == ["occlusion"]
    assert torch.isfinite(occlusion(model, images(), 1)).all()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"heads": 4, "hidden_size": 12}, "needs an even head size, not 3"),
        ({"projection": "conv"}, "cannot be combined with projection"),
        ({"position": "relative", "position_at": "shared"}, "relative positions"),
        ({"rotary": "axial", "heads": 1, "hidden_size": 12}, "rotary"),
    ],
)
def test_what_differential_attention_cannot_be_combined_with_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(VitkitError, match=told):
        tiny(**DIFFERENTIAL, **fields)


@pytest.mark.parametrize("fields", [SEPARATE, FUSED, {**SEPARATE, "position": "relative", "position_at": "shared"}])
def test_maps_of_parallel_blocks_are_those_of_their_attention(fields: dict[str, Any]) -> None:
    model = build(**fields)
    maps = list(attention_maps(model, images()))
    assert len(maps) == model.config.layers
    assert all(torch.allclose(own.sum(dim=-1), torch.ones(()), atol=1e-5) for own in maps)
    assert can_explain(model)
    assert torch.isfinite(gradient_rollout(model, images(), 1)).all()
    x = model.embed(images())
    q, k, _ = model.blocks[0].attn.project(model.blocks[0].norm1(x))
    relative = model.positions_of(0)[1]
    bias = None if relative is None else relative(q, k, model.blocks[0].attn.scale)[2]
    assert largest_difference(model.blocks[0].attn.matrix(q, k, bias), maps[0]) <= 1e-6


def test_parallel_blocks_need_their_norm_first() -> None:
    with pytest.raises(VitkitError, match="parallel 'fused' has one norm ahead of both branches"):
        tiny(**FUSED, norm="post")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (FUSED, "cannot express attention 'softmax' with parallel 'fused'"),
        ({**SEPARATE, **DIFFERENTIAL}, "cannot express attention 'differential' with parallel 'separate'"),
        ({**SEPARATE, "mlp_kind": "swiglu"}, "cannot express mlp_kind 'swiglu' with parallel 'separate'"),
    ],
)
def test_blocks_that_timm_has_not_are_not_written_in_its_layout(
    tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    model = build(**fields, num_classes=5)
    Classifier(model, [f"c{i}" for i in range(5)], Preprocess(size=model.config.image_size)).save(tmp_path / "model")
    with pytest.raises(VitkitError, match=told):
        vitkit.convert(tmp_path / "model", tmp_path / "written.safetensors", to="timm")


@every
def test_a_configuration_survives_its_json(fields: dict[str, Any]) -> None:
    config = tiny(**fields)
    assert ViTConfig.from_dict(config.to_dict()) == config


def test_rows_name_fields_that_no_layout_writes_by_itself_and_signs_that_differ() -> None:
    names = {field.name for field in dataclasses.fields(ViTConfig)}
    assert {row.field for row in VARIANTS} <= names - WRITTEN
    assert all(fields_by_names(reference(kind).state_dict()) == KINDS[kind] for kind in KINDS)
    assert fields_by_names(timm.create_model("vit_tiny_patch16_224").state_dict()) == {}


# --- Axial attention, windows and batch norms ---------------------------------------------------------------


def dense(attention: LocalAttention, x: Tensor) -> Tensor:
    """The layer as full attention whose other entries are left out, written out."""
    q, k, v = (part.unflatten(2, (attention.heads, -1)).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=-1))
    p, (h, w), (rows, columns) = attention.prefix_tokens, attention.grid, attention.group_size
    logits = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    for i, j in itertools.product(range(h * w), repeat=2):
        if (i // w // rows, i % w // columns) != (j // w // rows, j % w // columns):
            logits[:, :, p + i, p + j] = float("-inf")
    return attention.proj((logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


@given(data=st.data())
@settings(max_examples=25)
def test_local_attention_is_full_attention_with_the_other_entries_left_out(data: st.DataObject) -> None:
    grid = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    kind = data.draw(st.sampled_from([{"attention": "axial"}, {"attention": "window"}]))
    if kind["attention"] == "window":
        kind["window"] = data.draw(st.integers(1, 6))
    config = tiny(
        **kind, image_size=(4 * grid[0], 4 * grid[1]), pool="gap", class_token=data.draw(st.booleans()),
        registers=data.draw(st.integers(0, 2)),
    )  # fmt: skip
    torch.manual_seed(data.draw(st.integers(0, 99)))
    attention = LocalAttention(config, data.draw(st.integers(0, 1))).double()
    x = torch.randn(2, config.tokens, config.hidden_size, dtype=torch.float64, requires_grad=True)
    n = data.draw(st.integers(1, config.tokens))
    results = []
    for whole in (attention(x, n), dense(attention, x)[:, :n]):
        (gradient,) = torch.autograd.grad(whole.square().sum(), x)
        results.append((whole, gradient))
    for ours, expected in zip(*results, strict=True):
        assert largest_difference(ours, expected) <= 1e-10


def test_a_patch_changes_the_rows_then_the_columns_then_the_windows_of_its_own() -> None:
    for kind, layer, expected in (
        ({"attention": "axial"}, 0, {8, 9, 10, 11}),
        ({"attention": "axial"}, 1, {1, 5, 9}),
        ({"attention": "window", "window": 2}, 0, {8, 9}),
    ):
        config = tiny(**kind, pool="gap")  # 3 x 4 patches
        attention = LocalAttention(config, layer)
        x = torch.randn(1, 12, config.hidden_size)
        other = x.clone()
        other[:, 9] += 1
        changed = (attention(x) - attention(other)).abs().amax(dim=(0, 2)) > 0
        assert set(changed.nonzero()[:, 0].tolist()) == expected


def test_windows_as_large_as_the_grid_and_global_layers_are_full_attention() -> None:
    full = build()
    for fields in (
        {"attention": "window", "window": 4},
        {"attention": "window", "window": 2, "global_layers": (0, 1, 2)},
        {"attention": "axial", "global_layers": (0, 1, 2)},
    ):
        model = build(**fields)
        model.load_state_dict(full.state_dict())
        assert largest_difference(model(images()), full(images())) <= 1e-5
    narrow = build(attention="window", window=2)
    narrow.load_state_dict(full.state_dict())
    assert largest_difference(narrow(images()), full(images())) > 1e-2


def test_local_attention_costs_less_and_dropout_leaves_its_expectation() -> None:
    side = {"image_size": (64, 64), "pool": "gap"}
    full, axial = describe(tiny(**side)), describe(tiny(**side, attention="axial"))
    assert axial.parameters == full.parameters
    # Of 256 patches a patch attends to 16: q k^T and its product with v in each of 3 layers.
    assert round((full.gmacs - axial.gmacs) * 1e9) == 3 * 2 * 256 * (256 - 16) * 32
    torch.manual_seed(0)
    attention = LocalAttention(tiny(attention="window", window=2, attention_dropout=0.5), 0)
    x = torch.randn(1, 13, 32)
    expected = attention.eval()(x)
    attention.train()
    mean = torch.stack([attention(x) for _ in range(2000)]).mean(dim=0)
    assert largest_difference(mean, expected) < 0.05
    assert largest_difference(attention(x), expected) > 0.01


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"attention": "window", "window": 0}, "window must be at least 1"),
        ({"window": 3}, "window is of attention 'window'"),
        ({"global_layers": (0,)}, "global_layers are of attention 'axial' and 'window'"),
        ({"attention": "axial", "global_layers": (3,)}, "global_layers must be layers from 0 to 2"),
        ({"attention": "axial", "rotary": "axial"}, "attention 'axial' cannot be combined with"),
        ({"attention": "window", "position": "relative", "position_at": "shared"}, "relative"),
    ],
)
def test_what_local_attention_cannot_be_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(VitkitError, match=expected):
        tiny(**fields)


def test_whoever_has_no_way_for_local_attention_refuses_it(tmp_path: Path) -> None:
    model = build(attention="axial", num_classes=5)
    with pytest.raises(VitkitError, match=r"does not know attention='axial'.*occlusion"):
        rollout(model, images())
    with pytest.raises(VitkitError, match=r"token merging does not know attention='axial'"):
        merge(model, 1)
    Classifier(model, [f"c{i}" for i in range(5)], Preprocess(size=model.config.image_size)).save(tmp_path / "model")
    for to in ("timm", "hf"):
        with pytest.raises(VitkitError, match="layout cannot express attention 'axial'"):
            vitkit.convert(tmp_path / "model", tmp_path / to, to=to)
    assert torch.equal(vitkit.load(tmp_path / "model").model(images()), model(images()))


def test_batch_norms_are_torchs_over_all_tokens() -> None:
    norm, theirs = BatchNorm(8, 1e-6), torch.nn.BatchNorm1d(8, 1e-6)
    for _ in range(2):
        x = torch.randn(4, 5, 8) * 3 + 1
        assert largest_difference(norm(x), theirs(x.transpose(1, 2)).transpose(1, 2)) <= 1e-6
    norm.eval(), theirs.eval()
    assert largest_difference(norm(x), theirs(x.transpose(1, 2)).transpose(1, 2)) <= 1e-6
    assert largest_difference(norm(x[:, 0]), norm(x)[:, 0]) <= 1e-6
    factor, shift = affine_of(norm)
    assert shift is not None
    assert largest_difference((x * factor + shift).float(), norm(x)) <= 1e-5


def test_batch_norms_learn_the_same_with_and_without_the_shortcut() -> None:
    found = []
    for shortcut in (True, False):
        model = build(norm_kind="batch").train()
        model.shortcut = shortcut
        model(images(6))
        found.append([buffer.clone() for buffer in model.buffers()])
    for short, whole in zip(*found, strict=True):
        assert torch.equal(short, whole)


@pytest.mark.parametrize("fields", [{"norm_kind": "batch"}, {"attention": "axial"}], ids=["batch norm", "axial"])
def test_local_attention_and_batch_norms_are_trained_averaged_and_shipped(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    photos = runs.photos(tmp_path / "photos")
    quick = runs.quick_fields(model_fields={**runs.SIZE, **fields}, ema=0.5)
    vitkit.train(photos, **quick, out=tmp_path / "run", say=lambda line: None)
    model = vitkit.load(tmp_path / "run").model
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    assert all(norm.running_mean is not None and norm.running_mean.abs().max() > 0 for norm in norms)
    assert bool(norms) == ("norm_kind" in fields)
    picture = photos / "red" / "img1.png"
    vitkit.explain(tmp_path / "run", picture, method="occlusion", out=tmp_path / "maps")
    for ending in ("onnx", "xml", "pt2"):
        assert vitkit.export(tmp_path / "run", out=tmp_path / f"out.{ending}").file.is_file()
