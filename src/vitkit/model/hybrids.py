"""Convolutions in a Vision Transformer: the ResNet stem of the paper's hybrids, and layers that mix by convolution.

`ResNetStem` precedes the patch embedding (sec. 3.1). Patches are then cut from the stem's feature map. The stem
consists of post-activation bottlenecks with weight-standardised convolutions and GroupNorm (BiT, arXiv 1912.11370). The
names of its parameters are timm's. Padding is SAME as in TensorFlow and Flax: an odd pixel is added at the bottom and
the right.

`ResNet` is a stem as a whole network. `ConvProjection` convolves tokens before their projection to q, k and v.
`ConvMixer` replaces attention by convolution. A third layer, `mlp_kind="conv"`, is in `vit.MLP`. None of these layers
changes the number or the order of tokens. The papers that they come from use batch normalisation. It is left out here,
so that a prediction does not depend on other images of the batch.

Shapes: B batch, C channels, height and width of a feature map; N tokens, n leading tokens whose output is computed, D
hidden size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import StemKind, ViTConfig
from vitkit.model.layers import Dropout, TokenConvolution, activation

_GROUPS = 32
_WIDTH = 64


class ResNetStem(nn.Module):
    """A ResNet stem: images (B, C, height, width) to features (B, out_channels, height / stride, width / stride).

    Sides that the stride does not divide are rounded up.

    Args:
        in_channels: C.
        stages: the number of bottlenecks in each stage; () for only the root.
        kind: the implementation with which the weights were trained. The reference divides kernels by (standard
            deviation + 1e-5), and timm by the square root of (variance + 1e-8).
    """

    def __init__(self, in_channels: int, stages: tuple[int, ...], kind: StemKind = "reference") -> None:
        super().__init__()
        self.stem = Root(in_channels, kind)
        self.stages = nn.ModuleList()
        channels = _WIDTH
        for stage, units in enumerate(stages):
            width = _WIDTH * 2**stage
            stride = 1 if stage == 0 else 2  # of the first bottleneck; the root has reduced the sides for stage 0
            blocks = []
            for _ in range(units):
                blocks.append(Bottleneck(channels, width, stride, kind))
                channels, stride = 4 * width, 1
            self.stages.append(Stage(blocks))
        self.out_channels = channels

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)  # (B, 64, height/4, width/4)
        for stage in self.stages:
            x = stage(x)
        return x


class ResNet(nn.Module):
    """The network that the paper compares with, "ResNet (BiT)" (sec. 4.1): (B, C, height, width) to logits (B, K)."""

    def __init__(self, in_channels: int, stages: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.features = ResNetStem(in_channels, stages)
        self.head = nn.Linear(self.features.out_channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean(dim=(2, 3)))


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose kernel is standardised for each output channel (arXiv 1903.10520), with SAME padding.

    Attributes:
        kind: how the kernel is standardised; None if the weight is a standardised kernel already.
    """

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int, kind: StemKind) -> None:
        super().__init__(in_channels, out_channels, size, stride, bias=False)
        self.kind: StemKind | None = kind

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel().to(x.dtype)
        return F.conv2d(pad_same(x, self.kernel_size[0], self.stride[0]), kernel, None, self.stride)

    def kernel(self) -> Tensor:
        """Return the standardised kernel (out, in, k, k): zero mean and unit variance for each output channel."""
        if self.kind is None:
            return self.weight
        # In float32 at least, as small deviations would get lost.
        kernel = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        if self.kind == "timm":  # batch normalisation computes the same and rounds as timm does
            return F.batch_norm(kernel.flatten(1)[None], None, None, training=True, eps=1e-8).view_as(kernel)
        deviation, mean = torch.std_mean(kernel, (1, 2, 3), correction=0, keepdim=True)  # its gradient is finite at 0
        return (kernel - mean) / (deviation + 1e-5)


class Root(nn.Module):
    """The first layers of the stem: a 7x7 convolution and a 3x3 pooling, each of which halves the sides."""

    def __init__(self, in_channels: int, kind: StemKind) -> None:
        super().__init__()
        self.conv = StandardisedConv2d(in_channels, _WIDTH, 7, 2, kind)
        self.norm = group_norm(_WIDTH, kind)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(images)))  # (B, 64, height/2, width/2)
        return F.max_pool2d(pad_same(x, 3, 2, -math.inf), 3, 2)


