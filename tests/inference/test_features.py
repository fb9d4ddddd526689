"""Logits and features in one pass: the same numbers as two passes give, by every backend."""

import pytest
import torch

from refusals import refused
from tiny import VARIETY, build
from vitkit.inference.backends import open_runner
from vitkit.model import read_features, with_features


@pytest.mark.parametrize(
    "name", ["token", "token+gap", "distilled", "unit", "map of all tokens", "fc_norm", "res-post"]
)
def test_one_pass_gives_logits_and_features(name: str) -> None:
    model = build(**VARIETY[name]).eval()
    images = torch.randn(3, model.config.in_channels, *model.config.image_size)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        both, logits = with_features(model)(images), model(images)
    K = model.config.num_classes
    assert torch.allclose(both[:, :K], logits, atol=1e-5)
    assert torch.allclose(both[:, K:], read_features(model, images, "head"), atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("backend", "precision", "atol"),
    [("openvino", "float32", 1e-4), ("eager", "bfloat16", 0.15)],
)
def test_backends_compute_both(backend: str, precision: str, atol: float) -> None:
    with refused("model.head-missing"):
        with_features(build(num_classes=0))
    model = build().eval()
    images = torch.randn(3, 3, *model.config.image_size, generator=torch.Generator().manual_seed(0))
    both = torch.as_tensor(open_runner(with_features(model), backend, precision)(images))
    expected = torch.cat([model(images), read_features(model, images, "head")], dim=1).detach()
    assert torch.allclose(both, expected, atol=atol)
