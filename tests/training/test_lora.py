"""Low-rank changes: nothing at first, thin products afterwards, and part of the matrices when saved."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import runs
import tiny
from once import once
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import Interrupted
from vitkit.model import VisionTransformer
from vitkit.system import reporting_to
from vitkit.training import Recipe, add_low_rank, merge_low_rank, run
from vitkit.weights import load

MATRICES = [f"blocks.{i}.{name}.weight" for i in range(3) for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")]
RANK = 2


IMAGES = torch.randn(3, 3, 12, 16, generator=torch.Generator().manual_seed(1))


def adapted() -> VisionTransformer:
    """A model with changes that are not nothing."""
    model = tiny.build()
    add_low_rank(model, RANK, seed=0)
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if name.endswith(".b"):
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_at_first_nothing_changes_and_the_heads_and_the_thin_matrices_alone_are_trained() -> None:
    plain, model = (tiny.build(distill_token=True, distill_head=True) for _ in range(2))
    assert add_low_rank(model, RANK, seed=0) == MATRICES
    assert torch.equal(model(IMAGES), plain(IMAGES))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    heads = {f"{head}.{kind}" for head in ("head", "head_dist") for kind in ("weight", "bias")}
    assert {name for name in trained if ".parametrizations." not in name} == heads
    assert len(trained) == 4 + 2 * len(MATRICES)


def test_the_change_is_twice_the_product_and_merging_keeps_the_logits_the_layout_and_the_model_itself() -> None:
    model = adapted()
    before = model(IMAGES)
    whole = merge_low_rank(model)
    torch.testing.assert_close(whole(IMAGES), before, atol=1e-5, rtol=0)
    plain, own = tiny.build().state_dict(), dict(model.named_parameters())
    for name in MATRICES:
        module = name.removesuffix(".weight")
        a, b = (own[f"{module}.parametrizations.weight.0.{part}"].detach() for part in "ab")
        assert (b.shape[1], a.shape[0]) == (RANK, RANK)
        torch.testing.assert_close(whole.state_dict()[name] - plain[name], 2 * b @ a, atol=1e-6, rtol=0)
    assert list(whole.state_dict()) == list(tiny.build().state_dict())
    assert torch.equal(model(IMAGES), before) and len(list(model.parameters())) > len(list(whole.parameters()))


@pytest.fixture(scope="module")
def source() -> Path:
    pixels = Preprocess(size=(16, 16), fit="squash", interpolation="bilinear")
    model = tiny.build(image_size=(16, 16), num_classes=2)
    return once("lora-source", Classifier(model, ("ant", "bee"), pixels).save)


def recipe(data: Path, source: Path, **fields: Any) -> Recipe:
    quick = {**runs.QUICK, "model": None, "weights": str(source), "method": "lora", "lora_rank": RANK, "lr": 5e-3}
    return Recipe.of(Recipe(**{"data": str(data), **quick, **fields}).to_dict(), "the test")


@pytest.fixture(scope="module")
def finished(data: Path, source: Path) -> Path:
    return once("lora-run", lambda place: run.train(recipe(data, source, epochs=2), place))


def test_a_run_changes_the_matrices_by_that_rank_and_all_else_not_at_all(finished: Path, source: Path) -> None:
    before, after = runs.weights(source), runs.weights(finished)
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        if name in MATRICES:
            assert torch.linalg.matrix_rank(tensor - before[name], atol=1e-5) == RANK, name
        elif not name.startswith("head"):
            assert torch.equal(tensor, before[name]), name


@pytest.mark.usefixtures("no_reports")
def test_a_run_resumes_to_the_same_weights(finished: Path, data: Path, source: Path, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("epoch 2") and done == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted), reporting_to(interrupt):
        run.train(recipe(data, source, epochs=2), tmp_path / "run")
    assert load(tmp_path / "run").classes == ("blue", "green", "red")
    run.resume(tmp_path / "run")
    runs.assert_same_weights(tmp_path / "run", finished)
