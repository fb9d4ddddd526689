"""Attention and blocks of other kinds: timm's answers and gradients, and every way to compute, write and explain.

Each either works or refuses by the field's name and value.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import runs
import vitkit
from tiny import build, gradients, images, largest_difference, some, tiny
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.explanation import attention_maps, can_explain, choose_methods, gradient_rollout, occlusion, rollout
from vitkit.inference import merge, plain, prepare
from vitkit.model import WRITTEN, VisionTransformer, ViTConfig, fields_by_names
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
        pytest.param({**own, **other}, id=f"{kind} {name}")
        for kind, own in KINDS.items()
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
    model = build(**fields)
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
    for name, own in gradients(build(**fields).train(), images()).items():
        assert torch.isfinite(own).all() and (own.abs().max() > 0 or "qkv.bias" in name or "kv.bias" in name), name


@every
def test_the_optimised_model_answers_as_the_model_does(fields: dict[str, Any]) -> None:
    model = build(**fields)
    with torch.inference_mode():
        wanted = model(images())
        assert largest_difference(prepare(model)(images()), wanted) <= 1e-5 * max(1.0, wanted.abs().max())
        assert largest_difference(plain(model)(images()), wanted) <= 0.1 * wanted.abs().max()


@every
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_graphs_answer_as_the_model_does(fields: dict[str, Any], runtime: str) -> None:
    model = build(**fields)
    with torch.inference_mode():
        wanted = model(images())
    if runtime == "onnx":
        ort = pytest.importorskip("onnxruntime")
        from vitkit.inference.backends.graphs import write_onnx

        session = ort.InferenceSession(write_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"])
        found = session.run(None, {"images": images().numpy()})[0]
    else:
        openvino = pytest.importorskip("openvino")
        from vitkit.inference.backends.graphs import write_openvino

        compiled = openvino.compile_model(write_openvino(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = compiled(images().numpy())[0]
    assert largest_difference(torch.from_numpy(found), wanted) <= 1e-5 * max(1.0, wanted.abs().max())


@kinds
@pytest.mark.parametrize("ending", ["onnx", "xml"])
def test_exported_files_pass_their_gate(tmp_path: Path, kind: str, ending: str) -> None:
    loaded(reference(kind), tmp_path).save(tmp_path / "model")
    assert vitkit.export(tmp_path / "model", out=tmp_path / f"out.{ending}").file.is_file()


@pytest.mark.parametrize("kind", some(KINDS, ["differential parallel"]))
def test_an_exported_program_passes_its_gate(tmp_path: Path, kind: str) -> None:
    test_exported_files_pass_their_gate(tmp_path, kind, "pt2")


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
            VitkitError, match=r"cannot be used with attention='differential' of ViTConfig.*--method occlusion"
        ):
            vitkit.explain(run, picture, out=tmp_path / "maps")
        vitkit.explain(run, picture, method="occlusion", out=tmp_path / "maps")
    else:
        vitkit.explain(run, picture, out=tmp_path / "maps")


@kinds
def test_token_merging_is_refused_by_name_and_value(kind: str) -> None:
    name, value = next(iter(KINDS[kind].items()))
    with pytest.raises(VitkitError, match=f"token merging cannot be used with {name}='{value}' of ViTConfig, which"):
        merge(build(**KINDS[kind]), 1)


def test_differential_attention_has_no_maps_and_occlusion_explains_it() -> None:
    model = build(**DIFFERENTIAL, num_classes=5)
    for method in (
        lambda: next(iter(attention_maps(model, images()))),
        lambda: rollout(model, images()),
        lambda: gradient_rollout(model, images()),
    ):
        with pytest.raises(
            VitkitError, match=r"attention maps cannot be used with attention='differential'.*occlusion"
        ):
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
