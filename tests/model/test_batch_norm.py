"""Batch norms in a Vision Transformer: torch's on transposed tokens, training, saving and every backend."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import runs
import vitkit
from tiny import build, gradients, images, largest_difference, randomise, tiny
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.explanation import gradient_rollout, rollout
from vitkit.inference import merge, plain, prepare
from vitkit.model import VisionTransformer
from vitkit.model.layers import BatchNorm
from vitkit.profiling import describe
from vitkit.training.optim import WeightAverage
from vitkit.training.recipe import Recipe

KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"pool": "gap", "fc_norm": True, "patch_norm": True, "embed_norm": True},
    "sub-norms": {"attention_norm": True, "mlp_norm": True, "pool": "token+gap", "qkv_bias": False},
    "post": {"norm": "post", "layer_scale": 0.1},
    "res-post": {"norm": "res-post", "distill_token": True, "distill_head": True},
    "pooled by attention": {"pool": "map"},
    "swiglu": {"mlp_kind": "swiglu"},
    "mixtures": {"mlp_kind": "conv", "projection": "conv", "conv_layers": (0,), "pool": "gap"},
    "window": {"attention": "window", "window_size": 2, "representation_size": 20},
}
every = pytest.mark.parametrize("fields", [pytest.param(fields, id=name) for name, fields in KINDS.items()])


def model_of(**fields: Any) -> VisionTransformer:
    """A tiny model in evaluation mode whose running statistics are those of other images."""
    model = build(norm_kind="batch", **fields)
    for norm in norms_of(model):
        norm.momentum = None  # the plain mean over all batches
    model.train()
    with torch.no_grad():
        for seed in range(3):
            model(images(8, seed=10 + seed))
    for norm in norms_of(model):
        norm.momentum = 0.1
    model.eval()
    return model


def norms_of(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, BatchNorm)]


def reference(norm: BatchNorm, x: Tensor) -> Tensor:
    """torch's batch norm of (B, D, N), with the same weights and statistics."""
    theirs = nn.BatchNorm1d(x.shape[-1], eps=norm.eps)
    theirs.load_state_dict(norm.state_dict())
    theirs.train(norm.training)
    return theirs(x.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("is_training", [True, False])
def test_it_is_torchs_on_transposed_tokens(is_training: bool) -> None:
    norm = randomise(BatchNorm(6, 1e-6)).train(is_training)
    theirs = nn.BatchNorm1d(6, 1e-6)
    theirs.load_state_dict(norm.state_dict())
    theirs.train(is_training)
    for seed in range(3):
        x = 3 + 2 * torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(seed))
        ours_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
        ours, wanted = norm(ours_in), theirs(theirs_in.transpose(1, 2)).transpose(1, 2)
        assert largest_difference(ours, wanted) <= 1e-6
        weights = torch.linspace(-1, 1, x.numel()).view_as(x)
        gradients_of = [
            torch.autograd.grad((each * weights).sum(), of)[0] for each, of in ((ours, ours_in), (wanted, theirs_in))
        ]
        assert largest_difference(*gradients_of) <= 1e-6
    for name, buffer in norm.state_dict().items():
        assert largest_difference(buffer.double(), theirs.state_dict()[name].double()) <= 1e-6, name
    assert int(norm.num_batches_tracked) == (3 if is_training else 0)


