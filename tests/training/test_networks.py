"""Training torchvision's and timm's networks: what a plain loop would do, and what batch norms need beside it."""

import copy
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

import vitkit
from refusals import refused
from runs import QUICK, assert_same_outcome, told, weights
from vitkit.data import mix_seeds
from vitkit.errors import Interrupted
from vitkit.model import Network, config_of
from vitkit.model.build import build
from vitkit.training import Loop, Recipe, RunningStatistics, WeightAverage, ema_decay, resume, train

Batch = tuple[Tensor, Tensor]
NAME = "shufflenet_v2_x0_5"  # the smallest of torchvision's: 0.3 M parameters, batch norms, maps of one place at 32 px
MODEL: dict[str, Any] = {"model": f"torchvision:{NAME}", "image_size": 32, "epochs": 1, "batch_size": 12}


def recipe_for(data: Path, **fields: Any) -> Recipe:
    return Recipe(**{**QUICK, "data": str(data), **MODEL, **fields})


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Batch]]]:
    """A run of two steps, and the batches of each."""
    steps: list[list[Batch]] = []
    take = Loop.take_step

    def watched(loop: Loop, first: int, batches: Iterable[Batch]) -> None:
        steps.append([(images.clone(), labels.clone()) for images, labels in batches])
        take(loop, first, steps[-1])

    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "take_step", watched)
        train(recipe_for(data, batch_size=14), folder)
    return folder, steps


def small(classes: int = 3) -> Network:
    torch.manual_seed(1)
    model = build(config_of(MODEL["model"], classes, image_size=32))
    assert isinstance(model, Network)
    return model


def test_two_steps_are_those_of_a_plain_loop(trained: Any, data: Path) -> None:
    folder, steps = trained
    assert len(steps) == 2
    torch.manual_seed(mix_seeds(0))
    network = models.get_model(NAME, weights=None, num_classes=3).train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over the first batches, of which there are two
    matrices = [own for own in network.parameters() if own.ndim > 1]
    vectors = [own for own in network.parameters() if own.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999))
    for number, ((images, labels),) in enumerate(steps):
        progress = number / 2
        warm = min((progress + 0.5) / 0.1, 1.0)
        factor = warm if progress < 0.1 else (1 + math.cos(math.pi * (progress - 0.1) / 0.9)) / 2
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * factor
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels, label_smoothing=0.1).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    saved, expected = weights(folder), network.state_dict()
    assert saved.keys() == expected.keys()
    worst = max((saved[name] - own).abs().max().item() for name, own in expected.items() if own.is_floating_point())
    assert worst < 1e-5
    assert all(torch.equal(saved[name], own) for name, own in expected.items() if not own.is_floating_point())
    assert saved["conv1.1.num_batches_tracked"] == 2
    network.load_state_dict(saved, strict=True)
    classifier = vitkit.load(folder)
    image = classifier.read(next(data.glob("*/*.png")))[None]
    with torch.inference_mode():
        assert torch.equal(network.eval()(image), classifier.logits(image))


@pytest.mark.usefixtures("no_reports")
def test_of_a_pair_of_runs_one_seed_gives_one_result(data: Path, tmp_path: Path) -> None:
    recipe = recipe_for(data, epochs=2, max_images=12, model="torchvision:mobilenet_v3_small", dropout=0.3)
    train(recipe, tmp_path / "whole")

    class Stop:
        def on_epoch_end(self, state: Any) -> None:
            if state.epoch == 0:
                raise Interrupted(2)

    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "parts", hooks=vitkit.Hooks([Stop()]))
    resume(tmp_path / "parts")
    assert_same_outcome(tmp_path / "whole", tmp_path / "parts")


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def observe(remembered: RunningStatistics, norm: nn.Module, *batches: Tensor) -> None:
    """Let a step of these batches go well."""
    remembered.begin()
    for batch in batches:
        norm(batch)
    remembered.finish(sum(map(len, batches)), torch.tensor(True))


@pytest.mark.usefixtures("no_reports")
def test_a_step_left_out_changes_no_statistics(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, still = Loop.take_step, []

    def spoilt(loop: Loop, first: int, batches: Iterable[Batch]) -> None:
        before = statistics(loop.state.model)
        own = [(images * (math.nan if first == 1 else 1.0), labels) for images, labels in batches]
        take(loop, first, own)
        after = statistics(loop.state.model)
        still.append(all(torch.equal(before[name], after[name]) for name in before))
        assert all(buffer.isfinite().all() for buffer in after.values())

    monkeypatch.setattr(Loop, "take_step", spoilt)
    folder, said = told(recipe_for(data, batch_size=8, max_images=25), tmp_path / "run")  # 8, 8, 8 and 1
    assert still == [False, True, False, True]
    assert "not finite" in said
    assert weights(folder)["conv1.1.num_batches_tracked"] == 2


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1.0, None])
def test_new_statistics_begin_as_the_mean_over_the_first_batches(momentum: float | None) -> None:
    norm = nn.BatchNorm1d(3, momentum=momentum)
    remembered = RunningStatistics(nn.Sequential(norm))
    mean, var = torch.zeros(3), torch.ones(3)
    for step in range(14):
        batch = torch.randn(8, 3, generator=torch.Generator().manual_seed(step)) * 0.01 + step
        part = max(1 / (step + 1), momentum or 0)
        mean, var = mean.lerp(batch.mean(0), part), var.lerp(batch.var(0), part)
        observe(remembered, norm, batch)
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, var)


