"""A model that is converted for OpenVINO and ONNX Runtime answers as before, for every way to build one."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from refusals import refused
from tiny import LOCAL, VARIETY, build, configs, images, kinds, largest_difference, randomise
from vitkit.exporting import FORMATS
from vitkit.exporting.card import BLANK
from vitkit.exporting.formats import Storage
from vitkit.inference import Runner, compute_in_order
from vitkit.inference.backends import graphs, onnx, openvino
from vitkit.model import VisionTransformer, ViTConfig, position
from vitkit.model.hybrids import StandardisedConv2d
from vitkit.system.files import to_json

BACKENDS = {"onnx": onnx.from_model, "openvino": openvino.from_model}

# What tiny.VARIETY has not: hybrids, models without a head or with a single patch.
MORE: dict[str, dict[str, Any]] = {
    "hybrid": {"stem": (1, 2), "patch_size": 1, "image_size": (16, 24)},
    "no head, two tokens": {"num_classes": 0, "distill_token": True, "distill_head": True},
    "one relative patch": {"pool": "gap", "image_size": (4, 4), "position": "relative", "position_at": "shared"},
    "one channel": {"in_channels": 1},
}
# Kinds that have several of the parts that are converted: a conversion to ONNX takes ten seconds.
JOINED: dict[str, dict[str, Any]] = {
    "rotary, SwiGLU, inner norms, layer scale": {
        "rotary": "dinov3", "rotary_base": 100.0, "position": "none", "registers": 2, "qkv_bias": False,
        "mlp_kind": "swiglu", "mlp_norm": True, "attention_norm": True, "layer_scale": 0.1, "layers": 1,
    },
    "hybrid of timm, odd sides, convolutions, map of all tokens": {
        "stem": (1, 1), "stem_kind": "timm", "patch_size": 1, "image_size": (22, 25), "conv_layers": (0,),
        "gelu": "quick", "registers": 1, "class_token": True, "pool": "map", "representation_size": 20, "layers": 2,
    },
    "relative distilled post-norm mixtures": {
        "position": "relative", "position_at": "every_layer", "distill_token": True, "distill_head": True,
        "projection": "conv", "mlp_kind": "conv", "norm": "post", "qk_scale": 0.5, "layers": 1,
    },
    "window bias": {**LOCAL["window bias"], "layers": 1},
}  # fmt: skip
ONNX = set(list(JOINED)[:2])
DAY = {*JOINED, "rotary mixed", "aimv2", "relative_mlp", "axial gap"}
CASES = [
    pytest.param(form, *case.values, id=f"{form} {case.id}", marks=case.marks)
    for form, few in (("onnx", ONNX), ("openvino", DAY))
    for case in kinds(VARIETY | MORE | LOCAL | JOINED, few)
]
# Its runtime computes only contiguous constants, and permutes at most six axes: biases have met both limits.
CASES += [
    pytest.param("executorch", {**fields, "layers": 2}, id=f"executorch {name}", marks=pytest.mark.accept)
    for name, fields in (("window bias", LOCAL["window bias"]), ("relative_bias", VARIETY["relative_bias"]))
]


def asked(runner: Runner, model: VisionTransformer, batch: int) -> float:
    """How far the runner is from the model, in parts of the largest logit."""
    pictures = images(batch, config=model.config)
    with torch.no_grad():
        expected = model(pictures)
    found = runner(pictures)
    assert found.dtype == torch.float32
    return largest_difference(found, expected) / expected.abs().max().item()


@pytest.mark.parametrize(("form", "fields"), CASES)
def test_a_file_of_every_model_answers_alike_for_one_image_and_for_four(
    form: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    model, path = build(**fields), tmp_path / f"a{FORMATS[form].suffix}"
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    FORMATS[form].save(FORMATS[form].convert(model, Storage()), path, to_json({"checksum": BLANK}))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    runner, _ = FORMATS[form].open(path, "float32")
    assert (runner.backend, runner.precision) == (form, "float32")
    assert max(asked(runner, model, 1), asked(runner, model, 4)) < 1e-5


def test_a_runner_keeps_the_weights_of_its_model() -> None:
    model = build()
    runner = openvino.from_model(model, "float32")
    answer = runner(images(2))
    randomise(model, seed=5)
    assert largest_difference(runner(images(2)), answer) == 0


@pytest.mark.parametrize("backend", [pytest.param("onnx", marks=pytest.mark.accept), "openvino"])
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=configs())
def test_any_configuration_answers_alike(backend: str, config: ViTConfig) -> None:
    model = randomise(VisionTransformer(config)).eval()
    pictures = images(3, config=config)
    with torch.no_grad():
        expected = model(pictures)
    torch.testing.assert_close(BACKENDS[backend](model, "float32")(pictures), expected, rtol=1e-4, atol=1e-4)


def test_what_depends_on_weights_alone_is_computed_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MLP of offsets, learned angles, rows and columns, and standardised kernels."""
    chosen = (LOCAL["window mlp bias"], VARIETY["rotary mixed"], VARIETY["learned_2d shared"], MORE["hybrid"])
    models = [build(**fields) for fields in chosen]
    expected = [model(images(2, config=model.config)) for model in models]
    folded = [graphs.exportable_copy(model) for model in models]

    def refuse(*_: Any) -> None:
        raise AssertionError

    for part in (position.BiasMLP, position.Rotary, position.Learned2D):
        monkeypatch.setattr(part, "forward", refuse)
    kernels = [part.kind for module in folded for part in module.modules() if isinstance(part, StandardisedConv2d)]
    assert kernels and set(kernels) == {None}
    for model, module, logits in zip(models, folded, expected, strict=True):
        torch.testing.assert_close(module(images(2, config=model.config)), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not openvino._has_bfloat16(), reason="this processor has no bfloat16")