@pytest.mark.parametrize("is_training", [True, False])
def test_a_model_is_that_with_torchs_norms(is_training: bool) -> None:
    """Eqs. 1-4 by hand; in training, each statistic is of all tokens, although the head reads only the first."""
    model = model_of().train(is_training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = model.embed(images(3))
    for block in model.blocks:
        x = x + block.attn(reference(block.norm1, x))
        x = x + block.mlp(reference(block.norm2, x))
    wanted = model.head(reference(model.norm, x)[:, 0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert largest_difference(model(images(3)), wanted) <= 1e-5
    assert torch.equal(model.norm.running_mean, before["norm.running_mean"]) != is_training


def test_a_prediction_depends_on_no_other_image_in_evaluation_alone() -> None:
    model = model_of()
    assert largest_difference(model(images(4))[:1], model(images(4)[:1])) <= 1e-5
    model.train()
    assert largest_difference(model(images(4))[:1], model(images(4)[:1])) > 1e-3


@every
def test_every_backend_answers_as_the_model_does(fields: dict[str, Any]) -> None:
    model = model_of(**fields)
    with torch.inference_mode():
        wanted = model(images())
        bound = max(1.0, wanted.abs().max().item())
        assert largest_difference(prepare(model)(images()), wanted) <= 2e-5 * bound
        assert largest_difference(plain(model)(images()), wanted) <= 0.15 * bound
        model.shortcut = False
        assert largest_difference(model(images()), wanted) <= 2e-5 * bound
    ort = pytest.importorskip("onnxruntime")
    openvino = pytest.importorskip("openvino")
    from vitkit.inference.backends.graphs import write_onnx, write_openvino

    session = ort.InferenceSession(write_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"])
    made = session.run(None, {"images": images().numpy()})[0]
    assert largest_difference(torch.from_numpy(made), wanted) <= 2e-5 * bound
    compiled = openvino.compile_model(write_openvino(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert largest_difference(torch.from_numpy(compiled(images().numpy())[0]), wanted) <= 2e-5 * bound


def test_norms_before_a_matrix_are_folded_into_it() -> None:
    prepared = prepare(model_of(attention_norm=True, mlp_norm=True))
    assert len(norms_of(prepared)) == 1  # the last, whose tokens a head of several poolings may read


@every
def test_gradients_reach_every_parameter(fields: dict[str, Any]) -> None:
    for name, gradient in gradients(model_of(**fields).train(), images(4)).items():
        assert torch.isfinite(gradient).all(), name
    for name, gradient in gradients(model_of(**fields), images(4)).items():
        assert gradient.abs().max() > 0 or "qkv.bias" in name or "kv.bias" in name, name


def test_gradients_in_training_are_those_of_finite_differences() -> None:
    model = model_of(layers=1, hidden_size=8, heads=2, mlp_size=8).double().train()
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model.norm(model.blocks[0](x)), (x,))


def test_recomputed_layers_count_a_batch_once() -> None:
    models = [model_of().train() for _ in range(2)]
    models[1].checkpointing = True
    made = [gradients(model, images(4)) for model in models]
    for name, gradient in made[0].items():
        assert largest_difference(gradient, made[1][name]) <= 1e-5, name
    for name, buffer in models[0].named_buffers():
        assert torch.equal(buffer, dict(models[1].named_buffers())[name]), name
    assert (
        int(models[1].norm.num_batches_tracked) == int(models[1].blocks[0].norm1.num_batches_tracked) == 4
    )  # 3 before


@every
def test_a_model_survives_its_folder(tmp_path: Path, fields: dict[str, Any]) -> None:
    model = model_of(**fields)
    saved(model, tmp_path / "model")
    names = load_file(tmp_path / "model" / "model.safetensors").keys()
    assert {name for name in names if "running" in name or "batches" in name} == {
        name for name, buffer in model.named_buffers() if name in model.state_dict()
    }
    again = vitkit.load(tmp_path / "model").model
    assert again.config == model.config
    assert torch.equal(again(images()), model(images()))


def saved(model: VisionTransformer, folder: Path) -> None:
    names = [f"c{i}" for i in range(model.config.num_classes)]
    Classifier(model, names, Preprocess(size=model.config.image_size)).save(folder)


@pytest.mark.parametrize("ending", ["onnx", "xml", "pt2"])
def test_exported_files_pass_their_check(tmp_path: Path, ending: str) -> None:
    saved(model_of(fc_norm=True, pool="gap"), tmp_path / "model")
    assert vitkit.export(tmp_path / "model", out=tmp_path / f"out.{ending}").file.is_file()


@pytest.mark.parametrize("fields", [{"ema": 0.9}, {"ema": 0.0}], ids=["ema", "swa"])
def test_averages_include_the_running_statistics(fields: dict[str, Any]) -> None:
    model = model_of(rotary="axial")  # whose tables are buffers, too
    average = WeightAverage(model, Recipe(**fields))
    seen = []
    for seed in range(3):
        randomise(model, seed)
        model.norm.running_mean.fill_(float(seed))
        model.norm.num_batches_tracked.fill_(seed)
        average.update(model)
        seen.append(float(average.model.norm.running_mean[0]))
    if not fields["ema"]:
        assert seen == pytest.approx([0.0, 0.5, 1.0])
    assert seen[0] == 0.0 and 0.0 < seen[1] < seen[2] < 2.0
    assert int(average.model.norm.num_batches_tracked) == 2
    assert all(
        torch.equal(buffer, dict(model.named_buffers())[name])
        for name, buffer in average.model.named_buffers()
        if "rope" in name
    )


@pytest.mark.parametrize(
    ("layer", "eps"),
    [(nn.BatchNorm1d, 1e-5), ("batchnorm", 1e-6), ("BatchNorm1d", 1e-6), (partial(nn.BatchNorm1d, eps=1e-3), 1e-3)],
)
def test_it_is_chosen_by_class_or_name(layer: Any, eps: float) -> None:
    model = VisionTransformer(img_size=32, patch_size=16, embed_dim=24, depth=1, num_heads=2, norm_layer=layer)
    assert (model.config.norm_kind, model.config.norm_eps) == ("batch", eps)
    assert isinstance(model.blocks[0].norm1, BatchNorm) and model.blocks[0].norm1.eps == eps
    assert all((norm.running_mean == 0).all() and (norm.running_var == 1).all() for norm in norms_of(model))


def test_other_arguments_of_the_class_are_refused() -> None:
    with pytest.raises(VitkitError, match="BatchNorm1d with momentum"):
        VisionTransformer(norm_layer=partial(nn.BatchNorm1d, momentum=0.5))


def test_costs_are_known() -> None:
    config = tiny(norm_kind="batch")
    info, same = describe(config), describe(tiny())
    assert (info.parameters, info.gmacs) == (same.parameters, same.gmacs)
    model, counter = build(norm_kind="batch"), FlopCounterMode(display=False)
    model.fused_attention = model.shortcut = False
    with counter:
        model(images(1))
    assert round(info.gmacs * 1e9) == counter.get_total_flops() // 2
    assert info.activation_bytes == same.activation_bytes or info.activation_bytes > 0.9 * same.activation_bytes


def test_maps_and_merging_use_the_running_statistics() -> None:
    model = model_of()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert torch.equal(rollout(model, images(3))[:1], rollout(model.train(), images(3))[:1])
    assert torch.isfinite(gradient_rollout(model, images(3), 1)).all()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    with torch.inference_mode():
        wanted = model.eval()(images())
        assert largest_difference(merge(model, 0)(images()), wanted) <= 2e-5 * max(1.0, wanted.abs().max().item())


@pytest.mark.parametrize("more", [{"ema": 0.9}, {"checkpointing": "all"}, {"method": "lora"}], ids=str)
def test_a_run_trains_and_is_loaded_explained_and_exported(tmp_path: Path, more: dict[str, Any]) -> None:
    photos = runs.photos(tmp_path / "photos")
    fields = runs.quick_fields(model_fields={**runs.SIZE, "norm_kind": "batch", "drop_path": 0.1})
    first = {} if "method" in more else more
    vitkit.train(photos, **fields, **first, out=tmp_path / "run", say=lambda line: None)
    run = tmp_path / "run"
    if not first:
        fields = {name: value for name, value in fields.items() if name not in ("model", "model_fields", "weights")}
        vitkit.train(photos, **fields, **more, weights=str(run), out=tmp_path / "second", say=lambda line: None)
        run = tmp_path / "second"
    model = vitkit.load(run).model
    assert all(norm.running_mean.abs().max() > 0 and int(norm.num_batches_tracked) > 0 for norm in norms_of(model))
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
    vitkit.explain(run, photos / "red" / "img1.png", method="rollout", out=tmp_path / "maps")
    assert vitkit.export(run, out=tmp_path / "model.onnx").file.is_file()


def test_what_cannot_keep_the_statistics_is_refused(tmp_path: Path) -> None:
    photos = runs.photos(tmp_path / "photos")
    fields = runs.quick_fields(model_fields={**runs.SIZE, "norm_kind": "batch"})
    with pytest.raises(VitkitError, match=r"norm_kind 'batch' has running statistics.*use ddp"):
        vitkit.train(photos, **fields, strategy="fsdp", out=tmp_path / "run")
    with pytest.raises(VitkitError, match=r"norm_kind 'batch' has running statistics.*use ddp"):
        vitkit.plan("vit_micro_patch4_16", model_fields={"norm_kind": "batch"}, strategy="fsdp", images=100, classes=2)
    saved(model_of(num_classes=5), tmp_path / "model")
    for to, end in (("timm", ".safetensors"), ("hf", ""), ("npz", ".npz")):
        with pytest.raises(VitkitError, match="layout cannot express norm_kind 'batch'"):
            vitkit.convert(tmp_path / "model", tmp_path / f"written{end}", to=to)
