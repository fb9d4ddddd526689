"""Networks, layers, losses, changes of pictures, optimisers and metrics that the user wrote."""

import json
import random
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import runs
import vitkit
from refusals import refused
from vitkit.evaluation import registry
from vitkit.model import registry as parts
from vitkit.model.vit import Block


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "NETWORKS", networks := dict(parts.NETWORKS))
    monkeypatch.setattr("vitkit.model.network.NETWORKS", networks)
    monkeypatch.setattr(parts, "BLOCKS", blocks := dict(parts.BLOCKS))
    monkeypatch.setattr("vitkit.model.config.BLOCKS", blocks)
    monkeypatch.setattr(registry, "METRICS", {task: dict(rows) for task, rows in registry.METRICS.items()})


@pytest.fixture
def photos() -> Path:
    return runs.shared_photos()


POOL = (nn.AdaptiveAvgPool2d(1), nn.Flatten())


def cnn(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), *POOL, nn.Linear(8, num_classes))


def quick(**changes: Any) -> vitkit.Recipe:
    return vitkit.Recipe(**runs.quick_fields(**changes))


def of_model(model: Any, **changes: Any) -> vitkit.Recipe:
    left_out = ("model", "model_fields", "weights")
    fields = {name: value for name, value in runs.quick_fields().items() if name not in left_out}
    return vitkit.Recipe(**{**fields, "model": vitkit.register_model("own", model), "image_size": 32, **changes})


class Named(nn.Module):
    """Names of parameters that begin as those of wrappers in published files do, which loading removes there.

    The number of classes has another name here.
    """

    def __init__(self, k: int, width: int = 8) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU(), *POOL)
        self.model = nn.Sequential(nn.Linear(width, k))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.backbone(x))