def test_openvino_computes_in_bfloat16() -> None:
    model = build()
    runner = openvino.from_model(model, "bfloat16")
    assert runner.precision == "bfloat16"
    assert 1e-5 < asked(runner, model, 4) < 5e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_are_rounded_to_the_nearest_number(dtype: torch.dtype) -> None:
    """OpenVINO by itself cuts off half of the numbers that it should round up to bfloat16."""
    model = build(layers=1)
    runner = openvino.OpenVINORunner(graphs.to_openvino(model, dtype=dtype), "float32")
    rounded = graphs.exportable_copy(model)
    for tensor in (*rounded.parameters(), *rounded.buffers()):
        if tensor.squeeze().ndim > 1:
            tensor.data = tensor.to(dtype).float()
    with torch.no_grad():
        assert largest_difference(runner(images(4)), rounded(images(4))) < 1e-5


def test_openvino_answers_in_several_threads_at_once() -> None:
    model, pictures = build(), images(40)
    with torch.inference_mode():
        expected = model(pictures)
    runner = openvino.from_model(model, "float32")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert largest_difference(runner(pictures), expected) <= 1e-5
        paths = map(str, range(40))
        rows = list(compute_in_order(paths, lambda path: pictures[int(path)], runner, 3, is_concurrent=True))
    finally:
        torch.set_num_threads(before)
    assert [path for path, _ in rows] == [str(number) for number in range(40)]
    assert largest_difference(torch.tensor(np.stack([row for _, row in rows])), expected) <= 1e-5


def test_what_a_runtime_cannot_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def get_property(self, *_: Any) -> list[str]:
            return ["FP32"]

        def compile_model(self, *_: Any) -> None:
            raise RuntimeError("Exception from src/core.cpp:1:\nno memory left\n")

    runner, graph = openvino.from_model(build(), "float32"), graphs.to_openvino(build())
    monkeypatch.setattr(openvino, "_core", Old)
    monkeypatch.setattr(graphs, "_MAX_BYTES", 1000)
    for ask, code in (
        (lambda: runner(images(1)), "inference.runtime-failed"),
        (lambda: openvino.OpenVINORunner(graph, "bfloat16"), "inference.precision-unsupported"),
        (lambda: onnx.from_model(build(), "bfloat16"), "inference.precision-unsupported"),
        (lambda: graphs.to_onnx(build()), "inference.weights-too-large"),
    ):
        with refused(code):
            ask()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino._core.cache_clear()
    for package, backend in (("openvino", "openvino"), ("onnxruntime", "onnx"), ("onnx", "onnx")):
        with monkeypatch.context() as patch, refused("inference.package-missing", "vitkit[export]"):
            patch.setitem(sys.modules, package, None)
            BACKENDS[backend](build(), "float32")
