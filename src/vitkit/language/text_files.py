"""Read text encoders of CLIP and SigLIP from checkpoints in the formats of Hugging Face and OpenCLIP.

`read_text_encoder` loads a text encoder. `inspect_text_encoder` reads only the names and shapes of its tensors.
`TextTower` is the text encoder of CLIP (arXiv 2103.00020, sec. 2.4) and of SigLIP (arXiv 2303.15343). It is a
Transformer with the blocks of `model.vit`, and maps the tokens of each text to one vector. Shapes: B texts, L tokens
per text, D hidden size, P dimensions of the embedding space that texts share with images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.language.tokenizer import Clean
from vitkit.model.config import ViTConfig
from vitkit.model.layers import norm_layer
from vitkit.model.vit import Block
from vitkit.weights.checkpoint import Checkpoint
from vitkit.weights.formats import huggingface_towers, open_clip
from vitkit.weights.formats.huggingface_described import activation
from vitkit.weights.layout import Layout, Piece, account_for, depth_of, joined_shape, pair, same
from vitkit.weights.tensor_names import matches_of

_HF_EMBEDDING = "text_model.embeddings.token_embedding.weight"
_OPEN_EMBEDDINGS = ("token_embedding.weight", "text.token_embedding.weight")
_HEADS_BY_SIZE = {1152: 16}  # number of heads by hidden size, unless each has 64 features: So400m (arXiv 2303.15343)

_UNSUPPORTED = ("hf_model_name", "embed_cls", "block_type", "qk_norm", "scaled_cosine_attn", "scale_heads", "scale_fc")
_POOLS = {"argmax": "largest", "eos": "end", "last": "last", "first": "first"}


@dataclass(frozen=True)
class TextEncoder:
    """A text encoder, and the parameters for comparing its vectors with those of images."""

    tower: TextTower
    projection: Tensor | None  # (P, D), of the image encoder's output to the shared space; None if it is there already
    scale: float  # the factor of the cosine similarities in the logits
    bias: float  # added to the logits
    is_sigmoid: bool  # trained with a sigmoid for each pair (SigLIP), not a softmax over the pairs of a batch (CLIP)
    clean: Clean  # the normalisation of texts before the tokenizer
    assumed: Mapping[str, str]  # values of properties that the file does not state


@dataclass(frozen=True)
class TextEncoderInfo:
    """The properties of a text encoder that follow from the names and shapes of its tensors; see `TextEncoder`."""

    size: int  # P, the dimension of the embedding space shared by images and texts
    context: int  # the number of tokens per text
    is_sigmoid: bool
    clean: Clean


def read_text_encoder(checkpoint: Checkpoint, gelu: str) -> TextEncoder:
    """Read the text encoder of a checkpoint with an image encoder and a text encoder.

    The text encoder has the image encoder's variant of GELU, `gelu`, unless the file says otherwise.

    Raises:
        VitkitError: there is no text encoder, or a tensor is missing, unexpected, of the wrong shape or not finite.
    """
    layout = _layout(checkpoint)
    if layout is None:
        raise VitkitError(
            "language.encoder-missing",
            f"{checkpoint.path} has no text encoder: texts and class names require CLIP or SigLIP with both encoders",
        )
    scale = _number(checkpoint, "logit_scale", is_logarithm=True)
    if scale is None:
        message = f"{checkpoint.path}: logit_scale is missing; use the publisher's file"
        raise VitkitError("language.tensors-unlike", message)
    bias = _number(checkpoint, "logit_bias")
    projection = None
    if layout.projection is not None:
        projection = _read(checkpoint, same(layout.projection))
        projection = projection.T.contiguous() if layout.is_transposed else projection
    tower = _tower(checkpoint, layout, gelu)
    heads = f"{tower.config.heads}, as is usual for {tower.config.hidden_size} features (config.json is missing)"
    return TextEncoder(
        tower=tower,
        projection=projection,
        scale=scale,
        bias=bias or 0.0,
        is_sigmoid=bias is not None,
        clean=layout.clean,
        assumed={} if "heads" in layout.settings else {"heads of the text encoder": heads},
    )


def inspect_text_encoder(checkpoint: Checkpoint) -> TextEncoderInfo | None:
    """Describe a checkpoint's text encoder without reading tensor data; None if it is missing or incomplete."""
    layout = _layout(checkpoint)
    if layout is None:
        return None
    head, positions = _shape(checkpoint, layout.pieces["head.weight"]), _shape(checkpoint, layout.pieces["pos_embed"])
    if head is None or positions is None:
        return None
    return TextEncoderInfo(head[0], positions[0], "logit_bias" in checkpoint.tensors, layout.clean)


