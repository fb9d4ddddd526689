"""Checkpoints in the layouts of their authors: DINOv2, DINOv3, EVA-02 and Perception Encoder.

The papers are arXiv 2304.07193 and 2309.16588 (DINOv2), 2508.10104 (DINOv3), 2303.11331 (EVA-02) and 2504.13181
(Perception Encoder). DINOv2's names are timm's except for registers, gated MLP and mask token. In DINOv2, the class
token has a position embedding, and registers have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.weights.checkpoint import Checkpoint, StoredTensor
from vitkit.weights.formats import timm_eva as eva
from vitkit.weights.formats.huggingface_others import BASE, PREPROCESS, SIDE, SIZE_ASSUMED
from vitkit.weights.formats.timm import DEIT
from vitkit.weights.layout import Layout, Piece, folded_positions, joined, pooled_pieces, require, same, with_axes
from vitkit.weights.tensor_names import matches_of

_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)$")
_TRAINING_ONLY = ("mask_token", "local_cls_norm.weight", "local_cls_norm.bias", "lm_head.weight", "lm_head.bias")


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint of DINOv3, EVA-02 or Perception Encoder; None for any other."""
    names = checkpoint.tensors
    if "storage_tokens" in names or eva.has(names, r"blocks\.\d+\.attn\.qkv\.bias_mask$"):
        is_sapiens = eva.has(names, r"blocks\.\d+\.attn\.w[qkv]\.")
        return None if is_sapiens else _dinov3(checkpoint)
    if eva.has(names, r"visual\.attn_pool\.(probe$|layernorm\.|mlp\.)"):
        return _perception_encoder(checkpoint)
    has_eva_parts = eva.has(names, r"blocks\.\d+\.(mlp\.(w\d+\.|ffn_ln\.)|attn\.inner_attn_ln\.)")
    if has_eva_parts and eva.has(names, r"blocks\.\d+\.attn\.(q_bias|q_proj)"):
        return _eva02(checkpoint)
    return None


# --- DINOv3 ---------------------------------------------------------------------------------------------------


def _dinov3(checkpoint: Checkpoint) -> Layout:
    names = checkpoint.tensors
    require(checkpoint, "DINOv3", "storage_tokens", "cls_token", "patch_embed.proj.weight", "rope_embed.periods")
    dropped = {name: "only for training" for name in _TRAINING_ONLY if name in names}
    dropped["rope_embed.periods"] = "only its base is needed"
    # The n periods are base ** (i / n) for i = 0, ..., n - 1. A single period is 1 for any base.
    periods = names["rope_embed.periods"].read().double().flatten()
    base, n = BASE, len(periods)
    if n > 1:
        largest = float(periods[-1].abs())  # in bfloat16, which has two to three digits
        base = float(f"{largest ** (n / (n - 1)):.2g}")
        if not torch.allclose(periods, base ** (torch.arange(n) / n).double(), rtol=0.03):
            raise VitkitError(
                "weights.tensor-invalid", f"{checkpoint.path} (DINOv3): rope_embed.periods must be powers of one base"
            )
    fields: dict[str, Any] = {
        "rotary": "dinov3",
        "rotary_base": base,
        "position": "none",
        "class_token": True,
        "pool": "token",
        "norm_eps": 1e-5,
        "gelu": "erf",
    }
    kernel, frequencies = names["patch_embed.proj.weight"].shape, names["rope_embed.periods"].shape
    if kernel and frequencies and frequencies[0]:  # a head has four features for each frequency
        fields["heads"] = kernel[0] // (4 * frequencies[0])
    return Layout(
        format="DINOv3",
        pieces=_dinov3_pieces(names, dropped),
        fields=fields,
        preprocess=PREPROCESS,
        image_size=(SIDE, SIDE),
        assumed={
            "rotary": f"dinov3, of base {base:g}, which follows from its periods; if wrong: rotary_base=...",
            "image_size": SIZE_ASSUMED,
        },
        dropped=dropped,
    )


