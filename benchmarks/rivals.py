"""Other libraries' models with our weights: how each is built and run. Used by peers.py and training.py."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitkit import Classifier, Preprocess, VisionTransformer
from vitkit.profiling import Contender
from vitkit.weights import Checkpoint, StoredTensor, recognise, write

os.environ["HF_HUB_OFFLINE"] = "1"
Run = Callable[[Tensor], Tensor]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Setting:
    """What all rivals of one model and batch share.

    Attributes:
        model: ours, in float32; its weights are everyone's.
        images: (B, C, height, width) float32, on the device.
        folder: for files on the way.
    """

    model: VisionTransformer
    images: Tensor
    folder: Path

    def __post_init__(self) -> None:
        self._built: dict[tuple[Callable[[Setting], nn.Module], str], nn.Module] = {}

    def module(self, build: Callable[[Setting], nn.Module], precision: str) -> nn.Module:
        """A library's module in eval mode, built once for each precision."""
        key = (build, precision)
        if key not in self._built:
            self._built[key] = build(self).eval().to(self.images.device, DTYPES[precision])
        return self._built[key]


# --- Modules ------------------------------------------------------------------------------------------------


def timm_module(setting: Setting, **fields: Any) -> nn.Module:
    """timm's VisionTransformer."""
    from timm.models.vision_transformer import VisionTransformer as Timm

    c = setting.model.config
    theirs = Timm(
        img_size=c.image_size,
        patch_size=c.patch_size[0],
        num_classes=c.num_classes,
        embed_dim=c.hidden_size,
        depth=c.layers,
        num_heads=c.heads,
        mlp_ratio=c.mlp_size / c.hidden_size,
        **fields,
    )
    theirs.load_state_dict(setting.model.state_dict())  # whose names are timm's
    return theirs


def torchvision_module(setting: Setting) -> nn.Module:
    """torchvision's VisionTransformer."""
    from torchvision.models.vision_transformer import VisionTransformer as Torchvision

    c = setting.model.config
    theirs = Torchvision(
        c.image_size[0], c.patch_size[0], c.layers, c.heads, c.hidden_size, c.mlp_size, num_classes=c.num_classes
    )
    own = {
        name: StoredTensor(tuple(tensor.shape), tensor.dtype, tensor.clone)
        for name, tensor in theirs.state_dict().items()
    }
    layout = recognise(Checkpoint(path=setting.folder, tensors=own))
    assert layout is not None
    state = {}
    for name, tensor in setting.model.state_dict().items():
        piece = layout.pieces[name]
        state |= dict(zip(piece.stored_names, piece.split(tensor, c), strict=True))
    theirs.load_state_dict(state)
    return theirs


def transformers_module(setting: Setting) -> nn.Module:
    """transformers' ViTForImageClassification with its sdpa attention."""
    from transformers import ViTForImageClassification

    folder = setting.folder / "transformers"
    if not folder.exists():
        c = setting.model.config
        write(
            Classifier(setting.model, tuple(map(str, range(c.num_classes))), Preprocess(size=c.image_size)),
            folder,
            "hf",
        )
    return _Logits(ViTForImageClassification.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32))


