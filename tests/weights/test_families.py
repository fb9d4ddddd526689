"""A checkpoint of a family that vitkit does not know is refused by that family's name."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file

from foreign import NAMES, make
from tiny import some
from vitkit.errors import VitkitError
from vitkit.weights import inspect

TIMM = {
    "vit_base_patch16_sapiens2": "Sapiens",
    "vit_base_patch16_xp_224": "normalises queries and keys",
    "vit_small_patch16_18x2_224": "parallel attention layers",
    "vit_dpwee_patch16_reg1_gap_256": "difference of two softmax maps",
    "vit_pwee_patch16_reg1_gap_256": "attention and MLP side by side (timm:NAME@FILE loads it)",
    "vit_base_mci_224": "MobileCLIP",
    "samvit_base_patch16": "SAM",
    "swinv2_tiny_window8_256": "Swin V2",
    "convnextv2_atto": "ConvNeXt V2",
    "resnet18": "ResNet",
    "mvitv2_tiny": "MViT",
    "cait_xxs24_224": "CaiT",
    "xcit_nano_12_p16_224": "XCiT",
    "davit_tiny": "DaViT",
    "levit_128": "LeViT",
    "volo_d1_224": "VOLO",
    "crossvit_9_240": "CrossViT",
    "pit_ti_224": "PiT",
    "tnt_s_legacy_patch16_224": "TNT",
    "mixer_s32_224": "MLP-Mixer",
    "efficientnet_b0": "EfficientNet",
}
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_SIZES |= {"image_size": 32, "patch_size": 8}
HUGGING_FACE = {  # configuration and model
    ("DINOv3ConvNext", "DINOv3ConvNextModel"): "ConvNeXt",
    ("Siglip2Vision", "Siglip2VisionModel"): "SigLIP 2 NaFlex",
    ("SiglipText", "SiglipTextModel"): "a text encoder alone",
    ("Swin", "SwinForImageClassification"): "Swin",
    ("ConvNext", "ConvNextForImageClassification"): "ConvNeXt",
    ("Sam", "SamModel"): "SAM",
}


def write_shapes(shapes: Mapping[str, tuple[int, ...]], path: Path) -> Path:
    """A safetensors file of such tensors, whose numbers are a hole in the file."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(torch.Size(shape).numel())
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(VitkitError) as caught:
        inspect(path)
    assert str(caught.value.code).startswith("weights.architecture-")
    return str(caught.value)


@pytest.mark.parametrize(("name", "family"), TIMM.items())
def test_timm_s(tmp_path: Path, name: str, family: str) -> None:
    with torch.device("meta"):
        state = timm.create_model(name).state_dict()
    file = write_shapes({key: tuple(tensor.shape) for key, tensor in state.items()}, tmp_path / "x.safetensors")
    assert family in refusal(file).partition("this is")[2]


@pytest.mark.parametrize(("names", "family"), HUGGING_FACE.items())
def test_transformers_s(tmp_path: Path, names: tuple[str, str], family: str) -> None:
    transformers.logging.disable_progress_bar()
    config: Any = getattr(transformers, f"{names[0]}Config")
    config = config(**_SIZES if names[0].endswith(("Text", "Siglip2Vision")) else {})
    with torch.device("meta"):
        state = getattr(transformers, names[1])(config).state_dict()
    write_shapes({key: tuple(tensor.shape) for key, tensor in state.items()}, tmp_path / "model.safetensors")
    bare = refusal(tmp_path)
    config.save_pretrained(tmp_path)
    assert all(f"this is {family}" in said or f"or {family}" in said for said in (bare, refusal(tmp_path)))


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (("visual.conv1.weight", "visual.layer1.0.conv1.weight", "positional_embedding"), "CLIP with a ResNet"),
        (("visual.transformer.resblocks.0.ln_1.weight", "visual.attn_pool.query", "text_decoder.ln.weight"), "CoCa"),
        (("transformer.resblocks.0.ln_1.weight", "ln_pre.weight", "conv1.weight"), "CLIP"),
        (("image_encoder.blocks.0.attn.rel_pos_h", "prompt_encoder.x"), "SAM"),
    ],
)
def test_the_authors_own(tmp_path: Path, names: tuple[str, ...], family: str) -> None:
    save_file({name: torch.zeros(2) for name in names}, tmp_path / "x.safetensors")
    assert f"this is {family}" in refusal(tmp_path / "x.safetensors")


@pytest.mark.parametrize("name", some(NAMES, NAMES[::6]))
def test_a_damaged_file_of_a_known_family_is_not_taken_for_another(tmp_path: Path, name: str) -> None:
    """Whatever tensor is missing, or however many of one kind."""
    shapes = {key: tuple(tensor.shape) for key, tensor in make(name).model.state_dict().items()}
    for lost in ("norm", "pos", "cls", "bias", "embed", "layers.0.", "layer.0.", "blocks.0.", "head"):
        left = {key: shape for key, shape in shapes.items() if lost not in key}
        if not left:
            continue
        try:
            inspect(write_shapes(left, tmp_path / "x.safetensors"), image_size=16)
        except VitkitError as error:
            assert "this is" not in str(error), (lost, error)