def _dinov3_pieces(names: Mapping[str, StoredTensor], dropped: Mapping[str, str]) -> dict[str, Piece]:
    pieces = {name: same(name) for name in names if not name.startswith("blocks.") and name not in dropped}
    pieces["reg_token"] = pieces.pop("storage_tokens")
    matches = matches_of(_BLOCK, names)

    def split(ours: Tensor, _config: ViTConfig) -> tuple[Tensor, Tensor]:
        q, k, v = ours.chunk(3)  # the mask is 1 for the bias of q, 0 for k and 1 for v
        return ours, torch.cat([torch.ones_like(q), torch.zeros_like(k), torch.ones_like(v)])

    parts = dict.fromkeys(match[2] for match in matches)  # every block is expected to have the parts of any block
    for layer in dict.fromkeys(match[1] for match in matches):
        prefix = f"blocks.{layer}."
        pieces |= {f"{prefix}{part}": same(f"{prefix}{part}") for part in parts}
        if "attn.qkv.bias_mask" in parts:
            bias, mask = f"{prefix}attn.qkv.bias", f"{prefix}attn.qkv.bias_mask"
            del pieces[mask]
            pieces[bias] = Piece((bias, mask), lambda bias, mask: torch.where(mask == 0, 0, bias), split)
        if "mlp.w1.weight" in parts:
            for kind in ("weight", "bias"):
                gate, value, out = (f"{prefix}mlp.w{i}.{kind}" for i in (1, 2, 3))
                for stored in (gate, value, out):
                    pieces.pop(stored, None)
                pieces[f"{prefix}mlp.fc1.{kind}"] = joined(gate, value)
                pieces[f"{prefix}mlp.fc2.{kind}"] = same(out)
    return pieces


# --- EVA-02 ---------------------------------------------------------------------------------------------------

_RENAMED = (  # the authors' names, and timm's
    (".mlp.ffn_ln.", ".mlp.norm."),
    (".attn.inner_attn_ln.", ".attn.norm."),
    (".mlp.w12.", ".mlp.fc1."),
    (".mlp.w1.", ".mlp.fc1_g."),
    (".mlp.w2.", ".mlp.fc1_x."),
    (".mlp.w3.", ".mlp.fc2."),
)
_BIASES = ((".attn.q_bias", ".attn.q_proj.bias"), (".attn.v_bias", ".attn.v_proj.bias"))


def _eva02(checkpoint: Checkpoint) -> Layout | None:
    """Return EVA-02's layout, derived from timm's layout of the same model."""
    names = checkpoint.tensors
    has_separate_q = eva.has(names, r"blocks\.\d+\.attn\.q_proj\.weight$")
    rules = (*_RENAMED, *(_BIASES if has_separate_q else ()))
    dropped = {name: "only for training" for name in _TRAINING_ONLY if name in names}
    dropped |= {name: "it follows from the grid" for name in names if re.search(r"rope\.freqs_(cos|sin)$", name)}
    renamed = {_replaced(name, rules): tensor for name, tensor in names.items() if name not in dropped}
    layout = eva.recognise(replace(checkpoint, tensors=renamed))
    if layout is None:
        return None
    rename = partial(_replaced, rules=[(timms, theirs) for theirs, timms in rules])
    pieces = {ours: piece.renamed(rename) for ours, piece in layout.pieces.items()}
    return replace(layout, format="EVA-02", pieces=_in_every_block(pieces), dropped={**layout.dropped, **dropped})


# --- Perception Encoder -----------------------------------------------------------------------------------------

_PE_NAMES = (  # the authors' names, and timm's
    ("visual.transformer.resblocks.", "blocks."),
    ("visual.conv1.", "patch_embed.proj."),
    ("visual.class_embedding", "cls_token"),
    ("visual.positional_embedding", "pos_embed"),
    ("visual.ln_pre.", "norm_pre."),
    ("visual.ln_post.", "norm."),
    ("visual.attn_pool.probe", "attn_pool.latent"),
    ("visual.attn_pool.attn.out_proj.", "attn_pool.proj."),
    ("visual.attn_pool.layernorm.", "attn_pool.norm."),
    ("visual.attn_pool.mlp.c_fc.", "attn_pool.mlp.fc1."),
    ("visual.attn_pool.mlp.c_proj.", "attn_pool.mlp.fc2."),
    (".ln_1.", ".norm1."),
    (".ln_2.", ".norm2."),
    (".attn.in_proj_", ".attn.qkv."),
    (".attn.out_proj.", ".attn.proj."),
    (".mlp.c_fc.", ".mlp.fc1."),
    (".mlp.c_proj.", ".mlp.fc2."),
    (".ls_1.gamma", ".gamma_1"),
    (".ls_2.gamma", ".gamma_2"),
)
_POOLED = "visual.attn_pool.attn.in_proj_"


