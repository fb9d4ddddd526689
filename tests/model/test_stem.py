"""The hybrids' ResNet against timm's; the reference's arithmetic is held to its checkpoints elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from timm.models.vision_transformer_hybrid import _resnetv2
from torch import Tensor, nn

import vitkit
from tiny import largest_difference, randomise
from vitkit.model import ResNetStem, StandardisedConv2d, StemKind, stride_of


def test_the_papers_resnet_is_timms_network_with_a_linear_head() -> None:
    """With timm's arithmetic in both, a ResNet answers as timm's stem, its mean and the head do."""
    with torch.device("meta"):
        large = vitkit.create_model("custom:bit_resnet50", num_classes=5)
    assert sum(parameter.numel() for parameter in large.parameters()) == 25_557_032 - 995 * 2049, "a ResNet-50's"
    ours = vitkit.create_model("custom:bit_resnet_micro", num_classes=5).eval()
    for module in ours.modules():
        if hasattr(module, "kind"):
            module.kind = "timm"
        if isinstance(module, nn.GroupNorm):
            module.eps = 1e-5
    theirs = _resnetv2((2, 2)).eval()
    theirs.load_state_dict(ours.network.features.state_dict())
    x = pixels_of(2, 3, 64, 64)
    with torch.no_grad():
        expected = ours.network.head(theirs(x).mean(dim=(2, 3)))
        torch.testing.assert_close(ours(x), expected, rtol=1e-3, atol=1e-5)


KINDS: tuple[StemKind, ...] = ("reference", "timm")


def pixels_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stem(stages: tuple[int, ...], kind: StemKind) -> ResNetStem:
    """Random weights; kernels' deviations run from 1e-5 to 1, so that what is added to them shows."""
    module = randomise(ResNetStem(3, stages, kind))
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.mul_(torch.logspace(-5, 0, len(part.weight)).view(-1, 1, 1, 1))
    return module.double().eval()


@dataclass(frozen=True)
class Oracle:
    weights: Mapping[str, np.ndarray]

    def __call__(self, images: np.ndarray) -> np.ndarray:  # (B, height, width, C)
        x = np.maximum(self.normed(self.convolved(images, "stem.conv", 2), "stem.norm"), 0)
        x = np.max(self.windows(x, 3, 2, -np.inf), axis=0)
        for unit in sorted({name.split(".conv1")[0] for name in self.weights if ".conv1." in name}):
            first = unit.endswith("blocks.0")
            x = self.unit(x, unit, 2 if first and not unit.startswith("stages.0.") else 1)
        return x

    def unit(self, x: np.ndarray, name: str, stride: int) -> np.ndarray:
        residual = x
        if f"{name}.downsample.conv.weight" in self.weights:
            residual = self.normed(self.convolved(x, f"{name}.downsample.conv", stride), f"{name}.downsample.norm")
        for i in (1, 2, 3):
            x = self.normed(self.convolved(x, f"{name}.conv{i}", stride if i == 2 else 1), f"{name}.norm{i}")
            x = np.maximum(x if i < 3 else x + residual, 0)
        return x

    def convolved(self, x: np.ndarray, name: str, stride: int) -> np.ndarray:
        kernel = self.weights[f"{name}.weight"].transpose(2, 3, 1, 0)  # (k, k, in, out)
        kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
        taps = kernel.reshape(-1, *kernel.shape[2:])
        return sum(window @ tap for window, tap in zip(self.windows(x, len(kernel), stride, 0.0), taps, strict=True))

    def normed(self, x: np.ndarray, name: str) -> np.ndarray:
        groups = x.reshape(len(x), -1, 32, x.shape[-1] // 32)
        groups = groups - groups.mean((1, 3), keepdims=True)
        groups = groups / np.sqrt((groups**2).mean((1, 3), keepdims=True) + 1e-6)
        return groups.reshape(x.shape) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def windows(self, x: np.ndarray, size: int, stride: int, value: float) -> np.ndarray:
        """What each tap of a window sees: (size * size, B, height / stride, width / stride, C)."""
        sides = [-(-n // stride) for n in x.shape[1:3]]
        total = [max((side - 1) * stride + size - n, 0) for side, n in zip(sides, x.shape[1:3], strict=True)]
        around = [(pad // 2, pad - pad // 2) for pad in total]  # the odd pixel is below and right
        x = np.pad(x, [(0, 0), *around, (0, 0)], constant_values=value)
        rows, columns = ((side - 1) * stride + 1 for side in sides)
        return np.stack(
            [x[:, i : i + rows : stride, j : j + columns : stride] for i in range(size) for j in range(size)]
        )


@pytest.mark.parametrize(
    ("stages", "size"),
    [((), (75, 53)), ((), (1, 2)), ((2, 1), (37, 50)), ((1, 2, 1, 1), (64, 64))],
)
@torch.no_grad()
def test_features_are_the_references(stages: tuple[int, ...], size: tuple[int, int]) -> None:
    module, x = stem(stages, "reference"), pixels_of(2, 3, *size).double()
    oracle = Oracle({name: tensor.numpy() for name, tensor in module.state_dict().items()})
    expected = torch.from_numpy(oracle(x.permute(0, 2, 3, 1).numpy())).permute(0, 3, 1, 2)
    assert expected.shape[1:] == (module.out_channels, *(-(-side // stride_of(stages)) for side in size))
    assert expected.std() > 0.3, "the weights should be large enough for a difference to show"
    assert largest_difference(module(x), expected) <= 1e-10


@pytest.mark.parametrize(("stages", "size"), [((), (33, 7)), ((1,), (75, 53)), ((2, 1, 1, 1), (64, 64))])
@torch.no_grad()
def test_features_are_timms_to_the_digit_for_small_kernels(stages: tuple[int, ...], size: tuple[int, int]) -> None:
    module, theirs = stem(stages, "timm"), _resnetv2(stages).double().eval()
    theirs.load_state_dict({n if stages else n.removeprefix("stem."): p for n, p in module.state_dict().items()})
    x = pixels_of(2, 3, *size).double()
    assert largest_difference(module(x), theirs(x)) <= 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_half_precision_kernel_is_standardised_in_float32(kind: StemKind, dtype: torch.dtype) -> None:
    weight = (pixels_of(8, 1, 3, 3) * 1e-4).to(dtype)  # whose variance is no float16
    impulse = torch.zeros(1, 1, 3, 3, dtype=dtype)
    impulse[..., 1, 1] = 1
    module = StandardisedConv2d(1, 8, 3, 1, kind).to(dtype)
    module.weight.copy_(weight)
    kernel = module(impulse).flip(2, 3)[0]
    exact = weight.double()[:, 0]
    mean, variance = exact.mean((1, 2), keepdim=True), exact.var((1, 2), correction=0, keepdim=True)
    divisor = variance.sqrt() + 1e-5 if kind == "reference" else (variance + 1e-8).sqrt()
    assert kernel.dtype == dtype
    torch.testing.assert_close(kernel.double(), (exact - mean) / divisor, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_of_one_value_gives_zeros_and_finite_gradients(kind: StemKind) -> None:
    module = ResNetStem(3, (1,), kind)
    for parameter in module.parameters():
        nn.init.zeros_(parameter) if parameter.ndim == 4 else nn.init.ones_(parameter)
    features = module(pixels_of(1, 3, 16, 16))
    features.sum().backward()
    assert features.isfinite().all()
    assert [name for name, p in module.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
