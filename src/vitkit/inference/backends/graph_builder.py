"""Write the graph of a model, operation by operation, for any runtime.

`emit` walks through the model in the order of eqs. 1-4 and passes each operation to the `GraphWriter` of a runtime. The
graph is optimised for prediction. The last layer computes only the tokens that the head reads. Patches are cut by a
reshape. Linear parts (the affine part of LayerNorm, LayerScale, and the scale of the attention logits) are folded into
an adjacent matrix in float64.

Shapes: B batch, C channels, N tokens, n of them computed, D hidden size, H heads, D_h head size, h x w patch grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.inference.backends.optimized import (
    Branch,
    after_norm,
    branches,
    in_order,
    qkv_after_norm,
    reads_normalised,
    with_scale,
)
from vitkit.model.hybrids import Bottleneck, ConvMixer, Projection, ResNetStem, StandardisedConv2d, standardise
from vitkit.model.layers import (
    QUICK,
    AttentionPool,
    Norm,
    QuickGELU,
    RMSNorm,
    SwiGLU,
    TokenConvolution,
    affine_part,
)
from vitkit.model.position import OffsetBias, Relative, RelativePosition, Turn
from vitkit.model.variants import GRAPH, check
from vitkit.model.vit import MLP, Attention, VisionTransformer
from vitkit.model.windows import emit as emit_windows

V = TypeVar("V")
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]


class GraphWriter(Protocol[V]):
    """The operations of a runtime; `V` is the type of its values. In `reshape`, a size of 0 keeps the input's size."""

    def images(self, channels: int, height: int, width: int) -> V: ...
    def constant(self, value: Tensor) -> V: ...
    def linear(self, x: V, weight: Tensor) -> V:
        """Compute x @ weight.T."""
        ...

    def matmul(self, a: V, b: V) -> V: ...
    def add(self, a: V, b: V) -> V: ...
    def multiply(self, a: V, b: V) -> V: ...
    def normalise(self, x: V, size: int, eps: float) -> V:
        """Normalise the last axis, which has this size, to mean 0 and standard deviation 1."""
        ...

    def activate(self, x: V, kind: Activation) -> V: ...
    def softmax(self, x: V) -> V:
        """Compute the softmax along the last axis."""
        ...

    def reshape(self, x: V, *shape: int) -> V: ...
    def transpose(self, x: V, *order: int) -> V: ...
    def slice(self, x: V, axis: int, start: int, stop: int) -> V: ...
    def concat(self, parts: Sequence[V], axis: int) -> V: ...
    def repeat(self, tokens: Tensor, images: V) -> V:
        """Repeat tokens (1, n, D) for each image: (B, n, D)."""
        ...

    def mean(self, x: V, axis: int) -> V:
        """Average over the axis, which is removed from the result."""
        ...

    def convolve(self, x: V, kernel: Tensor, stride: int, pads: Pads, groups: int) -> V: ...
    def max_pool(self, x: V, size: int, stride: int, pads: Pads) -> V:
        """Compute the maximum of each window, ignoring the padding."""
        ...


Pads = tuple[int, int, int, int]  # top, left, bottom, right


