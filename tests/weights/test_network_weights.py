"""Weights of torchvision's and timm's networks: files of theirs, their heads, and what is refused."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision import models

import vitkit
from refusals import refused
from runs import photos
from vitkit.model import Network

NAME = "torchvision:shufflenet_v2_x0_5"
State = dict[str, Tensor]


@functools.cache
def theirs(classes: int = 4) -> nn.Module:
    """Torchvision's own network, with statistics that no new one has."""
    torch.manual_seed(3)
    network = models.shufflenet_v2_x0_5(num_classes=classes)
    network(torch.randn(4, 3, 64, 64))
    return network.eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("theirs") / "net.pth"
    torch.save(theirs().state_dict(), path)
    return path


def images() -> Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_a_file_of_torchvisions_answers_as_torchvision_does(saved: Path, tmp_path: Path) -> None:
    without_counters = {name: own for name, own in torch.load(saved).items() if "num_batches" not in name}
    torch.save(without_counters, tmp_path / "old.pth")
    classifier = vitkit.load(saved, network=NAME, image_size=64)
    old = vitkit.load(tmp_path / "old.pth", network=NAME, image_size=64)
    with torch.inference_mode():
        for found in (classifier, old, vitkit.load(f"{NAME}@{saved}", image_size=64)):
            assert torch.equal(found.logits(images()), theirs()(images()))
    assert classifier.report.is_complete
    assert classifier.preprocess.mean == (0.485, 0.456, 0.406)
    assert (classifier.preprocess.interpolation, classifier.preprocess.crop_pct) == ("bilinear", 224 / 256)
    assert "preprocess" in classifier.report.assumed
    assert any("counters of batches" in note for note in old.report.notes)
    assert vitkit.info(f"{NAME}@{saved}").cost.config.num_classes == 4
    with refused("weights.source-missing", "nothing.pth"):
        vitkit.load(f"{NAME}@nothing.pth")


def test_a_model_folder_and_torchvision_open_each_others_weights(saved: Path, tmp_path: Path) -> None:
    vitkit.load(saved, network=NAME, image_size=64).save(tmp_path / "model")
    network = models.shufflenet_v2_x0_5(num_classes=4).eval()
    network.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))
    save_file(network.state_dict(), tmp_path / "again.safetensors")
    again = vitkit.load(tmp_path / "again.safetensors", network=NAME, image_size=64)
    with torch.inference_mode():
        assert torch.equal(again.logits(images()), theirs()(images()))
        assert torch.equal(vitkit.load(tmp_path / "model").logits(images()), theirs()(images()))


def test_a_file_of_timms_answers_as_timm_does(tmp_path: Path) -> None:
    network = timm.create_model("resnet10t", num_classes=4).eval()
    torch.save(network.state_dict(), tmp_path / "net.pth")
    classifier = vitkit.load(tmp_path / "net.pth", network="timm:resnet10t", image_size=64)
    with torch.inference_mode():
        assert torch.equal(classifier.logits(images()), network(images()))
        features = network.forward_head(network.forward_features(images()), pre_logits=True)
        assert torch.equal(classifier.features(images()), features)
    own = timm.get_pretrained_cfg("resnet10t")
    assert (classifier.preprocess.crop_pct, classifier.preprocess.mean) == (own.crop_pct, tuple(own.mean))


def test_a_head_of_another_size_is_new_and_told_of(saved: Path) -> None:
    classifier = vitkit.load(saved, 3, 64, network=NAME)
    assert set(classifier.report.replaced) == {"fc.weight", "fc.bias"}
    assert isinstance(classifier.model, Network)
    assert not classifier.model.head.weight.any()
    bare = vitkit.load(saved, 0, 64, network=NAME)
    assert set(bare.report.dropped if bare.report else ()) == {"fc.weight", "fc.bias"}
    with torch.inference_mode():
        assert torch.equal(bare.model(images()), classifier.features(images()))


def without(name: str) -> Callable[[State], State]:
    return lambda state: {own: tensor for own, tensor in state.items() if own != name}


UNFIT, NOT_FINITE = "weights.tensors-unfit", "weights.values-not-finite"


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        (without("conv1.1.running_mean"), UNFIT, "missing: conv1.1.running_mean"),
        (lambda state: {**state, "more.weight": torch.zeros(1)}, UNFIT, "left over: more.weight"),
        (lambda state: {**state, "conv1.0.weight": torch.zeros(8, 3, 3, 3)}, UNFIT, "of another shape: conv1.0.weight"),
        (lambda state: {**state, "conv1.1.running_var": torch.full((24,), torch.nan)}, NOT_FINITE, "running_var"),
        (without("fc.weight"), UNFIT, "fc.weight"),
    ],
)
def test_nothing_is_silently_left(
    saved: Path, tmp_path: Path, change: Callable[[State], State], code: str, named: str
) -> None:
    torch.save(change(torch.load(saved)), tmp_path / "net.pth")
    with refused(code, named):
        vitkit.load(tmp_path / "net.pth", network=NAME, image_size=64)


def test_published_weights_that_cannot_be_had_are_refused_with_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, place in ((NAME, "shufflenetv2_x0.5"), ("timm:resnet10t", "timm/resnet10t")):
        with refused("weights.downloads-forbidden", place):
            vitkit.load(name)
    monkeypatch.setitem(sys.modules, "timm", None)
    with refused("model.library-missing", "vitkit[lab]"):
        vitkit.create_model("timm:resnet10t")


def test_published_weights_come_by_the_one_way_of_downloading(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_file = saved.with_name("imagenet.pth")
    torch.save(theirs(1000).state_dict(), torch_file)
    asked: list[tuple[str, str | None]] = []

    def fetch(url: str, sha256: str | None = None, progress: object = None) -> Path:
        asked.append((url, sha256))
        return torch_file

    monkeypatch.setattr("vitkit.weights.download.fetch_url", fetch)
    classifier = vitkit.load(NAME)
    assert asked == [("https://download.pytorch.org/models/shufflenetv2_x0.5-f707e7126e.pth", "f707e7126e")]
    assert classifier.classes[:2] == ("tench", "goldfish")
    assert classifier.preprocess.size == (224, 224)


def test_a_folder_of_another_network_is_not_taken_for_what_was_meant(saved: Path, tmp_path: Path) -> None:
    vitkit.load(saved, network=NAME, image_size=64).save(tmp_path / "model")
    recipe = vitkit.Recipe(model="torchvision:resnet18", weights=str(tmp_path / "model"))
    with refused("training.weights-mismatch", NAME, "torchvision:resnet18"):
        vitkit.train(photos(tmp_path / "photos"), recipe, out=tmp_path / "run")
