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
from conftest_articles import Pictures
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


class Pair(nn.Module):
    """A network that returns its logits twice."""

    def __init__(self) -> None:
        super().__init__()
        self.network = cnn(2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(x), self.network(x)


def test_a_network_of_the_user_is_trained_loaded_and_used(photos: Path, tmp_path: Path) -> None:
    run = vitkit.train(photos, of_model(Named, epochs=1), out=tmp_path / "run")
    network = vitkit.load(tmp_path / "run").model.network
    assert {name.partition(".")[0] for name in network.state_dict()} == {"backbone", "model"}
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


def test_a_module_is_trained_from_its_weights_stays_as_it_is_and_may_take_the_name_of_another(
    photos: Path, tmp_path: Path
) -> None:
    vitkit.register_model("own", Named(3, 8))
    module = Named(3, 12)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    vitkit.train(photos, of_model(module, epochs=1, lr=1e-12), out=tmp_path / "run")
    trained = vitkit.load(tmp_path / "run").model.network.state_dict()
    for name, tensor in before.items():
        assert torch.equal(module.state_dict()[name], tensor)
        assert "weight" not in name or torch.allclose(trained[name], tensor, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (cnn(7), "model.head-unsupported"),
        (lambda num_classes: nn.Conv2d(3, num_classes, 3), "model.head-unsupported"),
        (Pair(), "model.head-unsupported"),
        (lambda num_classes: nn.Linear(32, num_classes), "model.head-unsupported"),
        (lambda num_classes: "none", "model.factory-invalid"),
        (lambda num_classes: nn.Linear("many", 3), "model.network-not-buildable"),
        (7, "model.factory-invalid"),
    ],
    ids=["other classes", "no linear head", "a pair", "no pool", "no module", "fails", "a number"],
)
def test_no_classifier_is_refused_before_writing(photos: Path, tmp_path: Path, model: Any, code: str) -> None:
    with refused(code):
        vitkit.train(photos, of_model(model), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Reversed(Block):
    def forward(self, x: Tensor, queries: int | None = None, relative: Any = None) -> Tensor:
        return super().forward(x.flip(1), None, relative).flip(1)[:, :queries]


class Plain(nn.Module):
    """A layer that knows nothing of vitkit."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(config.hidden_size, config.hidden_size), layer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).mean(dim=1, keepdim=True)


@pytest.mark.parametrize("kind", [pytest.param(Reversed, marks=pytest.mark.accept), Plain])
def test_a_layer_of_the_user_is_trained_loaded_or_refused_if_unknown(photos: Path, tmp_path: Path, kind: Any) -> None:
    vitkit.register_block("mine", kind)
    vitkit.train(photos, quick(model_fields={**runs.SIZE, "block": "mine"}, epochs=1), out=tmp_path / "run")
    assert all(isinstance(block, kind) for block in vitkit.load(tmp_path / "run").model.blocks)
    picture = next(photos.rglob("*.png"))
    vitkit.predict(tmp_path / "run", picture)
    with refused("model.option-unsupported", "block='mine'"):
        vitkit.explain(tmp_path / "run", picture, method="rollout", out=tmp_path / "maps")
    with refused("model.option-unsupported", "block='mine'"):
        vitkit.export(tmp_path / "run", out=tmp_path / "model.xml")
    parts.BLOCKS.clear()
    with refused("model.name-unregistered", "mine"):
        vitkit.load(tmp_path / "run")


def test_a_layer_reads_what_its_forward_takes() -> None:
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    vitkit.register_block("reversed", Reversed)
    torch.manual_seed(0)
    model = vitkit.VisionTransformer(**sizes, block="reversed").eval()
    plain = vitkit.VisionTransformer(**sizes).eval()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), plain(x))  # attention does not depend on the order of the tokens
    vitkit.register_block("plain", Plain)
    with refused("model.fields-incompatible"):
        vitkit.VisionTransformer(**sizes, block="plain", position="relative")
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


def test_a_change_of_pictures_sees_training_pictures_and_draws_the_same_numbers(photos: Path, tmp_path: Path) -> None:
    """The changed picture may have another mode and size."""
    drawn: dict[str, list[float]] = {"first": [], "second": []}
    for name, seen in drawn.items():

        def change(picture: Image.Image, seen: list[float] = seen) -> Image.Image:
            seen += [random.random(), float(np.random.rand()), float(torch.rand(()))]
            return picture.convert(random.choice(("L", "RGBA", "P"))).resize((9, 31))

        run = vitkit.train(photos, quick(epochs=1), hooks=vitkit.Hooks(augment=change), out=tmp_path / name)
        assert len(run.rows()) == 1
    assert drawn["first"] == drawn["second"]
    assert len(set(drawn["first"])) == len(drawn["first"]) > 0, "they differ"


def test_an_optimiser_of_the_user_takes_the_steps(photos: Path, tmp_path: Path) -> None:
    made: list[torch.optim.Optimizer] = []

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        made.append(torch.optim.RAdam(groups))
        return made[-1]

    vitkit.train(photos, quick(epochs=1), hooks=vitkit.Hooks(optimizer=make), out=tmp_path / "own")
    assert len(made) == 1
    assert all(group["lr"] != 1e-3 for group in made[0].param_groups), "the schedule sets the rate"
    assert made[0].state


def test_a_run_is_continued_with_the_parts_that_it_had(photos: Path, tmp_path: Path) -> None:
    class Stop:
        def on_epoch_end(self, state: Any) -> None:
            state.should_stop = True

    run, hooks = tmp_path / "run", vitkit.Hooks(loss=F.cross_entropy)
    recipe = quick(epochs=2)
    vitkit.train(photos, recipe, hooks=vitkit.Hooks(loss=F.cross_entropy, callbacks=[Stop()]), out=run)
    (run / "report.html").unlink(missing_ok=True)
    with refused("training.hook-changed", "loss", "cross_entropy"):
        vitkit.train(resume=run)
    with refused("training.hook-changed", "augment"):
        vitkit.train(hooks=vitkit.Hooks(loss=F.cross_entropy, augment=lambda x: x), resume=run)
    vitkit.train(hooks=hooks, resume=run)
    assert "cross_entropy" in vitkit.load(run).provenance["extensions"]["loss"]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_lightning_module_is_subclassed() -> None:
    lightning = pytest.importorskip("lightning")
    from vitkit.training import lightning_module

    calls: list[int] = []

    class Mine(lightning_module.LightningClassifier):  # type: ignore[misc]
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            calls.append(batch_idx)
            images, labels = batch
            return F.cross_entropy(self(images), labels, label_smoothing=0.2)

    data = torch.utils.data.TensorDataset(torch.rand(8, 3, 16, 16), torch.arange(8) % 2)
    batches = torch.utils.data.DataLoader(data, batch_size=4)
    model = vitkit.VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=2)
    before = model.head.weight.detach().clone()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=1, enable_model_summary=False, **quiet)
    trainer.fit(Mine(model), batches, batches)
    assert calls == [0, 1]
    assert not torch.equal(model.head.weight, before)


@pytest.mark.parametrize(
    ("package", "name"),
    [("lightning", "LightningClassifier"), ("pytorch_lightning", "PytorchLightningClassifier")],
)
def test_a_missing_lightning_is_named(monkeypatch: pytest.MonkeyPatch, package: str, name: str) -> None:
    from vitkit.training import lightning_module

    monkeypatch.delitem(vars(lightning_module), name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with refused("training.package-missing", package, "pip install"):
        getattr(lightning_module, name)


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"augment": lambda image: image.crop((0, 0, 0, 0))}, "data.augment-result"),
        ({"augment": np.asarray}, "data.augment-result"),
        ({"loss": lambda logits, targets: torch.tensor(1.0)}, "training.loss-detached"),
        ({"loss": partial(F.cross_entropy, reduction="none")}, "training.loss-result"),
        ({"loss": nn.CrossEntropyLoss}, "training.hook-type"),
        ({"loss": "focal"}, "training.hook-type"),
        ({"optimizer": lambda groups: None}, "training.optimizer-type"),
        ({"optimizer": lambda groups: torch.optim.SGD(groups[0]["params"], 0.1)}, "training.optimizer-groups"),
    ],
)
def test_parts_that_return_others_are_named(photos: Path, tmp_path: Path, part: dict[str, Any], code: str) -> None:
    with refused(code, *part):
        vitkit.train(photos, quick(epochs=1), hooks=vitkit.Hooks(**part), out=tmp_path / "run")


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    empty = type("Empty", (Pictures,), {"__len__": lambda self: 0})()
    for datasets, name in (((empty, Pictures()), "train"), ((Pictures(), empty), "val")):
        with refused("data.images-missing", name):
            vitkit.train(vitkit.Datasets(*datasets), quick(epochs=1), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_parts_that_would_never_be_called_are_refused(photos: Path, tmp_path: Path) -> None:
    start = runs.shared_run()
    loss, callback = vitkit.Hooks(loss=F.cross_entropy), vitkit.Hooks(callbacks=[SimpleNamespace(on_fit_end=print)])
    for recipe, hooks, named in (
        (vitkit.Recipe(method="probe"), loss, "loss"),
        (vitkit.Recipe(weights=start), loss, "loss"),  # method auto chooses probe
        (vitkit.Recipe(weights=start), callback, "callbacks"),
    ):
        with refused("training.hook-unused", named):
            vitkit.train(photos, recipe, hooks=hooks, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


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