@dataclass(frozen=True)
class _TextLayout:
    """The names of a text encoder's tensors in a checkpoint, and the settings from the configuration file."""

    pieces: dict[str, Piece]
    settings: Mapping[str, Any]  # fields of TextConfig
    projection: str | None
    is_transposed: bool  # whether the projection is stored as (D, P)
    pattern: str  # regular expression for the names of the text encoder's tensors
    clean: Clean


def _layout(checkpoint: Checkpoint) -> _TextLayout | None:
    if _HF_EMBEDDING in checkpoint.tensors:
        return _hugging_face_layout(checkpoint)
    if any(name in checkpoint.tensors for name in _OPEN_EMBEDDINGS):
        return _open_clip_layout(checkpoint)
    return None


def _number(checkpoint: Checkpoint, name: str, *, is_logarithm: bool = False) -> float | None:
    """Read a number, which the file may contain as its logarithm; None if the file does not contain it."""
    if name not in checkpoint.tensors:
        return None
    value = checkpoint.tensors[name].read().float()
    if is_logarithm:
        value = value.exp()
    if value.numel() != 1 or not value.isfinite().all():
        message = f"{checkpoint.path}: {name} is not a single number in the usual range; use the publisher's file"
        raise VitkitError("language.tensor-invalid", message)
    return float(value)