class Stage(nn.Module):
    """A sequence of bottlenecks of one width."""

    def __init__(self, blocks: list[Bottleneck]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class Bottleneck(nn.Module):
    """A residual unit: a 1x1 convolution, a 3x3 convolution with the stride, and a 1x1 convolution to 4 * width.

    The input is added to the output, after a projection if the shape changes.
    """

    def __init__(self, in_channels: int, width: int, stride: int, kind: StemKind) -> None:
        super().__init__()
        out_channels = 4 * width
        self.conv1 = StandardisedConv2d(in_channels, width, 1, 1, kind)
        self.norm1 = group_norm(width, kind)
        self.conv2 = StandardisedConv2d(width, width, 3, stride, kind)
        self.norm2 = group_norm(width, kind)
        self.conv3 = StandardisedConv2d(width, out_channels, 1, 1, kind)
        self.norm3 = group_norm(out_channels, kind)
        self.downsample: Projection | None = None
        if in_channels != out_channels:
            self.downsample = Projection(in_channels, out_channels, stride, kind)

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return F.relu(residual + self.norm3(self.conv3(x)))


class Projection(nn.Module):
    """A 1x1 convolution that gives the input of a bottleneck the shape of its output."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, kind: StemKind) -> None:
        super().__init__()
        self.conv = StandardisedConv2d(in_channels, out_channels, 1, stride, kind)
        self.norm = group_norm(out_channels, kind)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


def group_norm(channels: int, kind: StemKind) -> nn.GroupNorm:
    """Create a GroupNorm of 32 groups, with the eps of the reference implementation or of timm."""
    return nn.GroupNorm(_GROUPS, channels, eps=1e-6 if kind == "reference" else 1e-5)


def pad_same(x: Tensor, size: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad (B, C, height, width) so that a window of `size` has ceil(side / stride) positions along each side."""

    def padding(side: int) -> int:
        positions = -(-side // stride)
        return max((positions - 1) * stride + size - side, 0)

    height, width = padding(int(x.shape[2])), padding(int(x.shape[3]))
    if not height and not width:
        return x
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2), value=value)


class ConvProjection(nn.Module):
    """The depthwise convolutions of tokens before the projection to q, k and v (CvT, arXiv 2103.15808, sec. 3.2)."""

    def __init__(self, config: ViTConfig, patches_read: bool) -> None:
        super().__init__()
        self.k, self.v = (TokenConvolution(config.hidden_size, config.grid, config.prefix_tokens) for _ in range(2))
        self.q: nn.Module = nn.Identity()
        if patches_read:  # otherwise only prefix tokens are queries, and the convolution leaves them unchanged
            self.q = TokenConvolution(config.hidden_size, config.grid, config.prefix_tokens)

    def forward(self, x: Tensor, qkv: nn.Linear, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Convolve tokens (B, N, D) and project them by `qkv` to q (B, n, D), k and v (B, N, D).

        q contains only the first n = `queries` tokens; None for all.
        """
        w_q, w_k, w_v = qkv.weight.chunk(3)
        b_q, b_k, b_v = (None, None, None) if qkv.bias is None else qkv.bias.chunk(3)
        q, k, v = self.q(x)[:, :queries], self.k(x), self.v(x)
        return F.linear(q, w_q, b_q), F.linear(k, w_k, b_k), F.linear(v, w_v, b_v)


class ConvMixer(nn.Module):
    """A layer in place of attention: a depthwise and a pointwise convolution mix patches with their neighbours.

    CoAtNet interleaves such layers with attention (arXiv 2106.04803); MetaFormer shows that other mixing layers can
    replace attention (arXiv 2111.11418). The class token does not read patches in these layers.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.depthwise = TokenConvolution(config.hidden_size, config.grid, config.prefix_tokens)
        self.act = activation(config)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.proj_bias)
        self.proj_drop = Dropout(config.dropout)

    def forward(self, x: Tensor, queries: int | None = None, relative: None = None) -> Tensor:  # noqa: ARG002
        """Compute the output (B, n, D) of the first n = `queries` of the tokens (B, N, D)."""
        x = self.act(self.depthwise(x)[:, :queries])
        return self.proj_drop(self.proj(x))