class _Logits(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(pixel_values=images).logits


def vit_pytorch_module(setting: Setting) -> nn.Module:
    """vit-pytorch's ViT, whose weights are its own: it normalises patches, and its q, k, v have no bias."""
    from vit_pytorch import ViT

    c = setting.model.config
    return ViT(
        image_size=c.image_size,
        patch_size=c.patch_size[0],
        num_classes=c.num_classes,
        dim=c.hidden_size,
        depth=c.layers,
        heads=c.heads,
        mlp_dim=c.mlp_size,
        dim_head=c.head_size,
    )


# --- Runners ------------------------------------------------------------------------------------------------


def eager(setting: Setting, build: Callable[[Setting], nn.Module], precision: str) -> Run:
    """The module as it is, its weights in that precision."""
    module, dtype = setting.module(build, precision), DTYPES[precision]
    return lambda images: module(images.to(dtype))


def compiled(setting: Setting, build: Callable[[Setting], nn.Module], precision: str) -> Run:
    """The module by torch.compile, for this batch."""
    module, dtype = torch.compile(setting.module(build, precision), dynamic=False), DTYPES[precision]
    return lambda images: module(images.to(dtype))


def replayed(setting: Setting, build: Callable[[Setting], nn.Module], precision: str) -> Run:
    """The module by torch.compile, whose kernels are replayed from a CUDA graph."""
    module = torch.compile(setting.module(build, precision), dynamic=False, mode="reduce-overhead")
    dtype = DTYPES[precision]
    return lambda images: module(images.to(dtype))


def onnxruntime(setting: Setting, *_: Any) -> Run:
    """ONNX Runtime on timm's model, exported for this batch; float32, as it has no bfloat16 on CPUs."""
    return open_onnx(onnx_file(setting))


def open_onnx(file: str | bytes) -> Run:
    """The function of an ONNX file, given by its path or its content."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")  # or it slows who comes next
    options.log_severity_level = 3
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def openvino_onnx(setting: Setting, _build: Any, precision: str) -> Run:
    """OpenVINO on the same ONNX file."""
    import openvino

    return compile_openvino(openvino.Core().read_model(onnx_file(setting)), precision)


def openvino_torch(setting: Setting, _build: Any, precision: str) -> Run:
    """OpenVINO on timm's module."""
    return compile_openvino(openvino_graph(setting), precision)


def openvino_graph(setting: Setting) -> Any:
    """timm's module, traced. (`openvino.convert_model` does the same, and would phone home.)"""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    frontend = FrontEndManager().load_by_framework("pytorch")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decoder = TorchScriptPythonDecoder(setting.module(timm_module, "float32"), example_input=(setting.images,))
    model = frontend.convert(frontend.load(decoder))
    model.reshape(list(setting.images.shape))
    return model


def compile_openvino(model: Any, precision: str) -> Run:
    """The function of a graph on the CPU."""
    import openvino

    options = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    return lambda images: torch.from_numpy(request.infer([images.numpy()], share_inputs=True)[0])


def onnx_file(setting: Setting) -> str:
    """The path of timm's export."""
    file = setting.folder / "timm.onnx"
    if not file.exists():
        module = setting.module(timm_module, "float32")
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(module, (setting.images,), dynamo=True, verbose=False)
        program.save(file)
    return str(file)


# --- Who takes part -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rival:
    """A library, and a way to run it.

    Attributes:
        name: as the table has it.
        open: makes the function that computes.
        build: makes its module.
        precisions: that it is run in.
        devices: where it runs.
        same_weights: whether our weights fit.
    """

    name: str
    open: Callable[[Setting, Any, str], Run]
    build: Callable[[Setting], nn.Module] | None = None
    precisions: tuple[str, ...] = ("float32", "bfloat16")
    devices: tuple[str, ...] = ("cpu", "cuda")
    same_weights: bool = True


RIVALS = (
    Rival("timm", eager, timm_module),
    Rival("timm compiled", compiled, timm_module),
    Rival("timm compiled, CUDA graphs", replayed, timm_module, devices=("cuda",)),
    Rival("torchvision", eager, torchvision_module),
    Rival("transformers", eager, transformers_module),
    Rival("vit-pytorch", eager, vit_pytorch_module, same_weights=False),
    Rival("onnxruntime (timm)", onnxruntime, precisions=("float32",), devices=("cpu",)),
    Rival("openvino (timm onnx)", openvino_onnx, precisions=("bfloat16",), devices=("cpu",)),
    Rival("openvino (timm)", openvino_torch, precisions=("bfloat16",), devices=("cpu",)),
)


def open_rivals(setting: Setting, wanted: Callable[[str], bool]) -> Iterator[Contender | str]:
    """Each rival that works, or a line that says why not. `wanted` is asked for `name precision`."""
    for rival in RIVALS:
        for precision in rival.precisions:
            if setting.images.device.type not in rival.devices or not wanted(f"{rival.name} {precision}"):
                continue
            try:
                run = rival.open(setting, rival.build, precision)
                with torch.inference_mode():
                    run(setting.images)
            except Exception as error:
                yield f"{rival.name} {precision} is left out: {type(error).__name__}: {str(error).splitlines()[0]}"
                continue
            yield Contender(rival.name, precision, run, rival.same_weights)