def _tower(checkpoint: Checkpoint, layout: _TextLayout, gelu: str) -> TextTower:
    shapes = {name: _shape(checkpoint, piece) for name, piece in layout.pieces.items()}

    def size(name: str, axis: int) -> int:
        shape = shapes.get(name)
        if shape is None or len(shape) <= axis:
            stored = " + ".join(layout.pieces[name].stored_names)
            raise VitkitError(
                "language.tensors-unlike",
                f"{checkpoint.path}: {stored} of the text encoder is missing or has a wrong shape; use the publisher's "
                "file",
            )
        return shape[axis]

    hidden_size = size("token_embed.weight", 1)
    default_heads = _HEADS_BY_SIZE.get(hidden_size, max(hidden_size // 64, 1))
    fields = {"heads": default_heads, "gelu": gelu, "norm_eps": 1e-5, **layout.settings}
    heads = fields["heads"]
    if type(heads) is not int or heads < 1 or hidden_size % heads:
        message = f"{checkpoint.path}: the text encoder's {hidden_size} features cannot be divided into {heads!r} heads"
        raise VitkitError("language.config-unsupported", message)
    config = TextConfig(
        vocabulary=size("token_embed.weight", 0),
        context=size("pos_embed", 0),
        layers=_depth(layout.pieces, "blocks."),
        hidden_size=hidden_size,
        mlp_size=size("blocks.0.mlp.fc1.weight", 0),
        projection_size=size("head.weight", 0),
        **fields,
    )
    with torch.device("meta"):
        tower = TextTower(config)
    expected = {name: tensor.shape for name, tensor in tower.state_dict().items()}
    others = {name: "" for name in checkpoint.tensors if not re.match(layout.pattern, name)}  # of the image encoder
    if layout.projection is not None:
        others[layout.projection] = ""
    described = Layout(format="", pieces=layout.pieces, dropped=others)
    account = account_for(checkpoint.tensors, described, ViTConfig(), expected)
    if text := account.describe():
        raise VitkitError(
            "language.tensors-unlike",
            f"{checkpoint.path}: the tensors of the text encoder do not fit together: {text}; use the publisher's file",
        )
    tower.load_state_dict({name: _read(checkpoint, layout.pieces[name]) for name in expected}, assign=True)
    return tower.eval()


def _shape(checkpoint: Checkpoint, piece: Piece) -> torch.Size | None:
    return joined_shape(piece, [checkpoint.tensors.get(name) for name in piece.stored_names])


def _read(checkpoint: Checkpoint, piece: Piece) -> Tensor:
    tensor = piece.join(*(checkpoint.tensors[name].read() for name in piece.stored_names)).float().clone()
    if not tensor.isfinite().all():
        raise VitkitError(
            "language.tensor-invalid",
            f"{checkpoint.path}: {' + '.join(piece.stored_names)} contains NaN or infinite values; use the publisher's "
            "file",
        )
    return tensor


def _hugging_face_layout(checkpoint: Checkpoint) -> _TextLayout:
    names = checkpoint.tensors
    is_siglip = "visual_projection.weight" not in names
    if is_siglip and "logit_bias" not in names:  # otherwise a SigLIP would be mistaken for a CLIP
        raise VitkitError(
            "language.tensors-unlike",
            f"{checkpoint.path} has neither logit_bias (SigLIP) nor visual_projection.weight (CLIP): use a complete "
            "CLIP or SigLIP checkpoint",
        )
    pieces = {
        "token_embed.weight": same(_HF_EMBEDDING),
        "pos_embed": same("text_model.embeddings.position_embedding.weight"),
        **pair("norm", "text_model.final_layer_norm"),
        **pair("head", "text_model.head" if is_siglip else "text_projection"),
    }
    blocks = "text_model.encoder.layers."
    for layer in range(_depth(names, blocks)):
        pieces |= huggingface_towers.block_pieces(f"blocks.{layer}", f"{blocks}{layer}")
    settings: dict[str, Any]
    if is_siglip:
        settings = {"is_causal": False, "pool": "last", "projection_bias": True, "norm_eps": 1e-6}
    else:  # CLIP reads the token at the end of the text, which has the largest id in the published tokenizers
        settings = {"is_causal": True, "pool": "largest", "projection_bias": False, "norm_eps": 1e-5}
    if checkpoint.config is not None:
        # Fields that are missing in config.json have transformers' defaults.
        config: Any = checkpoint.config.get("text_config") or {}
        if not isinstance(config, Mapping):
            message = f"config.json: text_config must be an object, not {config!r:.40}"
            raise VitkitError("language.config-invalid", message)
        gelu = activation(config.get("hidden_act", "gelu_pytorch_tanh" if is_siglip else "quick_gelu"))
        if "gelu" not in gelu:
            message = f"config.json: hidden_act {config['hidden_act']!r} of a text encoder is not supported"
            raise VitkitError("language.config-unsupported", message)
        settings |= {"heads": config.get("num_attention_heads", 12 if is_siglip else 8), **gelu}
        if "layer_norm_eps" in config:
            settings["norm_eps"] = config["layer_norm_eps"]
        end = config.get("eos_token_id", 49407)
        if not is_siglip and end != 2:  # old transformers wrote 2 by mistake, so 2 does not tell the token
            if type(end) is not int:
                message = f"config.json: text_config eos_token_id must be a whole number, not {end!r:.40}"
                raise VitkitError("language.config-invalid", message)
            settings |= {"pool": "end", "end": end}
    return _TextLayout(
        pieces,
        settings,
        projection=None if is_siglip else "visual_projection.weight",
        is_transposed=False,
        # `position_ids` is only a buffer of consecutive numbers, so it is not read.
        pattern=r"text_(model|projection)\.(?!embeddings\.position_ids$)",
        clean="lower" if is_siglip else "none",
    )


def _open_clip_layout(checkpoint: Checkpoint) -> _TextLayout:
    names = checkpoint.tensors
    prefix = "text." if "text.token_embedding.weight" in names else ""
    pieces = {
        "token_embed.weight": same(f"{prefix}token_embedding.weight"),
        "pos_embed": same(f"{prefix}positional_embedding"),
        **pair("norm", f"{prefix}ln_final"),
        **pair("head", f"{prefix}text_projection"),
    }
    is_linear = f"{prefix}text_projection.weight" in names  # otherwise the projection is a matrix (D, P)
    if not is_linear:
        stored = (f"{prefix}text_projection",)
        pieces["head.weight"] = Piece(stored, lambda matrix: matrix.T, lambda weight, _: (weight.T,))
    blocks = f"{prefix}transformer.resblocks."
    for layer in range(_depth(names, blocks)):
        block = open_clip.block_pieces(f"blocks.{layer}", f"{blocks}{layer}")
        pieces |= {name: piece for name, piece in block.items() if ".ls" not in name}  # there is no LayerScale

    is_siglip = "logit_bias" in names
    model = (checkpoint.config or {}).get("model_cfg")
    settings: dict[str, Any]
    clean: Clean
    if isinstance(model, Mapping):
        config = model.get("text_cfg") or {}
        settings = _open_clip_settings(config, is_quick=bool(model.get("quick_gelu")))
        clean = "lower" if is_siglip else "none"
        if (config.get("tokenizer_kwargs") or {}).get("clean") == "canonicalize":
            clean = "canonical"
    elif is_siglip:
        settings = {"is_causal": False, "pool": "last", "norm_eps": 1e-6}
        clean = "canonical"
    else:
        settings = {"is_causal": True, "pool": "largest", "norm_eps": 1e-5}
        clean = "none"
    settings["projection_bias"] = is_linear
    # The projection of images is a matrix (D, P), or a linear layer.
    projections = [name for name in ("visual.proj", "visual.head.proj.weight") if name in names]
    projection = projections[0] if projections else None
    parts = r"token_embedding\.|transformer\.|ln_final\.|text_projection|positional_embedding$|cls_emb"
    return _TextLayout(
        pieces,
        settings,
        projection,
        is_transposed=projection == "visual.proj",
        pattern=rf"{re.escape(prefix)}({parts})",
        clean=clean,
    )


def _open_clip_settings(config: Mapping[str, Any], *, is_quick: bool) -> dict[str, Any]:
    """Return the fields of `TextConfig` in `text_cfg`, with OpenCLIP's defaults. `is_quick` is its `quick_gelu`."""
    pool = config.get("pool_type", "argmax")
    unsupported = [name for name in _UNSUPPORTED if config.get(name)]
    if not isinstance(pool, str) or pool not in _POOLS:
        unsupported.append("pool_type")
    if unsupported:
        name = unsupported[0]
        message = f"open_clip_config.json: text_cfg {name} {config.get(name)!r} is not supported"
        raise VitkitError("language.config-unsupported", message)
    is_tanh = (config.get("act_kwargs") or {}).get("approximate") == "tanh"
    gelu = "tanh" if is_tanh else "erf"
    return {
        "heads": config.get("heads", 8),
        "gelu": "quick" if is_quick else gelu,
        "norm_eps": (config.get("norm_kwargs") or {}).get("eps", 1e-5),
        "is_causal": not config.get("no_causal_mask", False),
        "pool": _POOLS[pool],
        "end": config.get("eos_id", 2) if pool == "eos" else None,
    }


def _depth(names: Iterable[str], blocks: str) -> int:
    """Return the number of blocks whose names begin with `blocks` and a number."""
    return depth_of(match[1] for match in matches_of(rf"{re.escape(blocks)}(\d+)\.", names))


class TextTower(nn.Module):
    """The text encoder, which maps tokens (B, L) to one vector per text (B, P), not normalised."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        fields = ("layers", "hidden_size", "heads", "mlp_size", "norm_eps", "gelu")
        block_config = ViTConfig(**{name: getattr(config, name) for name in fields})
        self.token_embed = nn.Embedding(config.vocabulary, config.hidden_size)
        self.pos_embed = nn.Parameter(torch.zeros(config.context, config.hidden_size))
        self.blocks = nn.ModuleList(Block(block_config, layer) for layer in range(config.layers))
        self.norm = norm_layer(block_config)
        self.head = nn.Linear(config.hidden_size, config.projection_size, bias=config.projection_bias)

    def forward(self, tokens: Tensor) -> Tensor:
        L = tokens.shape[1]
        x = self.token_embed(tokens) + self.pos_embed[:L]  # (B, L, D)
        mask = _add_causal_mask if self.config.is_causal else None
        for block in self.blocks:
            x = block(x, None, mask)
        if self.config.pool == "largest":
            positions = tokens.argmax(dim=1)  # of the token whose output represents the text, (B,)
        elif self.config.pool == "end":
            positions = torch.eq(tokens, self.config.end or 0).int().argmax(dim=1)
        else:
            positions = tokens.new_full((len(tokens),), 0 if self.config.pool == "first" else L - 1)
        x = self.norm(x[torch.arange(len(x), device=x.device), positions])  # (B, D)
        return self.head(x)  # (B, P)


def _add_causal_mask(q: Tensor, k: Tensor, _scale: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return q, k and a bias that hides later tokens, as a block expects from relative positions (`Relative`)."""
    L = q.shape[2]
    return q, k, torch.full((L, L), -torch.inf, dtype=q.dtype, device=q.device).triu(1)


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """The structure of a text encoder."""

    vocabulary: int  # the number of tokens
    context: int  # L, the number of tokens per text
    layers: int
    hidden_size: int
    heads: int
    mlp_size: int
    norm_eps: float
    gelu: Literal["erf", "tanh", "quick"]
    is_causal: bool  # whether a token attends only to itself and earlier ones (CLIP), or to all (SigLIP)
    pool: Literal["largest", "end", "last", "first"]  # the token that is read: the one with the largest id, ...
    end: int | None = None  # the id of the token that is read if `pool` is `end`
    projection_size: int  # P, the dimension of the text vectors
    projection_bias: bool
