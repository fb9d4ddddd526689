"""The layout of the reference implementation (Flax, `.npz`) and of its successor big_vision.

Published files number the sublayers of a block 0, 1, 2, 3; newly saved files count each kind of sublayer separately.
Kernels have the axes (in, out), and those of convolutions HWIO. The tensors of q, k and v have a head axis, (D, H,
D_h), so their shapes determine the number of heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.model.config import ViTConfig
from vitkit.system.files import to_json
from vitkit.weights.checkpoint import Checkpoint, embed_in_zip, stored_note
from vitkit.weights.formats.export import check_expressible, export_note, model_of, tensors_under
from vitkit.weights.layout import Layout, Piece, depth_of, same, units_of_stages
from vitkit.weights.tensor_names import matches_of, most_common

_PREFIXES = ("opt/target/", "params/img/", "params/", "")
_PUBLISHED = ("LayerNorm_2", "MultiHeadDotProductAttention_1", "MlpBlock_3")
_SAVED_NOW = ("LayerNorm_1", "MultiHeadDotProductAttention_0", "MlpBlock_0")
_POSITIONS = "Transformer/posembed_input/pos_embedding"  # big_vision has them at the top level
_BIG_VISION = "Transformer/encoderblock/"
# The reference implementation evaluates on pictures that are squashed to the size, without a crop.
PREPROCESS = {"fit": "squash", "interpolation": "bilinear", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
FIELDS: dict[str, Any] = {
    "gelu": "tanh",
    "norm_eps": 1e-6,
    "position_resize": "reference",
    "stem_kind": "reference",
    "qkv_bias": True,
}


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint of the reference implementation or big_vision; None for any other."""
    names = checkpoint.tensors
    prefixes = [prefix for prefix in _PREFIXES if matches_of(f"{prefix}Transformer/", names)]
    if not prefixes:
        return None
    prefix = prefixes[0]
    tensors = {name.removeprefix(prefix): tensor for name, tensor in names.items() if name.startswith(prefix)}
    is_stacked = any(name.startswith(_BIG_VISION) for name in tensors)
    has_positions_at_top = "pos_embedding" in tensors and _POSITIONS not in tensors
    is_big_vision = is_stacked or prefix.startswith("params") or has_positions_at_top
    is_folded = is_big_vision and _POSITIONS not in tensors  # big_vision adds the class token's position to the token

    if is_stacked:
        stacked = [tensor.shape for name, tensor in tensors.items() if name.startswith(_BIG_VISION)]
        depth = most_common(shape[0] for shape in stacked if shape)
        depth_of(map(str, range(depth)))  # refuses too many blocks
    else:
        depth = depth_of(match[1] for match in matches_of(r"Transformer/encoderblock_(\d+)/", tensors))
    stages = units_of_stages(r"block(\d+)/unit(\d+)/", tensors)
    pieces = _pieces(
        depth,
        _PUBLISHED if any("MlpBlock_3" in name for name in tensors) else _SAVED_NOW,
        "pos_embedding" if is_folded else _POSITIONS,
        [units for _, units in sorted(stages.items())],
        is_stacked=is_stacked,
    )
    projections = [tensor.shape for name, tensor in tensors.items() if re.search(r"/(query|key|value)/kernel$", name)]
    heads = most_common(shape[-2] for shape in projections if len(shape) >= 3)
    note = stored_note(checkpoint)
    return Layout(
        format="big_vision npz" if is_big_vision else "Google npz",
        pieces={ours: piece.renamed(lambda name: prefix + name) for ours, piece in pieces.items()},
        fields={
            **FIELDS,
            "heads": heads or None,
            "prefix_positions": not is_folded if "cls" in tensors else None,
            **note.get("fields", {}),
        },
        preprocess=note.get("preprocess", PREPROCESS),
        is_preprocess_known="preprocess" in note,
        classes=note.get("classes"),
        image_size=note.get("image_size"),
        dropped={name: f"it is not in {prefix}" for name in names if not name.startswith(prefix)},
    )