def test_a_network_of_the_user_is_trained_loaded_and_used(photos: Path, tmp_path: Path) -> None:
    vitkit.register_model("own", Named(3, 8))
    module = Named(3, 12)  # a module may take the name of another; it begins with its weights, and stays as it is
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = vitkit.train(photos, of_model(module, epochs=1, lr=1e-12), out=tmp_path / "run")
    trained = vitkit.load(tmp_path / "run").model.network.state_dict()
    for name, tensor in before.items():
        assert torch.equal(module.state_dict()[name], tensor)
        assert "weight" not in name or torch.allclose(trained[name], tensor, atol=1e-6)
    picture = next(photos.rglob("*.png"))
    (answer,) = vitkit.predict(tmp_path / "run", picture)
    assert vitkit.evaluate(tmp_path / "run").figures["images"] == run.evaluation["images"]
    vitkit.explain(tmp_path / "run", picture, method="occlusion", out=tmp_path / "maps")
    written = vitkit.export(tmp_path / "run", out=tmp_path / "net.xml").file
    parts.NETWORKS.clear()
    with refused("model.name-unregistered", "vitkit.register_model"):
        vitkit.load(tmp_path / "run")
    (again,) = vitkit.predict(written, picture)  # what is exported needs no registration
    assert again.confidence == pytest.approx(answer.confidence, abs=1e-4)


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (cnn(7), "model.head-unsupported"),
        (lambda num_classes: "none", "model.factory-invalid"),
        (lambda num_classes: nn.Linear("many", 3), "model.network-not-buildable"),
    ],
    ids=["other classes", "no module", "fails"],
)
def test_no_classifier_is_refused_before_writing(photos: Path, tmp_path: Path, model: Any, code: str) -> None:
    with refused(code):
        vitkit.train(photos, of_model(model), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Plain(nn.Module):
    """A layer that knows nothing of vitkit."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(config.hidden_size, config.hidden_size), layer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).mean(dim=1, keepdim=True)


class Reversed(Block):
    def forward(self, x: Tensor, queries: int | None = None, relative: Any = None) -> Tensor:
        return super().forward(x.flip(1), None, relative).flip(1)[:, :queries]


def test_a_layer_reads_what_its_forward_takes() -> None:
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    vitkit.register_block("reversed", Reversed)
    model, plain = (vitkit.VisionTransformer(**sizes, **own).eval() for own in ({"block": "reversed"}, {}))
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), plain(x))  # attention does not depend on the order of the tokens


def test_a_layer_of_the_user_is_trained_loaded_or_refused_if_unknown(photos: Path, tmp_path: Path) -> None:
    vitkit.register_block("mine", Plain)
    vitkit.train(photos, quick(model_fields={**runs.SIZE, "block": "mine"}, epochs=1), out=tmp_path / "run")
    assert all(isinstance(block, Plain) for block in vitkit.load(tmp_path / "run").model.blocks)
    picture = next(photos.rglob("*.png"))
    vitkit.predict(tmp_path / "run", picture)
    with refused("model.option-unsupported", "block='mine'"):
        vitkit.explain(tmp_path / "run", picture, method="rollout", out=tmp_path / "maps")
    with refused("model.option-unsupported", "block='mine'"):
        vitkit.export(tmp_path / "run", out=tmp_path / "model.xml")
    with refused("model.fields-incompatible"):
        vitkit.VisionTransformer(img_size=16, patch_size=8, block="mine", position="relative")
    parts.BLOCKS.clear()
    with refused("model.name-unregistered", "mine"):
        vitkit.load(tmp_path / "run")
    with refused("model.factory-invalid", "str"):
        vitkit.register_block("plain", "Plain")  # type: ignore[arg-type]
    with refused("model.name-invalid"):
        vitkit.register_model("../x", cnn)


def test_a_loss_of_the_user_is_what_is_minimised(photos: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, ...]] = []

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        calls.append(tuple(targets.shape))
        return F.cross_entropy(logits, targets)

    # Steps along half the gradient of twice the length are the same to the last bit.
    off = dict.fromkeys(("label_smoothing", "mixup", "cutmix", "weight_decay", "clip_grad"), 0.0)
    vitkit.train(photos, quick(epochs=1, optimizer="sgd", lr=0.01, **off), out=tmp_path / "plain")
    hooks = vitkit.Hooks(loss=lambda logits, targets: loss(logits, targets) / 2)
    vitkit.train(photos, quick(epochs=1, optimizer="sgd", lr=0.02, **off), hooks=hooks, out=tmp_path / "half")
    runs.assert_same_weights(tmp_path / "plain", tmp_path / "half")
    assert calls and all(len(shape) == 1 for shape in calls)
    vitkit.train(photos, quick(mixup=0.8, epochs=1), hooks=vitkit.Hooks(loss=loss), out=tmp_path / "mixed")
    assert len(calls[-1]) == 2
    assert "loss" in json.loads((tmp_path / "mixed" / "extensions.json").read_text())


def test_a_change_of_pictures_draws_the_same_numbers_and_an_optimiser_takes_the_steps(
    photos: Path, tmp_path: Path
) -> None:
    """The changed picture may have another mode and size."""
    drawn: dict[str, list[float]] = {"first": [], "second": []}
    made: list[torch.optim.Optimizer] = []

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        made.append(torch.optim.RAdam(groups))
        return made[-1]

    for name, seen in drawn.items():

        def change(picture: Image.Image, seen: list[float] = seen) -> Image.Image:
            seen += [random.random(), float(np.random.rand()), float(torch.rand(()))]
            return picture.convert(random.choice(("L", "RGBA", "P"))).resize((9, 31))

        hooks = vitkit.Hooks(augment=change, optimizer=make)
        vitkit.train(photos, quick(epochs=1), hooks=hooks, out=tmp_path / name)
    assert drawn["first"] == drawn["second"]
    assert len(set(drawn["first"])) == len(drawn["first"]) > 0, "they differ"
    assert len(made) == 2 and made[0].state
    assert all(group["lr"] != 1e-3 for group in made[0].param_groups), "the schedule sets the rate"


def test_a_run_is_continued_with_the_parts_that_it_had(photos: Path, tmp_path: Path) -> None:
    stop = SimpleNamespace(on_epoch_end=lambda state: setattr(state, "should_stop", True))
    run, hooks = tmp_path / "run", vitkit.Hooks(loss=F.cross_entropy)
    vitkit.train(photos, quick(epochs=2), hooks=vitkit.Hooks(loss=F.cross_entropy, callbacks=[stop]), out=run)
    (run / "report.html").unlink(missing_ok=True)
    with refused("training.hook-changed", "loss", "cross_entropy"):
        vitkit.train(resume=run)
    with refused("training.hook-changed", "augment"):
        vitkit.train(hooks=vitkit.Hooks(loss=F.cross_entropy, augment=lambda x: x), resume=run)
    vitkit.train(hooks=hooks, resume=run)
    assert "cross_entropy" in vitkit.load(run).provenance["extensions"]["loss"]
    for unused in (hooks, vitkit.Hooks(callbacks=[SimpleNamespace(on_fit_end=print)])):
        with refused("training.hook-unused"):  # by a head on frozen features, which auto chooses
            vitkit.train(photos, vitkit.Recipe(weights=runs.shared_run()), hooks=unused, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"augment": np.asarray}, "data.augment-result"),
        ({"loss": lambda logits, targets: torch.tensor(1.0)}, "training.loss-detached"),
        ({"loss": partial(F.cross_entropy, reduction="none")}, "training.loss-result"),
        ({"loss": nn.CrossEntropyLoss}, "training.hook-type"),
        ({"optimizer": lambda groups: None}, "training.optimizer-type"),
        ({"optimizer": lambda groups: torch.optim.SGD(groups[0]["params"], 0.1)}, "training.optimizer-groups"),
    ],
)
def test_parts_that_return_others_are_named(photos: Path, tmp_path: Path, part: dict[str, Any], code: str) -> None:
    with refused(code, *part):
        vitkit.train(photos, quick(epochs=1), hooks=vitkit.Hooks(**part), out=tmp_path / "run")


def test_a_metric_of_the_user_stands_beside_vitkits() -> None:
    run = runs.shared_run()  # which has none of it, whichever test asks for the run first
    vitkit.register_metric("mine", lambda labels, probabilities: (probabilities.argmax(axis=1) == labels).mean())
    result = vitkit.evaluate(run)
    assert result.figures["mine"] == pytest.approx(result.figures["accuracy"])
    assert any("mine" in line for line in result.lines())
    with refused("evaluation.metric-name", "accuracy"):
        vitkit.register_metric("accuracy", lambda *_: 0.0)
    vitkit.register_metric("mine", lambda labels, probabilities: [1][2])
    with refused("evaluation.metric-failed", "mine", "IndexError"):
        vitkit.evaluate(run)


def test_names_in_a_run_import_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model folder that names a network makes no program import a module of that name."""
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with refused("model.name-unregistered"):
        vitkit.create_model("custom:evil", 3)
    assert not (tmp_path / "ran").exists() and "evil" not in sys.modules
    import evil  # type: ignore[import-not-found]  # noqa: F401

    assert (tmp_path / "ran").exists(), "it could have been"
    del sys.modules["evil"]