class RelativePositions(Generic[V]):
    """Emit the contribution of relative and rotary positions to attention.

    Shapes: B batch, H heads, N tokens, n query tokens, D_h head size.
    """

    def __init__(self, writer: GraphWriter[V], heads: int, head_size: int) -> None:
        self.writer, self.heads, self.head_size = writer, heads, head_size

    def turned(self, relative: Relative | None, x: V, n: int) -> V:
        """Rotate x (B, H, n, D_h) as `Turn.turned` does; return x unchanged if positions are not rotary."""
        if not isinstance(relative, Turn):
            return x
        writer, H, D_h = self.writer, self.heads, self.head_size
        cos, sin = (each[..., :n, :].reshape(1, -1, n, D_h) for each in (relative.cos, relative.sin))
        if relative.by_halves:
            across = writer.concat([writer.slice(x, 3, D_h // 2, D_h), writer.slice(x, 3, 0, D_h // 2)], 3)
        else:
            pairs = writer.reshape(x, 0, H, n * (D_h // 2), 2)
            across = writer.concat([writer.slice(pairs, 3, 1, 2), writer.slice(pairs, 3, 0, 1)], 3)
            across = writer.reshape(across, 0, H, n, D_h)
        return writer.add(writer.multiply(x, writer.constant(cos)), writer.multiply(across, writer.constant(sin)))

    def added(self, relative: Relative | None, logits: V, q: V, n: int) -> V:
        """Return the logits (B, H, n, N) with the positions' contribution added."""
        if isinstance(relative, OffsetBias):
            return self.writer.add(logits, self.writer.constant(relative.bias(n).unsqueeze(0)))
        if isinstance(relative, RelativePosition) and relative.tokens > 1:
            return self.writer.add(logits, self._by_offset(relative, q, n))
        return logits

    def _by_offset(self, relative: RelativePosition, q: V, n: int) -> V:
        """Compute a logit for each offset from queries (B, H, n, D_h), and arrange the logits by key: (B, H, n, N).

        Each query has a row of 2N - 1 logits. In row i, the logits of the N keys start at position N - 1 - i. If the
        rows are joined, these starts are 2N - 2 apart. The joined rows are therefore cut into rows of 2N - 2, beginning
        with the first start, so that each new row begins with the logits of the keys.
        """
        writer, N, H = self.writer, relative.tokens, self.heads
        by_offset = writer.reshape(writer.linear(q, relative.table.flip(0)), 0, H, n * (2 * N - 1))
        ahead, rest = writer.slice(by_offset, 2, 0, N - 1), writer.slice(by_offset, 2, N - 1, n * (2 * N - 1))
        rows = writer.slice(writer.concat([rest, ahead], 2), 2, 0, n * (2 * N - 2))  # the rest is not used
        return writer.slice(writer.reshape(rows, 0, H, n, 2 * N - 2), 3, 0, N)


class StemEmitter(Generic[V]):
    """Emit the ResNet stem of a hybrid."""

    def __init__(self, writer: GraphWriter[V]) -> None:
        self.writer = writer

    def stem(self, stem: ResNetStem, x: V, side: tuple[int, int]) -> V:
        """Convert images (B, C, height, width) to the feature map."""
        writer = self.writer
        x, side = self.convolve(stem.stem.conv, x, side)
        x = writer.activate(self.group_norm(stem.stem.norm, x, side), "relu")
        x = writer.max_pool(x, 3, 2, _same(side, 3, 2))
        side = (-(-side[0] // 2), -(-side[1] // 2))
        for stage in stem.stages:
            for unit in stage.blocks:  # type: ignore[union-attr]
                x, side = self.bottleneck(unit, x, side)
        return x

    def bottleneck(self, unit: Bottleneck, x: V, side: tuple[int, int]) -> tuple[V, tuple[int, int]]:
        writer, residual = self.writer, x
        if isinstance(unit.downsample, Projection):
            residual, small = self.convolve(unit.downsample.conv, x, side)
            residual = self.group_norm(unit.downsample.norm, residual, small)
        for conv, norm in ((unit.conv1, unit.norm1), (unit.conv2, unit.norm2)):
            x, side = self.convolve(conv, x, side)
            x = writer.activate(self.group_norm(norm, x, side), "relu")
        x, side = self.convolve(unit.conv3, x, side)
        return writer.activate(writer.add(residual, self.group_norm(unit.norm3, x, side)), "relu"), side

    def convolve(self, conv: StandardisedConv2d, x: V, side: tuple[int, int]) -> tuple[V, tuple[int, int]]:
        """Emit a convolution; return the feature map, and its height and width."""
        size, stride = conv.kernel_size[0], conv.stride[0]
        kernel = standardise(conv.weight, conv.kind)
        x = self.writer.convolve(x, kernel, stride, _same(side, size, stride), 1)
        return x, (-(-side[0] // stride), -(-side[1] // stride))

    def group_norm(self, norm: nn.GroupNorm, x: V, side: tuple[int, int]) -> V:
        size = norm.num_channels // norm.num_groups * side[0] * side[1]
        x = self.writer.normalise(self.writer.reshape(x, 0, norm.num_groups, size), size, norm.eps)
        x = self.writer.reshape(x, 0, norm.num_channels, *side)
        x = self.writer.multiply(x, self.writer.constant(norm.weight.view(1, -1, 1, 1)))
        return self.writer.add(x, self.writer.constant(norm.bias.view(1, -1, 1, 1)))


def _same(side: tuple[int, int], size: int, stride: int) -> Pads:
    """Return SAME padding, as in `hybrids.pad_same`."""
    down, across = (max((math.ceil(length / stride) - 1) * stride + size - length, 0) for length in side)
    return down // 2, across // 2, down - down // 2, across - across // 2


_TINY = 1e-12  # is added to squares to avoid division by 0


def emit(model: VisionTransformer, writer: GraphWriter[V]) -> V:
    """Write the model in evaluation mode, and return the logits (B, K), or the features (B, D) without a head.

    Raises:
        VitkitError: the model has a field or part that is not supported here.
    """
    check(model.config, GRAPH)
    with torch.no_grad():
        return _GraphBuilder(model, writer).build()


class _GraphBuilder(Generic[V]):
    def __init__(self, model: VisionTransformer, writer: GraphWriter[V]) -> None:
        self.model, self.config, self.writer = model, model.config, writer

    def build(self) -> V:
        x = self.embed()
        for i, block in enumerate(self.model.blocks):
            positions, relative = self.model.positions_of(i)
            x = x if positions is None else self.writer.add(x, self.writer.constant(positions[None]))
            x = self.block(block, x, self.config.tokens_read if i == self.config.layers - 1 else None, relative)
        return self.head(x)

    # --- eq. 1 -------------------------------------------------------------------------------------

    def embed(self) -> V:
        """Return the tokens (B, N, D)."""
        config, writer, embed = self.config, self.writer, self.model.patch_embed
        images = x = writer.images(config.in_channels, *config.image_size)
        if isinstance(embed.backbone, ResNetStem):
            x = StemEmitter(writer).stem(embed.backbone, x, config.image_size)
        (h, w), (p, q) = config.grid, config.patch_size
        x = writer.reshape(x, 0, embed.proj.in_channels, h, p, w, q)
        x = writer.reshape(writer.transpose(x, 0, 2, 4, 1, 3, 5), 0, h * w, embed.proj.in_channels * p * q)
        bias = torch.zeros(config.hidden_size) if embed.proj.bias is None else embed.proj.bias
        prefix = self._prefix()  # (1, n, D)
        positions = self.model.positions() if config.position_at == "input" else None
        learned = torch.zeros(1, config.patches, config.hidden_size)
        if positions is not None:
            n = config.prefix_tokens
            learned = positions[None, n:]
            prefix = None if prefix is None else prefix + positions[None, :n]
        if isinstance(embed.norm, Norm):
            x = self.affine(self.norm(self.linear(x, embed.proj.weight.flatten(1), bias), embed.norm), embed.norm)
            x = x if positions is None else writer.add(x, writer.constant(learned))
        else:  # bias and positions in one sum
            x = writer.add(writer.linear(x, embed.proj.weight.flatten(1)), writer.constant(learned + bias))
        x = x if prefix is None else writer.concat([writer.repeat(prefix, images), x], 1)
        ahead = self.model.norm_pre
        return self.affine(self.norm(x, ahead), ahead) if isinstance(ahead, Norm) else x

    def _prefix(self) -> Tensor | None:
        tokens = (self.model.cls_token, self.model.dist_token, self.model.reg_token)
        there: list[Tensor] = [token for token in tokens if token is not None]
        return torch.cat(there, dim=1) if there else None

    # --- eqs. 2-3 ----------------------------------------------------------------------------------

    def block(self, block: nn.Module, x: V, queries: int | None, relative: Relative | None) -> V:
        mixing, mlp = branches(block)
        x = self.branch(mixing, x, queries, lambda x, norm: self.mix(mixing, x, norm, queries, relative))
        return self.branch(mlp, x, None, lambda x, norm: self.mlp(mlp, x, norm, queries or self.config.tokens))

    def branch(
        self,
        branch: Branch,
        x: V,
        queries: int | None,
        compute: Callable[[V, Norm | None], V],
    ) -> V:
        """Emit a branch. If a norm comes first, its affine part is folded into the next layer."""
        is_first, norm = reads_normalised(branch.order), branch.norm

        def normalised(x: V) -> V:
            return self.norm(x, norm) if is_first else self.affine(self.norm(x, norm), norm)

        def added(x: V, residual: V | None) -> V:
            result = compute(x, norm if is_first else None)
            return result if residual is None else plus(residual, result)

        def plus(residual: V, result: V) -> V:
            return self.writer.add(self.first(residual, queries), result)

        return in_order(branch.order, x, normalised, added, plus)

    def first(self, x: V, queries: int | None) -> V:
        return x if queries is None else self.writer.slice(x, 1, 0, queries)

    def mix(self, branch: Branch, x: V, norm: Norm | None, queries: int | None, relative: Relative | None) -> V:
        """Emit attention, or the layer that replaces it.

        x was already normalised by `norm`, but without the affine part of `norm`, which is applied here.
        """
        mix = branch.mix
        if isinstance(mix, Attention):
            return self.attention(mix, x, norm, queries, relative, branch.scale)
        x = x if norm is None else self.affine(x, norm)  # a shift cannot be folded because of the padding
        assert isinstance(mix, ConvMixer)
        x = self.first(self.token_convolution(mix.depthwise, x, self.config.tokens), queries)
        return self.linear(self.activation(x, mix.act), *with_scale(mix.proj, branch.scale))

    def attention(
        self, attention: Attention, x: V, norm: Norm | None, queries: int | None,
        relative: Relative | None, scale: nn.Module,
    ) -> V:  # fmt: skip
        writer, N, D = self.writer, self.config.tokens, self.config.hidden_size
        sources = [self.first(x, queries), x, x]
        if attention.convolve is not None:
            x, norm = (x, None) if norm is None else (self.affine(x, norm), None)
            of_q, of_k, of_v = attention.convolve.q, attention.convolve.k, attention.convolve.v
            sources = [self.token_convolution(each, x, N) for each in (of_q, of_k, of_v)]
            sources[0] = self.first(sources[0], queries)
        weight, bias = qkv_after_norm(attention.qkv, norm, attention.scale)
        q, k, v = (
            writer.reshape(self.linear(*part), 0, 0, attention.heads, self.config.head_size)
            for part in zip(sources, weight.chunk(3), bias.chunk(3), strict=True)
        )
        q = writer.transpose(q, 0, 2, 1, 3)  # (B, H, n, D_h)
        positions = RelativePositions(writer, attention.heads, self.config.head_size)
        q, k = (
            positions.turned(relative, part, n) for part, n in ((q, queries or N), (writer.transpose(k, 0, 2, 1, 3), N))
        )
        v = writer.transpose(v, 0, 2, 1, 3)
        if attention.windows is None:
            logits = writer.matmul(q, writer.transpose(k, 0, 1, 3, 2))  # eq. 6: (B, H, n, N)
            logits = positions.added(relative, logits, q, queries or N)
            x = writer.matmul(writer.softmax(logits), v)  # eq. 7: (B, H, n, D_h)
        else:
            added = relative.bias(queries or N)[None] if isinstance(relative, OffsetBias) else None
            x = emit_windows(self, attention.windows, q, k, v, queries or N, added)
        x = writer.reshape(writer.transpose(x, 0, 2, 1, 3), 0, 0, D)  # eq. 8: (B, n, D)
        return self.linear(self.plain_norm(x, attention.norm), *with_scale(attention.proj, scale, attention.norm))

    def mlp(self, branch: Branch, x: V, norm: Norm | None, n: int) -> V:
        mlp = branch.mix
        assert isinstance(mlp, MLP)
        weight, bias = after_norm(mlp.fc1, norm)
        if isinstance(mlp.act, SwiGLU):
            gate, value = (self.linear(x, *part) for part in zip(weight.chunk(2), bias.chunk(2), strict=True))
            x = self.writer.multiply(self.writer.activate(gate, "silu"), value)
        else:
            x = self.activation(self.token_convolution(mlp.conv, self.linear(x, weight, bias), n), mlp.act)
        return self.linear(self.plain_norm(x, mlp.norm), *with_scale(mlp.fc2, branch.scale, mlp.norm))

    def token_convolution(self, layer: nn.Module, x: V, n: int) -> V:
        """Convolve n tokens; prefix tokens pass unchanged."""
        writer, prefix = self.writer, self.config.prefix_tokens
        if not isinstance(layer, TokenConvolution) or prefix >= n:
            return x
        channels, (h, w) = layer.conv.out_channels, layer.grid
        patches = writer.slice(x, 1, prefix, n) if prefix else x
        patches = writer.reshape(writer.transpose(patches, 0, 2, 1), 0, channels, h, w)
        patches = writer.convolve(patches, layer.conv.weight, 1, (1, 1, 1, 1), channels)
        patches = writer.transpose(writer.reshape(patches, 0, channels, h * w), 0, 2, 1)
        assert layer.conv.bias is not None
        patches = writer.add(patches, writer.constant(layer.conv.bias.view(1, 1, -1)))
        return writer.concat([writer.slice(x, 1, 0, prefix), patches], 1) if prefix else patches

    # --- eq. 4 -------------------------------------------------------------------------------------

    def head(self, x: V) -> V:
        model, config, writer = self.model, self.config, self.writer
        norm = model.norm if isinstance(model.norm, Norm) else None
        x = x if norm is None else self.norm(x, norm)
        if config.distill_head:
            first, second = (
                self._read(self._token(x, 0), norm, model.head),
                self._read(self._token(x, 1), norm, model.head_dist),
            )
            return writer.multiply(writer.add(first, second), writer.constant(torch.full((1, 1), 0.5)))
        if model.attn_pool is not None:
            x, norm = self.attend_all(model.attn_pool, x if norm is None else self.affine(x, norm)), None
        pooled = x if model.attn_pool is not None else self._pooled(x)
        if isinstance(model.fc_norm, Norm):
            norm = model.fc_norm
            pooled = self.norm(pooled, norm)
        if isinstance(model.pre_logits, nn.Sequential):
            x = self._read(pooled, norm, model.pre_logits[0])
            pooled, norm = self.unit(x) if config.representation == "unit" else writer.activate(x, "tanh"), None
        return self._read(pooled, norm, model.head)

    def unit(self, x: V) -> V:
        """Scale the vectors (B, P) to length 1."""
        size = self.config.feature_size
        return self.writer.multiply(self.rms(x, 1, size, _TINY), self.writer.constant(torch.full((1, 1), size**-0.5)))

    def attend_all(self, pool: AttentionPool, x: V) -> V:
        """Emit `AttentionPool`: (B, N, D) -> (B, D)."""
        writer, D = self.writer, self.config.hidden_size
        k, v = (
            writer.reshape(self.linear(x, *part), 0, 0, pool.heads, D // pool.heads)
            for part in zip(pool.kv.weight.chunk(2), pool.kv.bias.chunk(2), strict=True)
        )
        logits = writer.matmul(
            writer.constant(pool.query() * pool.scale), writer.transpose(k, 0, 2, 3, 1)
        )  # (B, H, 1, N)
        x = writer.matmul(writer.softmax(logits), writer.transpose(v, 0, 2, 1, 3))  # (B, H, 1, D_h)
        x = self.linear(writer.reshape(writer.transpose(x, 0, 2, 1, 3), 0, 0, D), pool.proj.weight, pool.proj.bias)
        branch = Branch(pool.norm, pool.mlp, nn.Identity(), order="pre")
        return self._token(writer.add(x, self.mlp(branch, self.norm(x, pool.norm), pool.norm, 1)), 0)

    def _pooled(self, x: V) -> V:
        """Return the pooled tokens, without the affine part of the last norm."""
        prefix, N = self.config.prefix_tokens, self.config.tokens
        if self.config.pool == "token":
            return self._token(x, 0)
        mean = self.writer.mean(self.writer.slice(x, 1, prefix, N) if prefix else x, 1)
        return self.writer.concat([self._token(x, 0), mean], 1) if self.config.pool == "token+gap" else mean

    def _token(self, x: V, i: int) -> V:
        return self.writer.reshape(self.writer.slice(x, 1, i, i + 1), 0, self.config.hidden_size)

    def _read(self, x: V, norm: Norm | None, layer: nn.Module | None) -> V:
        """Apply the affine part of `norm`, and then `layer`, to normalised pooled tokens; None is skipped.

        x is (B, D), or (B, 2D) for `token+gap`.
        """
        twice = 2 if self.config.pool == "token+gap" else 1
        if isinstance(layer, nn.Linear):
            return self.linear(x, *after_norm(layer, norm, twice))
        if layer is not None and not isinstance(layer, nn.Identity):
            raise VitkitError(
                f"the head is a {type(layer).__name__}, which only --backend eager --precision float32 can compute"
            )
        return x if norm is None else self.affine(x, norm, twice)

    # --- pieces ------------------------------------------------------------------------------------

    def scaled_linear(self, x: V, linear: nn.Linear, scale: nn.Module) -> V:
        """Emit a linear layer and the LayerScale after it as one operation."""
        return self.linear(x, *with_scale(linear, scale))

    def linear(self, x: V, weight: Tensor, bias: Tensor) -> V:
        return self.writer.add(self.writer.linear(x, weight), self.writer.constant(bias))

    def activation(self, x: V, act: nn.Module) -> V:
        plain: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Tanh: "tanh"}
        if type(act) in plain:
            return self.writer.activate(x, plain[type(act)])
        if isinstance(act, nn.LeakyReLU):  # relu(x) - slope * relu(-x)
            negative = self.writer.multiply(x, self.writer.constant(torch.full((1, 1, 1), -1.0)))
            slope = self.writer.constant(torch.full((1, 1, 1), -act.negative_slope))
            below = self.writer.multiply(self.writer.activate(negative, "relu"), slope)
            return self.writer.add(self.writer.activate(x, "relu"), below)
        if isinstance(act, QuickGELU):
            x = self.writer.activate(
                self.writer.multiply(x, self.writer.constant(torch.full((1, 1, 1), QUICK))), "silu"
            )
            return self.writer.multiply(x, self.writer.constant(torch.full((1, 1, 1), 1 / QUICK)))
        assert isinstance(act, nn.GELU)
        return self.writer.activate(x, "gelu_tanh" if act.approximate == "tanh" else "gelu")

    def norm(self, x: V, norm: Norm) -> V:
        """Normalise without the affine part, which `affine` applies or `after_norm` folds into the next layer."""
        size = norm.normalized_shape[0]
        return (
            self.rms(x, -1, size, norm.eps) if isinstance(norm, RMSNorm) else self.writer.normalise(x, size, norm.eps)
        )

    def rms(self, x: V, axis: int, size: int, eps: float) -> V:
        """Divide by the root mean square along the last axis.

        The root mean square is computed as the standard deviation of x concatenated with -x along `axis`.
        """
        writer = self.writer
        both = writer.concat([x, writer.multiply(x, writer.constant(torch.full((1,), -1.0)))], axis)
        return writer.slice(writer.normalise(both, 2 * size, eps), axis, 0, size)

    def plain_norm(self, x: V, norm: nn.Module) -> V:
        """Emit a norm without its affine part; return x itself if there is no norm."""
        return self.norm(x, norm) if isinstance(norm, Norm) else x

    def affine(self, x: V, norm: Norm, times: int = 1) -> V:
        factor, shift = affine_part(norm)
        x = self.writer.multiply(x, self.writer.constant(factor.repeat(times)))
        return x if shift is None else self.writer.add(x, self.writer.constant(shift.repeat(times)))