def _pieces(
    depth: int, sublayers: tuple[str, str, str], positions: str, stages: Iterable[int], *, is_stacked: bool
) -> dict[str, Piece]:
    pooling = "MAPHead_0/MultiHeadDotProductAttention_0"
    pieces = {
        "cls_token": same("cls"),
        "pos_embed": same(positions),
        "patch_embed.proj.weight": _convolution("embedding/kernel"),
        "patch_embed.proj.bias": same("embedding/bias"),
        **_norm("norm", "Transformer/encoder_norm"),
        **_dense("pre_logits.fc", "pre_logits"),
        **_dense("head", "head"),
        # SigLIP's attention pooling (arXiv 2303.15343)
        "attn_pool.latent": same("MAPHead_0/probe"),
        **_heads_joined("attn_pool.q", [f"{pooling}/query"]),
        **_heads_joined("attn_pool.kv", [f"{pooling}/key", f"{pooling}/value"]),
        **_out("attn_pool.proj", f"{pooling}/out"),
        **_norm("attn_pool.norm", "MAPHead_0/LayerNorm_0"),
        **_dense("attn_pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
        **_dense("attn_pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    }
    for layer in range(depth):
        if is_stacked:
            block = _block(f"blocks.{layer}", _BIG_VISION.rstrip("/"), sublayers)
            pieces |= {ours: _slice(piece, layer, depth) for ours, piece in block.items()}
        else:
            pieces |= _block(f"blocks.{layer}", f"Transformer/encoderblock_{layer}", sublayers)
    backbone = "patch_embed.backbone"  # the ResNet of a hybrid
    pieces[f"{backbone}.stem.conv.weight"] = _convolution("conv_root/kernel")
    pieces |= _group_norm(f"{backbone}.stem.norm", "gn_root")
    for stage, units in enumerate(stages):
        for unit in range(units):
            ours, theirs = f"{backbone}.stages.{stage}.blocks.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for i in (1, 2, 3):
                pieces[f"{ours}.conv{i}.weight"] = _convolution(f"{theirs}/conv{i}/kernel")
                pieces |= _group_norm(f"{ours}.norm{i}", f"{theirs}/gn{i}")
            pieces[f"{ours}.downsample.conv.weight"] = _convolution(f"{theirs}/conv_proj/kernel")
            pieces |= _group_norm(f"{ours}.downsample.norm", f"{theirs}/gn_proj")
    return pieces


def _block(ours: str, theirs: str, sublayers: tuple[str, str, str]) -> dict[str, Piece]:
    norm2, attention, mlp = (f"{theirs}/{name}" for name in sublayers)
    return {
        **_norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0"),
        **_heads_joined(f"{ours}.attn.qkv", [f"{attention}/{part}" for part in ("query", "key", "value")]),
        **_out(f"{ours}.attn.proj", f"{attention}/out"),
        **_norm(f"{ours}.norm2", norm2),
        **_dense(f"{ours}.mlp.fc1", f"{mlp}/Dense_0"),
        **_dense(f"{ours}.mlp.fc2", f"{mlp}/Dense_1"),
    }


def _heads_joined(ours: str, theirs: Sequence[str]) -> dict[str, Piece]:
    """Return the `Piece`s of a vitkit layer that is stored as several layers with a head axis, such as q, k and v."""
    number = len(theirs)
    weight = Piece(
        tuple(f"{name}/kernel" for name in theirs),
        lambda *kernels: torch.cat([kernel.flatten(1).t() for kernel in kernels]),  # (D, H, D_h) -> (D, D)
        lambda tensor, config: tuple(
            part.t().reshape(part.shape[1], config.heads, -1) for part in tensor.chunk(number)
        ),
    )
    bias = Piece(
        tuple(f"{name}/bias" for name in theirs),
        lambda *biases: torch.cat([tensor.flatten() for tensor in biases]),
        lambda tensor, config: tuple(part.reshape(config.heads, -1) for part in tensor.chunk(number)),
    )
    return {f"{ours}.weight": weight, f"{ours}.bias": bias}


def _out(ours: str, theirs: str) -> dict[str, Piece]:
    weight = Piece(
        (f"{theirs}/kernel",),
        lambda kernel: kernel.flatten(0, 1).t(),  # (H, D_h, D)
        lambda tensor, config: (tensor.t().reshape(config.heads, -1, len(tensor)),),
    )
    return {f"{ours}.weight": weight, f"{ours}.bias": same(f"{theirs}/bias")}


def _dense(ours: str, theirs: str) -> dict[str, Piece]:
    kernel = Piece((f"{theirs}/kernel",), lambda kernel: kernel.t(), lambda weight, _: (weight.t(),))
    return {f"{ours}.weight": kernel, f"{ours}.bias": same(f"{theirs}/bias")}


def _norm(ours: str, theirs: str) -> dict[str, Piece]:
    return {f"{ours}.weight": same(f"{theirs}/scale"), f"{ours}.bias": same(f"{theirs}/bias")}


def _group_norm(ours: str, theirs: str) -> dict[str, Piece]:
    """Return the `Piece`s of a group norm, whose stored arrays may be (1, 1, 1, C)."""
    return {
        f"{ours}.{part}": Piece((f"{theirs}/{array}",), Tensor.flatten, lambda ours, _: (ours,))
        for part, array in (("weight", "scale"), ("bias", "bias"))
    }


def _convolution(theirs: str) -> Piece:
    return Piece(
        (theirs,),
        lambda kernel: kernel.permute(3, 2, 0, 1),  # HWIO -> OIHW
        lambda weight, _: (weight.permute(2, 3, 1, 0),),
    )


def _slice(piece: Piece, layer: int, depth: int) -> Piece:
    """Return the `Piece` of one block from a file of big_vision, which stacks all blocks along the first axis.

    Such files are only read; `split` serves to compute the expected shapes.
    """

    def split(ours: Tensor, config: ViTConfig) -> tuple[Tensor | None, ...]:
        parts = piece.split(ours, config)
        return tuple(part if part is None else part.expand(depth, *part.shape) for part in parts)

    return Piece(piece.stored_names, lambda *stacks: piece.join(*(stack[layer] for stack in stacks)), split)


def write(classifier: Classifier, destination: Path) -> None:
    config = model_of(classifier).config
    check_expressible(
        config,
        "npz",
        {
            "mlp_kind": ("mlp",),
            "layer_scale": (None,),
            "registers": (0,),
            "distill_token": (False,),
            "fc_norm": (False,),
            "qkv_bias": (True,),
            "norm_eps": (1e-6,),
            "stem_kind": ("reference",) if config.stem is not None else ("reference", "timm"),
            "class_token": (config.pool != "gap",),
            "pool": ("token", "gap"),
            "prefix_positions": (True,) if config.class_token else (True, False),
        },
    )
    note = export_note(classifier)
    if len(to_json({"vitkit": note}).encode()) > 65535:  # the longest comment of a zip file, in bytes
        del note["classes"]
    comment = to_json({"vitkit": note}).encode()  # other programs ignore it
    # The sublayers are numbered as in the published files.
    pieces = _pieces(config.layers, _PUBLISHED, _POSITIONS, config.stem or (), is_stacked=False)
    tensors = tensors_under(classifier, Layout(format="Google npz", pieces=pieces))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    with destination.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    embed_in_zip(destination, classifier.pictures or b"", comment)
