"""Weights within what training programs store are found; other architectures are refused."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

import vitkit
from refusals import refused
from vitkit.errors import VitkitError
from vitkit.model import VisionTransformer
from vitkit.weights import inspect
from weights.spoiling import write_shapes

State = dict[str, Tensor]
SMALL: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 3}


def state(seed: int = 0) -> State:
    torch.manual_seed(seed)
    return VisionTransformer(**SMALL).state_dict()


def under(prefix: str, of: State) -> State:
    return {prefix + name: tensor for name, tensor in of.items()}


def compiled(of: State) -> State:
    return {name.replace("blocks.0.", "blocks.0._orig_mod."): tensor for name, tensor in of.items()}


OTHER = state(seed=1)
MOMENTS = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}
ONE = torch.ones(3)
# What is stored, and words of a note on it.
WRAPPED: dict[str, tuple[Callable[[State], Any], str]] = {
    "model_state_dict": (lambda own: {"model_state_dict": own, "optimizer_state_dict": MOMENTS}, "from model_state_di"),
    "state_dict_ema": (lambda own: {"state_dict": OTHER, "state_dict_ema": own}, "state_dict was ignored"),
    "model_ema": (lambda own: {"model": OTHER, "model_ema": own}, "model was ignored: model_ema was taken"),
    "DINO": (
        lambda own: {"student": under("module.backbone.", OTHER), "teacher": under("backbone.", own)},
        "taken from teacher",
    ),
    "any other key": (lambda own: {"my_vit": own, "history": {"loss": [1.0]}}, "taken from my_vit"),
    "two keys deep": (lambda own: {"checkpoint": {"ema": {"decay": 0.9, "shadow": own}}}, "from checkpoint.ema.shadow"),
    "any other prefix": (lambda own: under("vit.", own), "the prefix vit. of the names was removed"),
    "AveragedModel": (lambda own: {**under("module.", own), "n_averaged": ONE[0]}, "n_averaged was ignored"),
    "compiled blocks": (lambda own: {"model": compiled(own)}, "taken from model"),
    "DDP, EMA and Lightning": (
        lambda own: {
            "state_dict": {
                **under("model._orig_mod.module.", OTHER),
                **under("ema_model.module.module.", own),
                "ema_model.n_averaged": ONE[0],
                "criterion.weight": ONE,
            },
            "optimizer_states": [MOMENTS],
            "epoch": 3,
        },
        "model.module was ignored: ema_model.module.module was taken",
    ),
    "tensors beside": (lambda own: {"state_dict": own, "best_acc1": ONE[0], "rng": ONE}, "(best_acc1, rng) was"),
    "names of classes": (lambda own: {"net": own, "class_names": ["a", "b", "c"], 1: 2}, "(class_names, 1) was"),
    "an average": (lambda own: {"model": OTHER, "average_model": own}, "model was ignored: average_model was taken"),
    "teacher and student": (lambda own: {**under("student.", OTHER), **under("teacher.", own)}, "student was ignored"),
}


@pytest.mark.parametrize("name", [*WRAPPED, "safetensors"])
def test_weights_are_found(name: str, tmp_path: Path) -> None:
    own = state()
    if name == "safetensors":
        note = "model was ignored: ema was taken"
        save_file({**under("model.", OTHER), **under("ema.", own)}, tmp_path / "w.pth")
    else:
        wrap, note = WRAPPED[name]
        torch.save(wrap(own), tmp_path / "w.pth")
    classifier = vitkit.load(tmp_path / "w.pth", heads=2)
    assert all(tensor.equal(own[key]) for key, tensor in classifier.model.state_dict().items())
    assert classifier.report is not None and any(note in line for line in classifier.report.notes)


TWO = "weights.sets-ambiguous"
REFUSED: dict[str, tuple[Callable[[State], Any], str]] = {
    "two sets": (lambda own: {"first": own, "second": OTHER}, TWO),
    "two prefixes": (lambda own: {**under("model.", own), **under("backbone.", OTHER)}, TWO),
    "a head beside": (lambda own: {"trunk": own, "head": {"weight": ONE}}, TWO),
    "other names": (lambda own: under("0.1.", own) | {"2.x": ONE}, "weights.architecture-unknown"),
    "eight bits": (lambda own: {n: t.to(torch.float8_e4m3fn) for n, t in own.items()}, "weights.tensors-unfit"),
    "a list": (lambda own: {"shadow_params": list(own.values())}, "weights.tensors-absent"),
    "a pickled model": (lambda own: {"model": VisionTransformer(**SMALL)}, "weights.code-refused"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_clear_is_refused(name: str, tmp_path: Path) -> None:
    wrap, code = REFUSED[name]
    torch.save(wrap(state()), tmp_path / "w.pth")
    with refused(code, "w.pth"):
        vitkit.load(tmp_path / "w.pth", heads=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_adapter_a_tensor_in_two_files_and_torchscript_are_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "w.pt")
    with refused("weights.code-refused", "TorchScript"):
        vitkit.load(tmp_path / "w.pt")
    own = state()
    index = {"weight_map": dict.fromkeys(own, "a.safetensors") | {"head.bias": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file(own, tmp_path / "a.safetensors")
    save_file({"head.bias": OTHER["head.bias"]}, tmp_path / "b.safetensors")
    with refused("weights.file-damaged", "head.bias"):
        vitkit.load(tmp_path, heads=2)
    (tmp_path / "adapter_config.json").write_text("{}")
    with refused("weights.adapter-unsupported", "adapter_config.json"):
        vitkit.load(tmp_path, heads=2)


def test_a_flipped_bit_is_noticed_and_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(state(), path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        part = next(part for part in archive.infolist() if part.filename.endswith("/data/3"))
        data = archive.read(part)
    content[bytes(content).index(data, part.header_offset) + len(data) // 2] ^= 4
    path.write_bytes(content)
    with refused("weights.file-damaged", "CRC-32"):
        vitkit.load(path, heads=2)
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        torch.save(state(), path)
    finally:
        torch.serialization.set_crc32_options(compute_crc32=True)
    assert vitkit.load(path, heads=2).report is not None


OTHERS = (  # models of timm that have blocks, but compute something else, or are no Vision Transformers
    *("vit_base_patch16_sapiens2", "vit_base_patch16_xp_224", "vit_small_patch16_18x2_224", "vit_base_mci_224"),
    *("vit_dpwee_patch16_reg1_gap_256", "vit_pwee_patch16_reg1_gap_256", "samvit_base_patch16", "cait_xxs24_224"),
    *("swinv2_tiny_window8_256", "convnextv2_atto", "mixer_s32_224"),
)


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_of_timm_are_refused(tmp_path: Path, name: str) -> None:
    with torch.device("meta"):
        state = timm.create_model(name).state_dict()
    file = write_shapes({key: tuple(tensor.shape) for key, tensor in state.items()}, tmp_path / "x.safetensors")
    with pytest.raises(VitkitError) as caught:
        inspect(file)
    assert str(file) in str(caught.value) and str(caught.value.code).startswith("weights.")


_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_SIZES |= {"image_size": 32, "patch_size": 8}


@pytest.mark.parametrize("kind", ["DINOv3ConvNext", "Siglip2Vision", "SiglipText", "Swin"])
def test_other_models_of_transformers_are_refused(tmp_path: Path, kind: str) -> None:
    config: Any = getattr(transformers, f"{kind}Config")
    config = config(**_SIZES if kind.endswith(("Text", "Siglip2Vision")) else {})
    with torch.device("meta"):
        state = getattr(transformers, f"{kind}Model")(config).state_dict()
    write_shapes({key: tuple(tensor.shape) for key, tensor in state.items()}, tmp_path / "model.safetensors")
    with pytest.raises(VitkitError) as bare:
        inspect(tmp_path)
    config.save_pretrained(tmp_path)
    with pytest.raises(VitkitError) as described:
        inspect(tmp_path)
    assert all(str(caught.value.code).startswith("weights.") for caught in (bare, described))
