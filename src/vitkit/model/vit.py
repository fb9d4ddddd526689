"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), sections 3.1 and 3.2.

    z_0  = [x_class; x_1 E; ...; x_N E] + E_pos          eq. 1   VisionTransformer.embed
    z'_l = MSA(LN(z_{l-1})) + z_{l-1}                    eq. 2   Block, Attention
    z_l  = MLP(LN(z'_l)) + z'_l                          eq. 3   Block, MLP
    y    = LN(z_L^0)                                     eq. 4   VisionTransformer.forward_head

Shapes: B batch, C channels, N tokens, n of them asked for, D hidden size, H heads, D_h head size, h x w patch grid,
K classes. The names of parameters are timm's, which DeiT, DINO and MAE share; they are public.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.differential import DifferentialAttention
from vitkit.model.hybrids import ConvMixer, ConvProjection, ResNetStem
from vitkit.model.init import initialise
from vitkit.model.layers import (
    AttentionPool,
    Computing,
    Dropout,
    DropPath,
    SwiGLU,
    TokenConvolution,
    extra_tokens,
    gelu,
    heads,
    layer_scale,
    norm_layer,
    pooling_mlp,
)
from vitkit.model.parallel import ParallelBlock
from vitkit.model.position import Relative, Rotary, build_positions
from vitkit.model.timm_habits import TimmHabits


class PatchEmbed(nn.Module):
    """Splits the image into patches and projects each to D features: E of eq. 1, as a convolution with its stride.

    In hybrids the patches are those of a ResNet's feature map (sec. 3.1).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        channels = config.in_channels
        self.backbone: nn.Module = nn.Identity()
        if config.stem is not None:
            self.backbone = ResNetStem(channels, config.stem, config.stem_kind)
            channels = self.backbone.out_channels
        size = config.patch_size
        self.proj = nn.Conv2d(channels, config.hidden_size, size, stride=size, bias=config.patch_bias)
        self.norm = norm_layer(config) if config.patch_norm else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        x = self.proj(self.backbone(images))  # (B, D, h, w)
        x = x.flatten(2).transpose(1, 2)  # (B, h*w, D)
        return self.norm(x)


class Attention(nn.Module):
    """Multi-head self-attention (app. A, eqs. 5-8)."""

    def __init__(self, config: ViTConfig, patches_read: bool = True) -> None:
        super().__init__()
        self.heads = config.heads
        self.scale = config.head_size**-0.5 if config.qk_scale is None else config.qk_scale
        self.fused = True  # one kernel for eqs. 6-7; False: written out, the same numbers
        self.convolve = ConvProjection(config, patches_read) if config.projection == "conv" else None
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.qkv_bias)
        self.norm = norm_layer(config) if config.attention_norm else nn.Identity()
        self.proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.proj_bias)
        self.attn_drop, self.proj_drop = Dropout(config.attention_dropout), Dropout(config.dropout)

    def project(self, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 5: (B, N, D) tokens -> q (B, H, n, D_h) of the first n = `queries` tokens, k and v (B, H, N, D_h)."""
        B, N, D = x.shape
        if queries is None and self.convolve is None:
            return self.qkv(x).view(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.convolve is not None:
            parts = self.convolve(x, self.qkv, queries)
        else:
            bias_q, bias_kv = (None, None) if self.qkv.bias is None else (self.qkv.bias[:D], self.qkv.bias[D:])
            q = F.linear(x[:, :queries], self.qkv.weight[:D], bias_q)  # (B, n, D)
            parts = (q, *F.linear(x, self.qkv.weight[D:], bias_kv).chunk(2, dim=-1))  # (B, N, D) each
        q, k, v = (part.unflatten(2, (self.heads, D // self.heads)).transpose(1, 2) for part in parts)
        return q, k, v

    def matrix(self, q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
        """Eq. 6: A (B, H, n, N), each row summing to 1."""
        logits = (q * self.scale) @ k.transpose(-2, -1)
        return (logits if bias is None else logits + bias).softmax(dim=-1)

    def forward(self, x: Tensor, queries: int | None = None, relative: Relative | None = None) -> Tensor:
        q, k, v = self.project(x, queries)
        q, k, bias = (q, k, None) if relative is None else relative(q, k, self.scale)
        if self.fused and not (self.training and self.attn_drop.rate):  # the kernel draws its own dropout
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
        else:
            x = self.attn_drop(self.matrix(q, k, bias)) @ v  # eq. 7: (B, H, n, D_h)
        x = x.transpose(1, 2).flatten(2)  # eq. 8: (B, n, D)
        return self.proj_drop(self.proj(self.norm(x)))


class MLP(nn.Module):
    """Two linear layers with a GELU between them (sec. 3.1); or a gated unit; or with a convolution before the GELU."""

    def __init__(self, config: ViTConfig, patches_read: bool = True) -> None:
        super().__init__()
        gated = config.mlp_kind == "swiglu"
        self.fc1 = nn.Linear(config.hidden_size, config.mlp_size * (2 if gated else 1), bias=config.proj_bias)
        self.conv: nn.Module = nn.Identity()
        if config.mlp_kind == "conv" and patches_read:
            self.conv = TokenConvolution(config.mlp_size, config.grid, config.prefix_tokens)
        self.act = SwiGLU() if gated else gelu(config)
        self.drop1, self.drop2 = Dropout(config.dropout), Dropout(config.dropout)
        self.norm = norm_layer(config, config.mlp_size) if config.mlp_norm else nn.Identity()
        self.fc2 = nn.Linear(config.mlp_size, config.hidden_size, bias=config.proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(self.act(self.conv(self.fc1(x))))  # (B, n, mlp)
        return self.drop2(self.fc2(self.norm(x)))  # (B, n, D)


class Block(nn.Module):
    """One encoder layer. With `queries` = n it returns the first n tokens alone, having attended to all."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.order = config.norm
        self.norm1 = norm_layer(config)
        patches_read = layer < config.layers - 1 or config.pool != "token"  # else convolving them is in vain
        self.attn = build_attention(config, layer, patches_read)
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


def build_attention(config: ViTConfig, layer: int, patches_read: bool) -> nn.Module:
    """MSA of eq. 2, or what the configuration has in its place."""
    if layer in config.conv_layers:
        return ConvMixer(config)
    if config.attention == "differential":
        return DifferentialAttention(config, layer)
    return Attention(config, patches_read)


def build_block(config: ViTConfig, layer: int) -> nn.Module:
    """Eqs. 2-3, one after the other or side by side."""
    if config.parallel == "none":
        return Block(config, layer)
    patches_read = layer < config.layers - 1 or config.pool != "token"
    return ParallelBlock(config, layer, build_attention(config, layer, patches_read), MLP(config, patches_read))


class VisionTransformer(Computing, TimmHabits, nn.Module):
    """Images (B, C, height, width), normalised as the weights expect, to class logits (B, K).

    Three attributes change how it is computed, never what: `fused_attention`, `shortcut` (the last block computes only
    the tokens that the head reads: about 7 % less work at 12 layers) and `checkpointing` (blocks are recomputed in the
    backward pass to save memory: all where it is True, every n-th where it is n).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.shortcut = True
        self.checkpointing: int = False
        self.patch_embed = PatchEmbed(config)
        self.cls_token = extra_tokens(1 if config.class_token else 0, config)
        self.dist_token = extra_tokens(1 if config.distill_token else 0, config)
        self.reg_token = extra_tokens(config.registers, config)
        self.pos_embed, self.rel_pos = build_positions(config)
        self.rope = None if config.rotary == "none" else Rotary(config)
        self.pos_drop = Dropout(config.position_dropout)
        self.norm_pre = norm_layer(config) if config.embed_norm else nn.Identity()
        self.blocks = nn.ModuleList(build_block(config, layer) for layer in range(config.layers))
        # In post-norm order the last block has normalised its output already; with fc_norm the pooled vector is.
        is_normalised = config.norm == "post" or config.fc_norm or not config.last_norm
        self.norm = nn.Identity() if is_normalised else norm_layer(config)
        self.attn_pool = AttentionPool(config, MLP(pooling_mlp(config))) if config.pool == "map" else None
        self.fc_norm = norm_layer(config) if config.fc_norm else nn.Identity()
        self.pre_logits, self.head, self.head_dist = heads(config)
        initialise(self, self.patch_embed.proj, config.init)

    def positions(self, layer: int = 0) -> Tensor | None:
        """E_pos, added to the tokens ahead of a layer: (N, D), or None where the model adds nothing."""
        if self.pos_embed is None:
            return None
        table = layer if self.config.position_at == "every_layer" else 0
        if not isinstance(self.pos_embed, Tensor):
            return self.pos_embed(table)
        without = self.config.prefix_tokens - self.config.positioned_prefix
        return F.pad(self.pos_embed[table], (0, 0, without, 0)) if without else self.pos_embed[table]

    def positions_of(self, layer: int) -> tuple[Tensor | None, Relative | None]:
        """What layer `layer` adds to its tokens, (N, D), and what acts inside its attention."""
        relative: Relative | None = None if self.rope is None else self.rope(layer)
        if self.rel_pos is not None:
            relative = self.rel_pos[layer % len(self.rel_pos)]  # of this layer, or of all
        return None if self.config.position_at == "input" else self.positions(layer), relative

    def embed(self, images: Tensor) -> Tensor:
        """Eq. 1: (B, C, height, width) images -> (B, N, D) tokens.

        Raises:
            VitkitError: the images are not of the model's channels and size.
        """
        return self.place(self.patches_of(images))

    def patches_of(self, images: Tensor) -> Tensor:
        """x_p E of eq. 1, the embedded patches alone: (B, C, height, width) -> (B, h*w, D); raises as `embed`."""
        expected = (self.config.in_channels, *self.config.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise VitkitError(
                f"the model expects images of shape (batch, {', '.join(map(str, expected))}), but received "
                f"{tuple(images.shape)}; resize them, or create the model with another image_size"
            )
        return self.patch_embed(images)

    def place(self, patches: Tensor) -> Tensor:
        """The rest of eq. 1: embedded patches (B, h*w, D) behind the class token, with positions (B, N, D)."""
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        prefix = [token.expand(patches.shape[0], -1, -1) for token in tokens if token is not None]
        x = torch.cat([*prefix, patches], dim=1)  # (B, N, D)
        positions = self.positions() if self.config.position_at == "input" else None
        return self.norm_pre(self.pos_drop(x if positions is None else x + positions))

    def encode(self, tokens: Tensor, queries: int | None = None) -> Tensor:
        """Eqs. 2-3 through all layers: (B, N, D) -> (B, N, D), or the first `queries` tokens (B, n, D)."""
        last = len(self.blocks) - 1
        for i in range(len(self.blocks)):
            tokens = self.layer(i, tokens, queries if i == last else None)
        return tokens

    def layer(self, i: int, x: Tensor, queries: int | None = None) -> Tensor:
        """Layer i, with its positions: (B, N, D) -> (B, N, D), or the first `queries` tokens (B, n, D)."""
        positions, relative = self.positions_of(i)
        x = x if positions is None else x + positions
        if self.checkpointing and i % self.checkpointing == 0 and self.training:
            return checkpoint(self.blocks[i], x, queries, relative, use_reentrant=False)
        return self.blocks[i](x, queries, relative)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, height, width) -> logits (B, K), the mean of both heads for DeiT; features (B, D) without a head."""
        return self.forward_head(self._head_tokens(images))

    def forward_heads(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, C, height, width) -> the logits (B, K) of each head: class head, then DeiT's distillation head."""
        return self._logits(self._head_tokens(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, height, width) -> all tokens (B, N, D), prefix first; normalised, unless `fc_norm` is to do it."""
        return self.norm(self.encode(self.embed(images)))

    def forward_layers(
        self, images: Tensor, layers: Sequence[int] | None = None, normalise: bool = False
    ) -> list[Tensor]:
        """The tokens after each named layer (0 is the first, -1 the last; all by default), (B, N, D) each.

        Raises:
            VitkitError: there is no such layer.
        """
        depth, wanted = len(self.blocks), list(range(len(self.blocks)) if layers is None else layers)
        for layer in wanted:
            if not -depth <= layer < depth:
                raise VitkitError(f"there is no layer {layer}: there are 0 to {depth - 1}, or -{depth} to -1")
        wanted = [layer % depth for layer in wanted]
        x, outputs = self.embed(images), {}
        for i in range(max(wanted, default=-1) + 1):
            x = self.layer(i, x)
            if i in wanted:
                outputs[i] = self.norm(x) if normalise else x
        return [outputs[layer] for layer in wanted]

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Eq. 4: normalised tokens (B, N, D) -> logits (B, K), or with `pre_logits` what the head reads (B, D)."""
        outputs = self._features(tokens) if pre_logits else self._logits(tokens)
        return outputs[0] if len(outputs) == 1 else (outputs[0] + outputs[1]) / 2  # DeiT averages its heads

    def _head_tokens(self, images: Tensor) -> Tensor:
        tokens = self.encode(self.embed(images), self.config.tokens_read if self.shortcut else None)
        return self.norm(tokens)  # (B, n, D)

    def _features(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """What each head reads, (B, D) each."""
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
