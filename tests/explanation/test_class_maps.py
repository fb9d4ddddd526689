"""Grad-CAM against its equations written out with hooks, and what of a network can be looked into."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import models

import vitkit
from photos import noise, save
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.explanation import grad_cam, occlusion
from vitkit.model import Network


def classifier_of(name: str, size: int = 64) -> Classifier:
    torch.manual_seed(0)
    model = vitkit.create_model(name, num_classes=3, image_size=size)
    return Classifier(model, ("a", "b", "c"), Preprocess(size=(size, size)))


@pytest.fixture(scope="module")
def resnet() -> Classifier:
    return classifier_of("torchvision:resnet18")


def images(size: int = 64) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "layer", "targets"),
    [("resnet18", "layer4", (None, 2)), ("densenet121", "features", (2,))],  # the second changes its map in place
)
def test_it_is_what_the_equations_say(name: str, layer: str, targets: tuple[int | None, ...]) -> None:
    """By torchvision's own network, hooks of torch and loops over numbers."""
    classifier = classifier_of(f"torchvision:{name}")
    network = models.get_model(name, weights=None, num_classes=3).eval()
    assert isinstance(classifier.model, Network)
    network.load_state_dict(classifier.model.network.state_dict())
    seen: dict[str, Tensor] = {}

    def keep(_module: object, _given: object, made: Tensor) -> Tensor:
        made.retain_grad()
        seen["map"] = made
        return made.clone()

    network.get_submodule(layer).register_forward_hook(keep)
    for target in targets:
        logits = network(images())
        chosen = logits.argmax(dim=1) if target is None else torch.full((2,), target)
        sum(logits[i, chosen[i]] for i in range(2)).backward()  # type: ignore[union-attr]
        maps, slopes = seen["map"].detach().double().numpy(), seen["map"].grad.double().numpy()  # type: ignore[union-attr]
        expected = np.zeros((2, *maps.shape[2:]))
        for b in range(2):
            for k in range(maps.shape[1]):
                alpha = slopes[b, k].sum() / slopes[b, k].size  # eq. 1
                expected[b] += alpha * maps[b, k]
        expected = np.maximum(expected, 0)  # eq. 2
        found = grad_cam(classifier.model, images(), target)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5 * max(expected.max(), 1))
        assert found.shape == (2, *seen["map"].shape[2:])


def test_nothing_of_the_model_changes(resnet: Classifier) -> None:
    before = {name: own.clone() for name, own in resnet.model.state_dict().items()}
    with torch.inference_mode():
        grad_cam(resnet.model, images())
    assert all(torch.equal(before[name], own) for name, own in resnet.model.state_dict().items())
    assert all(own.grad is None for own in resnet.model.parameters())
    assert not any(module._forward_hooks for module in resnet.model.modules())


def test_a_photograph_is_explained_in_both_ways(resnet: Classifier, tmp_path: Path) -> None:
    path = save(noise(80, 60), tmp_path / "photo.png")
    explained = resnet.explain(path, method="all")
    assert set(explained.maps) == {"gradient", "occlusion"}
    assert explained.maps["gradient"].shape == (2, 2)


def test_occlusion_is_what_covering_does(resnet: Classifier) -> None:
    found = occlusion(resnet.model, images(), 1, square=20)  # which covers all
    with torch.no_grad():
        whole = resnet.model(images()).softmax(dim=1)[:, 1]
        nothing = resnet.model(torch.zeros(2, 3, 64, 64)).softmax(dim=1)[:, 1]
    expected = (whole - nothing)[:, None, None].expand_as(found)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_what_a_network_has_not_is_refused(resnet: Classifier, tmp_path: Path) -> None:
    classifier = classifier_of("timm:test_vit3", 160)
    path = save(noise(), tmp_path / "photo.png")
    for method in ("rollout", "raw", "heads"):
        with refused("explanation.model-kind", method, "torchvision:resnet18"):
            resnet.explain(path, method=method)
    with refused("explanation.feature-map-missing"):
        classifier.explain(path)
    assert set(classifier.explain(path, method="all").maps) == {"occlusion"}
    with pytest.raises(VitkitError, match="requires a Vision Transformer"):
        vitkit.anatomy(resnet, out=tmp_path / "out")
