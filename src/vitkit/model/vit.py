"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), sections 3.1 and 3.2.

    z_0  = [x_class; x_1 E; ...; x_N E] + E_pos          eq. 1   VisionTransformer.embed
    z'_l = MSA(LN(z_{l-1})) + z_{l-1}                    eq. 2   Block, Attention
    z_l  = MLP(LN(z'_l)) + z'_l                          eq. 3   Block, MLP
    y    = LN(z_L^0)                                     eq. 4   VisionTransformer.forward_head

Shapes: B batch, C channels, N tokens, n leading tokens whose output is computed, D hidden size, H heads, D_h head size,
h x w patch grid, K classes. The names of parameters are those of timm, DeiT, DINO and MAE; they are public.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig, override
from vitkit.model.hybrids import ConvMixer, ConvProjection, ResNetStem
from vitkit.model.layers import (
    AttentionPool,
    Dropout,
    DropPath,
    Head,
    Layers,
    PatchConvolution,
    SwiGLU,
    TokenConvolution,
    UnitLength,
    activation,
    attend_fused,
    halves,
    initialise,
    layer_scale,
    learned_tokens,
    norm_layer,
)
from vitkit.model.position import Relative, Rotary, build_positions
from vitkit.model.registry import build_registered_block
from vitkit.model.timm_interface import TimmAttention, TimmModel
from vitkit.model.windows import windows_of


class PatchEmbed(nn.Module):
    """Split the image into patches and project each to D features: E of eq. 1, as a convolution.

    Hybrids take the patches from the feature map of a ResNet instead (sec. 3.1).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        channels = config.in_channels
        self.backbone: nn.Module = nn.Identity()
        if config.stem is not None:
            self.backbone = ResNetStem(channels, config.stem, config.stem_kind)
            channels = self.backbone.out_channels
        size = config.patch_size
        self.proj = PatchConvolution(channels, config.hidden_size, size, stride=size, bias=config.patch_bias)
        self.norm = norm_layer(config) if config.patch_norm else nn.Identity()
        self.img_size, self.patch_size = config.image_size, config.patch_size
        self.grid_size, self.num_patches = config.grid, config.patches

    def forward(self, images: Tensor) -> Tensor:
        x = self.proj(self.backbone(images))  # (B, D, h, w)
        return self.norm(x.flatten(2).transpose(1, 2))  # (B, h*w, D)


class Attention(TimmAttention, nn.Module):
    """Multi-head self-attention (app. A, eqs. 5-8), of all tokens or within windows (app. D.6)."""

    def __init__(self, config: ViTConfig, patches_read: bool = True, layer: int = 0) -> None:
        super().__init__()
        is_local = config.attention == "axial" or config.window_size is not None
        self.windows = windows_of(config, layer) if is_local else None
        self.heads = config.heads
        self.scale = (config.hidden_size // config.heads) ** -0.5 if config.qk_scale is None else config.qk_scale
        self.fused = True  # compute eqs. 6-7 by one kernel; False: step by step, with the same result
        self.convolve = ConvProjection(config, patches_read) if config.projection == "conv" else None
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.qkv_bias)
        self.norm = norm_layer(config) if config.attention_norm else nn.Identity()
        self.proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.proj_bias)
        self.attn_drop, self.proj_drop = Dropout(config.attention_dropout), Dropout(config.dropout)

    def project(self, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute eq. 5: (B, N, D) -> q (B, H, n, D_h) of the first n = `queries` tokens, k and v (B, H, N, D_h)."""
        B, N, D = x.shape
        if queries is None and self.convolve is None:
            return self.qkv(x).view(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.convolve is not None:
            parts = self.convolve(x, self.qkv, queries)
        else:
            bias_q, bias_kv = (None, None) if self.qkv.bias is None else (self.qkv.bias[:D], self.qkv.bias[D:])
            q = F.linear(x[:, :queries], self.qkv.weight[:D], bias_q)  # (B, n, D)
            parts = (q, *halves(F.linear(x, self.qkv.weight[D:], bias_kv)))  # (B, N, D) each
        q, k, v = (part.unflatten(2, (self.heads, D // self.heads)).transpose(1, 2) for part in parts)
        return q, k, v

    def matrix(self, q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute A of eq. 6: (B, H, n, N); each row sums to 1."""
        logits = (q * self.scale) @ k.transpose(-2, -1)
        return (logits if bias is None else logits + bias).softmax(dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute eqs. 6-7 for these queries, keys and values: (..., n, D_h)."""
        if self.fused and not (self.training and self.attn_drop.rate):  # the kernel would draw other dropout masks
            return attend_fused(q, k, v, bias, self.scale)
        return self.attn_drop(self.matrix(q, k, bias)) @ v

    def attend_within(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute eqs. 6-7 within the windows of this layer, or over all tokens if it has none: (B, H, n, D_h)."""
        return self.attend(q, k, v, bias) if self.windows is None else self.windows(self.attend, q, k, v, bias)

    def forward(self, x: Tensor, queries: int | None = None, relative: Relative | None = None) -> Tensor:
        q, k, v = self.project(x, queries)
        q, k, bias = (q, k, None) if relative is None else relative(q, k, self.scale)
        x = self.attend_within(q, k, v, bias).transpose(1, 2).flatten(2)  # eq. 8: (B, n, D)
        return self.proj_drop(self.proj(self.norm(x)))


class MLP(nn.Module):
    """Two linear layers with a GELU between them (sec. 3.1).

    `mlp_kind` "swiglu" replaces the GELU by a gated unit; "conv" adds a convolution over the patches before the GELU.
    """

    def __init__(self, config: ViTConfig, patches_read: bool = True) -> None:
        super().__init__()
        gated = config.mlp_kind == "swiglu"
        self.fc1 = nn.Linear(config.hidden_size, config.mlp_size * (2 if gated else 1), bias=config.proj_bias)
        self.conv: nn.Module = nn.Identity()
        if config.mlp_kind == "conv" and patches_read:
            self.conv = TokenConvolution(config.mlp_size, config.grid, config.prefix_tokens)
        self.act = SwiGLU() if gated else activation(config)
        self.drop1, self.drop2 = Dropout(config.dropout), Dropout(config.dropout)
        self.norm = norm_layer(config, config.mlp_size) if config.mlp_norm else nn.Identity()
        self.fc2 = nn.Linear(config.mlp_size, config.hidden_size, bias=config.proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(self.act(self.conv(self.fc1(x))))  # (B, n, mlp)
        return self.drop2(self.fc2(self.norm(x)))  # (B, n, D)


class Block(nn.Module):
    """One encoder layer. With `queries` = n it returns only the first n tokens, which still attend to all tokens."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.order = config.norm
        self.norm1 = norm_layer(config)
        # With pool "token", the head ignores the last layer's patches, so convolving them would have no effect.
        patches_read = layer < config.layers - 1 or config.pool != "token"
        is_conv = layer in config.conv_layers
        self.attn = ConvMixer(config) if is_conv else Attention(config, patches_read, layer)  # the MSA of eq. 2
        self.ls1, self.ls2 = layer_scale(config), layer_scale(config)
        self.norm2 = norm_layer(config)
        self.mlp = MLP(config, patches_read)
        rate = config.drop_path * layer / max(config.layers - 1, 1)  # the linear rule
        self.drop_path1, self.drop_path2 = DropPath(rate), DropPath(rate)

    def forward(self, x: Tensor, queries: int | None = None, relative: Relative | None = None) -> Tensor:
        if self.order == "res-post":  # Swin V2, arXiv 2111.09883 sec. 3.2
            x = x[:, :queries] + self.drop_path1(self.norm1(self.attn(x, queries, relative)))
            return x + self.drop_path2(self.norm2(self.mlp(x)))
        if self.order == "post":  # the original Transformer, arXiv 1706.03762 sec. 3.1
            x = self.norm1(x[:, :queries] + self.drop_path1(self.ls1(self.attn(x, queries, relative))))
            return self.norm2(x + self.drop_path2(self.ls2(self.mlp(x))))
        x = x[:, :queries] + self.drop_path1(self.ls1(self.attn(self.norm1(x), queries, relative)))  # eq. 2
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))  # eq. 3


class VisionTransformer(TimmModel, nn.Module):
    """The Vision Transformer: images (B, C, height, width), normalised as the weights expect, to class logits (B, K).

        >>> import torch
        >>> assert VisionTransformer(img_size=32, layers=2, num_classes=5)(torch.zeros(8, 3, 32, 32)).shape == (8, 5)

    Three attributes change how the logits are computed, but not the logits themselves:

    - `fused_attention`: whether eqs. 6-7 are computed by one kernel.
    - `shortcut`: whether the last block computes only the tokens that the head reads (7 % less work at 12 layers).
    - `checkpointing`: blocks to recompute in the backward pass, to save memory: True for all, n for every n-th block.

    Args:
        config: the architecture; the default is ViT-B/16 at 224 pixels.
        overrides: new values for fields of the configuration; timm's names of the fields are accepted, too.

    Raises:
        VitkitError: an override is unknown, or no model can be built with its value.
    """

    def __init__(self, config: ViTConfig | None = None, **overrides: Any) -> None:
        super().__init__()
        if config is not None and not isinstance(config, ViTConfig):
            raise VitkitError(
                "model.value-invalid", f"config must be a ViTConfig, not {config!r:.80}: pass sizes as in img_size=224"
            )
        if config is None or overrides:
            config = override(config or ViTConfig(), **overrides)
        self.config = config
        self.shortcut = True
        self.checkpointing: int = False
        self.patch_embed = PatchEmbed(config)
        self.cls_token = learned_tokens(1 if config.class_token else 0, config)
        self.dist_token = learned_tokens(1 if config.distill_token else 0, config)
        self.reg_token = learned_tokens(config.registers, config)
        self.pos_embed, self.rel_pos = build_positions(config)
        self.rope = None if config.rotary == "none" else Rotary(config)
        self.pos_drop = Dropout(config.position_dropout)
        self.norm_pre = norm_layer(config) if config.embed_norm else nn.Identity()
        build_block = Block if config.block == "standard" else build_registered_block
        self.blocks = Layers(*(build_block(config, layer) for layer in range(config.layers)))
        self.blocks.positions_in_layers = config.positions_in_layers
        # In post-norm order the last block has already normalised its output; fc_norm normalises the pooled vector.
        is_normalised = config.norm == "post" or config.fc_norm or not config.last_norm
        self.norm = nn.Identity() if is_normalised else norm_layer(config)
        self.attn_pool = AttentionPool(config, MLP) if config.pool == "map" else None
        self.fc_norm = norm_layer(config) if config.fc_norm else nn.Identity()
        self._create_heads()
        initialise(self, self.patch_embed.proj, config.init)

    def _create_heads(self) -> None:
        """Create the representation layer and the head (sec. 3.1), and DeiT's second head, for `self.config`."""
        config = self.config
        self.pre_logits: nn.Module = nn.Identity()
        if config.representation_size is not None:
            pooled = 2 * config.hidden_size if config.pool == "token+gap" else config.hidden_size
            is_unit = config.representation == "unit"
            layer = nn.Linear(pooled, config.representation_size, bias=not is_unit)
            self.pre_logits = nn.Sequential(OrderedDict(fc=layer, act=UnitLength() if is_unit else nn.Tanh()))
        has_head, has_second = config.num_classes > 0, config.num_classes > 0 and config.distill_head
        self.head = Head(config.feature_size, config.num_classes) if has_head else None
        self.head_dist = Head(config.hidden_size, config.num_classes) if has_second else None

    @property
    def fused_attention(self) -> bool:
        """Whether one kernel computes eqs. 6-7. Otherwise they are computed step by step, with the same result."""
        return all(layer.fused for layer in self._fusing())

    @fused_attention.setter
    def fused_attention(self, fused: bool) -> None:
        for layer in self._fusing():
            layer.fused = fused

    def _fusing(self) -> list[Any]:  # layers that mix by convolution, and some registered ones, have no attention
        return [block.attn for block in self.blocks if hasattr(getattr(block, "attn", None), "fused")]

    def rebuild_tables(self) -> None:
        """Recompute the fixed tables on the device of the parameters, after the model left the meta device."""
        for module in self.modules():
            rebuild = getattr(module, "rebuild_tables", None)
            if module is not self and rebuild is not None:
                rebuild(self.patch_embed.proj.weight)

    def positions(self, layer: int = 0) -> Tensor | None:
        """Return E_pos, which is added to the tokens before a layer: (N, D), or None if nothing is added."""
        if self.pos_embed is None:
            return None
        table = layer if self.config.position_at == "every_layer" else 0
        if not isinstance(self.pos_embed, Tensor):
            return self.pos_embed(table)
        unpositioned = self.config.prefix_tokens - self.config.positioned_prefix  # prefix tokens without a position
        return F.pad(self.pos_embed[table], (0, 0, unpositioned, 0)) if unpositioned else self.pos_embed[table]

    def positions_of(self, layer: int) -> tuple[Tensor | None, Relative | None]:
        """Return the positions that a layer adds to its tokens, (N, D), and those that act inside its attention."""
        relative: Relative | None = None if self.rope is None else self.rope(layer)
        if self.rel_pos is not None:
            relative = self.rel_pos[layer % len(self.rel_pos)]  # one for each layer, or one for all
        return None if self.config.position_at == "input" else self.positions(layer), relative

    def embed(self, images: Tensor) -> Tensor:
        """Compute eq. 1: (B, C, height, width) images -> (B, N, D) tokens.

        Raises:
            VitkitError: the images do not have the size or the number of channels that the model expects.
        """
        return self.add_tokens_and_positions(self.embed_patches(images))

    def embed_patches(self, images: Tensor) -> Tensor:
        """Embed the patches, x_p E of eq. 1: (B, C, height, width) -> (B, h*w, D). Raises the errors of `embed`."""
        expected = (self.config.in_channels, *self.config.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise VitkitError(
                "model.images-misshapen",
                f"the model expects images of shape (batch, {', '.join(map(str, expected))}), but received "
                f"{tuple(images.shape)}; resize them, or create the model with another image_size",
            )
        return self.patch_embed(images)

    def add_tokens_and_positions(self, patches: Tensor) -> Tensor:
        """Compute the rest of eq. 1, prefix tokens and positions: patches (B, h*w, D) -> tokens (B, N, D)."""
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        prefix = [token.expand(patches.shape[0], -1, -1) for token in tokens if token is not None]
        x = torch.cat([*prefix, patches], dim=1)  # (B, N, D)
        positions = self.positions() if self.config.position_at == "input" else None
        return self.norm_pre(self.pos_drop(x if positions is None else x + positions))

    def encode(self, tokens: Tensor, queries: int | None = None) -> Tensor:
        """Apply all layers (eqs. 2 and 3): (B, N, D) -> (B, N, D), or (B, queries, D) for the first tokens alone."""
        last = len(self.blocks) - 1
        return self.blocks(tokens, lambda i, x: self.layer(i, x, queries if i == last else None))

    def layer(self, i: int, x: Tensor, queries: int | None = None) -> Tensor:
        """Apply layer i with its positions: (B, N, D) -> (B, N, D), or (B, queries, D) for the first tokens alone."""
        positions, relative = self.positions_of(i)
        x = x if positions is None else x + positions
        block = self.blocks[i]
        accepted = getattr(block, "accepted_inputs", None)
        if accepted is not None:  # a layer that the user registered
            inputs = {"queries": queries, "relative": relative}
            return block(x, **{name: inputs[name] for name in accepted})[:, :queries]
        if self.checkpointing and i % self.checkpointing == 0 and self.training:
            output: Tensor = checkpoint(block, x, queries, relative, use_reentrant=False)
            return output
        return block(x, queries, relative)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits of images: (B, C, height, width) -> (B, K).

        A DeiT returns the mean of its two heads; a model without a head returns features (B, D).
        """
        return self.forward_head(self._head_tokens(images))

    def forward_heads(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute the logits (B, K) of each head: the class head, then DeiT's distillation head."""
        return self._logits(self._head_tokens(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Compute all tokens of images: (B, C, height, width) -> (B, N, D), the prefix tokens first.

        They are normalised, unless the model normalises after pooling instead (`fc_norm`) or has `last_norm=False`.
        """
        return self.norm(self.encode(self.embed(images)))

    def forward_layers(
        self, images: Tensor, layers: Sequence[int] | None = None, normalise: bool = False
    ) -> list[Tensor]:
        """Compute the tokens after each requested layer, (B, N, D) each.

        Args:
            images: (B, C, height, width).
            layers: 0 is the first layer, -1 the last; None for all.
            normalise: whether to apply the model's last norm to each result.

        Raises:
            VitkitError: there is no such layer.
        """
        wanted = [self.config.number_of(layer) for layer in (range(len(self.blocks)) if layers is None else layers)]
        x, outputs = self.embed(images), {}
        for i in range(max(wanted, default=-1) + 1):
            x = self.layer(i, x)
            if i in wanted:
                outputs[i] = self.norm(x) if normalise else x
        return [outputs[layer] for layer in wanted]

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute eq. 4: normalised tokens (B, N, D) -> logits (B, K), or with `pre_logits` the head's input (B, D)."""
        outputs = self._features(tokens) if pre_logits else self._logits(tokens)
        return outputs[0] if len(outputs) == 1 else (outputs[0] + outputs[1]) / 2  # DeiT averages its heads

    def _head_tokens(self, images: Tensor) -> Tensor:
        uses_shortcut = self.shortcut and not self.is_observed
        tokens = self.encode(self.embed(images), self.config.tokens_read if uses_shortcut else None)
        return self.norm(tokens)  # (B, n, D)

    def _features(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return the input of each head, (B, D) each."""
        if self.config.distill_head:
            return tokens[:, 0], tokens[:, 1]
        if self.config.pool == "token":
            return (self.pre_logits(self.fc_norm(tokens[:, 0])),)
        pooled = self.attn_pool(tokens) if self.attn_pool else tokens[:, self.config.prefix_tokens :].mean(dim=1)
        if self.config.pool == "token+gap":
            pooled = torch.cat([tokens[:, 0], pooled], dim=-1)  # (B, 2D)
        return (self.pre_logits(self.fc_norm(pooled)),)

    def _logits(self, tokens: Tensor) -> tuple[Tensor, ...]:
        heads = [head for head in (self.head, self.head_dist) if head is not None]
        features = self._features(tokens)
        return tuple(head(x) for head, x in zip(heads, features, strict=True)) if heads else features
