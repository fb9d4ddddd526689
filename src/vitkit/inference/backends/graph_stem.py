"""The ResNet in front of a hybrid's patches, operation by operation (`graph_builder`)."""

from __future__ import annotations

import math
from typing import Generic

from torch import nn

from vitkit.inference.backends.pen import Pads, Pen, V
from vitkit.model.stem import Bottleneck, Projection, ResNetStem, StandardisedConv2d, standardise


class StemDrawing(Generic[V]):
    """Writes a stem with a pen."""

    def __init__(self, pen: Pen[V]) -> None:
        self.pen = pen

    def stem(self, stem: ResNetStem, x: V, side: tuple[int, int]) -> V:
        """(B, C, height, width) images, and their height and width -> the feature map."""
        pen = self.pen
        x, side = self.convolve(stem.stem.conv, x, side)
        x = pen.activate(self.group_norm(stem.stem.norm, x, side), "relu")
        x = pen.max_pool(x, 3, 2, _same(side, 3, 2))
        side = (-(-side[0] // 2), -(-side[1] // 2))
        for stage in stem.stages:
            for unit in stage.blocks:  # type: ignore[union-attr]
                x, side = self.bottleneck(unit, x, side)
        return x

    def bottleneck(self, unit: Bottleneck, x: V, side: tuple[int, int]) -> tuple[V, tuple[int, int]]:
        pen, residual = self.pen, x
        if isinstance(unit.downsample, Projection):
            residual, small = self.convolve(unit.downsample.conv, x, side)
            residual = self.group_norm(unit.downsample.norm, residual, small)
        for conv, norm in ((unit.conv1, unit.norm1), (unit.conv2, unit.norm2)):
            x, side = self.convolve(conv, x, side)
            x = pen.activate(self.group_norm(norm, x, side), "relu")
        x, side = self.convolve(unit.conv3, x, side)
        return pen.activate(pen.add(residual, self.group_norm(unit.norm3, x, side)), "relu"), side

    def convolve(self, conv: StandardisedConv2d, x: V, side: tuple[int, int]) -> tuple[V, tuple[int, int]]:
        """The feature map and its height and width."""
        size, stride = conv.kernel_size[0], conv.stride[0]
        kernel = standardise(conv.weight, conv.kind)
        x = self.pen.convolve(x, kernel, stride, _same(side, size, stride), 1)
        return x, (-(-side[0] // stride), -(-side[1] // stride))

    def group_norm(self, norm: nn.GroupNorm, x: V, side: tuple[int, int]) -> V:
        size = norm.num_channels // norm.num_groups * side[0] * side[1]
        x = self.pen.normalise(self.pen.reshape(x, 0, norm.num_groups, size), size, norm.eps)
        x = self.pen.reshape(x, 0, norm.num_channels, *side)
        x = self.pen.multiply(x, self.pen.constant(norm.weight.view(1, -1, 1, 1)))
        return self.pen.add(x, self.pen.constant(norm.bias.view(1, -1, 1, 1)))


def _same(side: tuple[int, int], size: int, stride: int) -> Pads:
    """SAME padding as `stem.pad_same` has it."""
    down, across = (max((math.ceil(length / stride) - 1) * stride + size - length, 0) for length in side)
    return down // 2, across // 2, down - down // 2, across - across // 2