def _perception_encoder(checkpoint: Checkpoint) -> Layout | None:
    """Return the Perception Encoder's layout, derived from timm's. The text encoder is dropped."""
    names = checkpoint.tensors
    require(checkpoint, "Perception Encoder", "visual.positional_embedding", "visual.conv1.weight")
    dropped = {name: "text encoder" for name in names if not name.startswith("visual.")}
    dropped["visual.proj"] = "from the features to the space that images share with texts"
    timms_name = {
        name: _replaced(name, _PE_NAMES) for name in names if name not in dropped and not name.startswith(_POOLED)
    }
    renamed = {timms: names[theirs] for theirs, timms in timms_name.items()}
    if "pos_embed" in renamed:
        renamed["pos_embed"] = replace(renamed["pos_embed"], shape=(1, *renamed["pos_embed"].shape))
    layout = eva.recognise(replace(checkpoint, tensors=renamed))
    if layout is None:
        return None

    reversed_rules = [(timms, theirs) for theirs, timms in reversed(_PE_NAMES)]
    authors_name = {timms: theirs for theirs, timms in timms_name.items()}

    def rename(timms: str) -> str:
        return authors_name.get(timms) or _replaced(timms, reversed_rules)  # by the rules if the tensor is missing

    pieces = {ours: piece.renamed(rename) for ours, piece in layout.pieces.items()}
    pieces["cls_token"] = with_axes("visual.class_embedding", 2)
    pieces["pos_embed"] = with_axes("visual.positional_embedding", 1)
    pieces |= pooled_pieces(_POOLED)
    for timms, theirs in reversed_rules:  # errors about missing tensors then have the authors' names
        is_layer = theirs.startswith("visual.") and theirs.endswith(".")
        if is_layer and timms != "blocks.":
            for kind in ("weight", "bias"):
                pieces.setdefault(f"{timms}{kind}", same(f"{theirs}{kind}"))
    pieces.setdefault("attn_pool.latent", same("visual.attn_pool.probe"))
    dropped = {name: reason for name, reason in dropped.items() if name in names}
    return replace(layout, format="Perception Encoder", pieces=_in_every_block(pieces), dropped=dropped)


def _in_every_block(pieces: Mapping[str, Piece]) -> dict[str, Piece]:
    """Add a piece that only some blocks have to the others, so that errors about them state the authors' names."""
    matches = matches_of(_BLOCK, pieces)
    completed = dict(pieces)
    for layer in dict.fromkeys(match[1] for match in matches):
        for match in matches:
            rename = partial(_replaced, rules=[(f"blocks.{match[1]}.", f"blocks.{layer}.")])
            completed.setdefault(f"blocks.{layer}.{match[2]}", pieces[match.string].renamed(rename))
    return completed


def _replaced(name: str, rules: Iterable[tuple[str, str]]) -> str:
    for old, new in rules:
        name = name.replace(old, new)
    return name


DINO_PREPROCESS = DEIT
# Training divides blocks into chunks, so names may have the number of the chunk before that of the layer.
_BLOCK_DINO = re.compile(r"^(blocks\.(?:\d+\.)?(\d+)\.)(.+)$")


def recognise_dino(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is the one of DINOv2's authors; None for any other."""
    names = checkpoint.tensors
    if not matches_of(r"blocks\.(\d+\.)?\d+\.ls1\.gamma$", names):
        return None
    has_token = "register_tokens" in names or "mask_token" in names
    if not has_token and not any(".mlp.w12." in name for name in names):
        return None
    matches = matches_of(_BLOCK_DINO, names)
    # Every block should have the tensors that any block has. Errors about missing ones need their names, too.
    blocks, parts = (dict.fromkeys(match[group] for match in matches) for group in (1, 3))
    expected = ["register_tokens", *(block + part for block in blocks for part in parts)]
    absent = [name for name in expected if name not in names]
    pieces = {}
    for name in (*absent, *names):
        ours = _BLOCK_DINO.sub(r"blocks.\2.\3", name)
        ours = ours.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2.")
        pieces["reg_token" if name == "register_tokens" else ours] = same(name)
    has_registers = "register_tokens" in names
    if has_registers:
        pieces |= folded_positions("cls_token", "pos_embed")
    fields: dict[str, Any] = {
        "gelu": "erf",
        "class_token": True,
        "prefix_positions": not has_registers,
        "norm_eps": 1e-6,
        # With registers, the authors resize to a given size, with antialiasing.
        "position_resize": "timm" if has_registers else "dinov2",
    }
    dropped = {name: "trained to predict masked patches" for name in names if name == "mask_token"}
    dropped |= {name: "DINOv2's projection head" for name in names if name.startswith(("dino_head.", "ibot_head."))}
    return Layout(format="DINOv2", pieces=pieces, fields=fields, preprocess=DINO_PREPROCESS, dropped=dropped)