def test_batches_of_one_step_count_each() -> None:
    norm, pieces = nn.BatchNorm1d(3), torch.randn(3, 8, 3)
    observe(RunningStatistics(nn.Sequential(norm)), norm, *pieces)
    weights = torch.tensor([0.81, 0.9, 1.0])  # as the momentum has them, and nothing of 0 and 1
    expected = (pieces.mean(1) * weights[:, None]).sum(0) / weights.sum()
    torch.testing.assert_close(norm.running_mean, expected)


@pytest.mark.parametrize("counted", [0, 5000], ids=["a file without the counter", "a file with it"])
def test_statistics_that_came_with_weights_go_on_as_they_are(counted: int) -> None:
    norm = nn.BatchNorm1d(3)
    norm.running_mean.fill_(2.0)
    norm.num_batches_tracked.fill_(counted)
    plain, batch = copy.deepcopy(norm), torch.randn(8, 3)
    remembered = RunningStatistics(nn.Sequential(norm))
    observe(remembered, norm, batch)
    plain(batch)
    torch.testing.assert_close(norm.running_mean, plain.running_mean)
    torch.testing.assert_close(norm.running_var, plain.running_var)
    still = nn.BatchNorm1d(3).eval()
    observe(RunningStatistics(nn.Sequential(still)), still, batch)
    assert not still.running_mean.any() and (still.running_var == 1).all(), "norms that stand still are left alone"


def test_a_copy_has_its_own_head() -> None:
    model = small()
    copied = copy.deepcopy(model)
    assert copied.head is not model.head
    assert copied.get_parameter("head.weight") is copied.network.fc.weight


@pytest.mark.parametrize("fields", [{"ema": 0.9}, {"swa": 0.5}])
def test_an_average_has_the_statistics_averaged_as_the_weights(fields: dict[str, float]) -> None:
    model = small()
    average = WeightAverage(model, Recipe(**fields))
    expected: dict[str, Tensor] = {}
    for step in range(3):
        model.train()(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(step)))
        average.update(model)
        part = 1.0 if step == 0 else 1 - ema_decay(step, 0.9) if "ema" in fields else 1 / (step + 1)
        for name, own in statistics(model).items():
            old = expected.get(name, own.clone())
            expected[name] = old + part * (own - old) if own.is_floating_point() else own
    for name, own in statistics(average.model).items():
        assert torch.allclose(own, expected[name], atol=1e-6), name
    assert average.model.network.state_dict()["conv1.1.num_batches_tracked"] == 3


def test_what_needs_a_transformer_is_refused_early(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.training.stages.examine.examine", lambda *_: pytest.fail("a picture is read"))
    rows: list[tuple[dict[str, Any], str]] = [
        ({"method": "lora", "model": "torchvision:resnet18", "weights": "auto"}, "training.field-inapplicable"),
        ({"layer_decay": 0.75}, "training.field-inapplicable"),
        ({"drop_path": 0.1}, "model.option-unsupported"),
        ({"model_fields": {"layers": 6}}, "model.option-unknown"),
        ({"model": "torchvision:alexnet", "image_size": 16}, "model.image-size-unsupported"),
    ]
    for fields, code in rows:
        with refused(code):
            train(recipe_for(data, **fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_processes_remember_the_mean_of_what_each_has_seen_by_its_images() -> None:
    def parts(model: nn.Module, *, floating: bool) -> list[Tensor]:
        return [own.clone() for own in model.buffers() if own.is_floating_point() == floating]

    class Pair:
        """A team of two, whose other process has seen two images."""

        size = 2

        def all_reduce(self, own: list[Tensor]) -> None:
            for mine, seen in zip(own, [*(2 * each for each in theirs), torch.tensor([2.0])], strict=True):
                mine += seen

    model, other = small().train(), small().train()
    for norm in (own for each in (model, other) for own in each.modules() if isinstance(own, nn.BatchNorm2d)):
        norm.momentum = None
    remembered = RunningStatistics(model)
    remembered.begin()
    model(torch.randn(4, 3, 32, 32))
    other(torch.randn(4, 3, 32, 32) + 1)
    theirs, counters = parts(other, floating=True), parts(model, floating=False)
    expected = [(6 * a + 2 * b) / 8 for a, b in zip(parts(model, floating=True), theirs, strict=True)]
    remembered._team = Pair()  # type: ignore[assignment]
    remembered.finish(6, torch.tensor(True))
    torch.testing.assert_close(parts(model, floating=True), expected)
    assert all(map(torch.equal, counters, parts(model, floating=False)))


def test_the_cost_of_a_network_is_what_is_published() -> None:
    cost = vitkit.info("torchvision:resnet18").cost
    published = models.ResNet18_Weights.DEFAULT.meta
    assert cost.parameters == published["num_params"]
    assert cost.gmacs == pytest.approx(published["_ops"], abs=0.001)


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("method", ["probe-sgd", "full"])
def test_weights_of_a_run_are_trained_on(method: str, trained: Any, data: Path, tmp_path: Path) -> None:
    fields = {"weights": str(trained[0]), "method": method, "epochs": 1, "batch_size": 14, "max_images": 14}
    train(Recipe(**fields, data=str(data), precision="float32", workers=0), tmp_path / "run")
    before, after = (weights(own) for own in (trained[0], tmp_path / "run"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    heads = {"fc.weight", "fc.bias"}
    assert changed == heads if method != "full" else changed > heads | {"conv1.1.running_mean"}
