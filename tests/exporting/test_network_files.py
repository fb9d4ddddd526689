"""Files of torchvision's and timm's networks for other runtimes."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vitkit
from runs import shared_photos
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import Refused, choose_pictures, export, load_exported
from vitkit.model import Network

# Small ones: the first squeezes, gates and pools, and the second has the channels last in memory.
FEW = ("timm:test_efficientnet", "timm:test_convnext")
MORE = (  # of each kind of operation
    *("torchvision:mobilenet_v3_small", "torchvision:resnet18", "torchvision:shufflenet_v2_x0_5"),
    *("torchvision:densenet121", "torchvision:googlenet", "torchvision:swin_t", "timm:test_nfnet"),
    *("timm:test_efficientnet_evos", "timm:resnest14d", "timm:mobilevit_xxs", "timm:poolformer_s12"),
    *("timm:ghostnet_050", "timm:edgenext_xx_small"),
)
UNSAFE = ("torchvision:swin_t", ".xml")
BY_DAY = ((FEW[0], ".onnx"), (FEW[1], ".xml"))
CASES = [
    pytest.param(*case, marks=() if case in BY_DAY else pytest.mark.accept)
    for case in product(FEW + MORE, (".onnx", ".xml", ".pt2"))
]


def classifier_of(name: str) -> Classifier:
    """Untrained, but with statistics that no new network has, so that each batch norm counts."""
    torch.manual_seed(0)
    model = vitkit.create_model(name, num_classes=3, image_size=64)
    assert isinstance(model, Network)
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(8, 3, 64, 64))
    return Classifier(model, ("a", "b", "c"), Preprocess(size=(64, 64)), temperature=1.5)


@pytest.mark.parametrize(("name", "suffix"), CASES)
def test_a_file_answers_as_the_network_does(name: str, suffix: str, tmp_path: Path) -> None:
    classifier = classifier_of(name)
    pictures = choose_pictures(classifier, shared_photos())
    if (name, suffix) == UNSAFE:
        with pytest.raises(Refused, match="it has the operation 'Roll'"):
            export(classifier, tmp_path / f"net{suffix}", pictures)
        return
    outcome = export(classifier, tmp_path / f"net{suffix}", pictures)
    assert outcome.comparison.drift < 1e-3
    assert str(Path.cwd()).encode() not in (tmp_path / f"net{suffix}").read_bytes()
    if suffix == ".pt2":
        return
    exported = load_exported(tmp_path / f"net{suffix}", "float32")
    paths = sorted(map(str, shared_photos().glob("*/*.png")))[:5]  # another number of images than was traced
    ours, theirs = ([row for _, row in own.stream(paths)] for own in (classifier, exported))
    np.testing.assert_allclose(np.stack(ours), np.stack(theirs), atol=1e-4)
    assert exported.classes == classifier.classes


class Rounding(nn.Module):
    """A network with an operation that no file of vitkit contains."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(images.flatten(1).round())
        return logits


@pytest.mark.parametrize("suffix", [pytest.param(".onnx", marks=pytest.mark.accept), ".xml"])
def test_an_operation_that_files_may_not_contain_is_named(suffix: str, tmp_path: Path) -> None:
    vitkit.register_model("rounding", Rounding)
    model = vitkit.create_model("custom:rounding", num_classes=3, image_size=16)
    classifier = Classifier(model, ("a", "b", "c"), Preprocess(size=(16, 16)))
    out = tmp_path / f"net{suffix}"
    with pytest.raises(Refused, match=r"[rR]ound") as caught:
        export(classifier, out, choose_pictures(classifier, shared_photos()))
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
