"""How the model is computed on this processor: measured, kept, believed only where it holds."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hearing import heard
from refusals import refused
from tiny import VARIETY, build, images, largest_difference
from vitkit.inference import GAIN, PLANS, build_plan, can_pack, choose_plan, fastest_plan, open_runner
from vitkit.inference.backends import torch as plan
from vitkit.system import cache_folder


def ways(dtype: torch.dtype) -> list[str]:
    """The plans that this processor can compute in a dtype."""
    return [name for name in PLANS if name != "auto" and (can_pack(dtype) or not name.startswith("packed"))]


WAYS = ways(torch.bfloat16)
FAST = {"plain": 1.0, "folded-fused": 1.2, "folded-batch": 1.04}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured, in the place of measuring."""
    calls: list[str] = []

    def measure(model: Any, dtype: torch.dtype) -> dict[str, float]:
        calls.append(f"{model.config.layers} {dtype}")
        return FAST

    monkeypatch.setattr(plan, "measure_plans", measure)
    return calls


SOME = ("distilled", "relative every_layer", "all mixtures post-norm")  # prepare is tested on all


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("way", WAYS)
def test_every_plan_answers_as_the_model_does(way: str, name: str) -> None:
    model = build(std=0.1, **VARIETY[name])
    with torch.inference_mode():
        expected, found = model(images(3)), build_plan(model, way)(images(3))
    assert found.dtype == torch.float32
    assert (found - expected).square().mean().sqrt() <= 0.05 * expected.std()
    assert not torch.equal(found, found.bfloat16().float()) or way != "plain", "its head does not round"
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters()), "the model stays as it was"


@given(st.dictionaries(st.sampled_from(WAYS[1:]), st.floats(0.3, 2.0)))
def test_the_model_itself_unless_another_is_a_twentieth_faster(ratios: dict[str, float]) -> None:
    chosen = fastest_plan({"plain": 1.0, **ratios})
    fastest = max(ratios.values(), default=0.0)
    if fastest < GAIN:
        assert chosen == "plain"
    else:
        assert ratios[chosen] == fastest


_real_measure = plan.measure_plans  # at import, before tests fix it


@pytest.mark.parametrize("fields", [{"conv_layers": (0, 1)}, {"num_classes": 0}], ids=str)
def test_every_way_is_measured_of_any_model(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_SECONDS", 0.0)
    monkeypatch.setattr(plan, "_TIME_LIMIT", 600.0)
    before = torch.get_num_threads()
    ratios = _real_measure(build(**fields), torch.float32)
    assert set(ratios) == set(ways(torch.float32)) and ratios["plain"] == 1.0
    assert all(ratio > 0 for ratio in ratios.values())
    assert torch.get_num_threads() == before
    monkeypatch.setattr(plan, "_TIME_LIMIT", 0.0)
    assert _real_measure(build()) == {"plain": 1.0}, "time is up before it can tell"


def test_a_measurement_is_said_kept_and_not_repeated(measured: list[str], cache: Path) -> None:
    said: list[str] = []
    with heard(said.append):
        for seed, may_measure in ((0, True), (1, True), (0, False)):
            assert choose_plan(build(seed=seed), may_measure=may_measure) == "folded-fused"
    assert len(measured) == len(said) == 1
    assert "folded-fused 1.20, folded-batch 1.04" in said[0]
    assert choose_plan(build(layers=2), may_measure=True) == "folded-fused"
    first, _ = (cache / "plans").iterdir()
    keys = json.loads(first.read_text()).keys()
    assert len(measured) == 2 and {"processor", "capability", "ONEDNN_MAX_CPU_ISA", "cores", "torch", "batch"} <= keys
    shutil.rmtree(cache / "plans")
    (cache / "plans").write_text("a file, which stops nothing")
    assert choose_plan(build(), may_measure=True) == "folded-fused"


def test_few_images_are_not_measured_for(measured: list[str]) -> None:
    assert choose_plan(build(), may_measure=False) == "plain"
    assert open_runner(build(), "eager", "bfloat16", images=499).plan == "plain"
    assert measured == []
    assert open_runner(build(), "eager", "bfloat16", images=500).plan == "folded-fused"
    assert open_runner(build(), "eager", "bfloat16", images=1).plan == "folded-fused"


def test_a_fixed_plan_is_taken_and_is_of_eager(measured: list[str]) -> None:
    runner = open_runner(build(), "auto", "bfloat16", plan="folded-batch")
    assert (runner.backend, runner.plan) == ("eager", "folded-batch")
    assert measured == [] and not (cache_folder() / "plans").exists()
    with refused("inference.plan-unknown"):
        open_runner(build(), plan="quickest")
    with refused("inference.plan-unsupported"):
        open_runner(build(), "openvino", plan="plain")


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_plan_that_is_named_is_taken_in_float32(way: str, measured: list[str]) -> None:
    model = build()
    runner = open_runner(model, "eager", "float32", plan=way)
    with torch.inference_mode():
        assert largest_difference(runner(images(2)), model(images(2))) <= 1e-5
    assert (runner.plan, runner.precision, measured) == (way, "float32", [])


@pytest.mark.parametrize(("asked", "named"), [(None, "auto"), (499, "auto"), (500, "plain")])
def test_float32_is_the_model_itself_for_few_images(asked: int | None, named: str, measured: list[str]) -> None:
    model = build()
    choose_plan(model, torch.float32, may_measure=True)
    runner = open_runner(model, "eager", "float32", images=asked, plan=named)
    with torch.inference_mode():
        assert torch.equal(runner(images(2)), model(images(2)))
    assert (runner.plan, len(measured)) == ("", 1)


def test_many_images_have_a_plan_in_float32_too_kept_beside_that_of_bfloat16(
    measured: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        runner = open_runner(build(), "eager", "float32", images=500)
        assert open_runner(build(), "eager", "bfloat16", images=500).plan == runner.plan == "folded-fused"
    assert measured == ["3 torch.float32", "3 torch.bfloat16"] and len(list((cache / "plans").iterdir())) == 2
    monkeypatch.setattr(plan, "measure_plans", lambda model, dtype: {"plain": 1.0, "folded-fused": 1.04})
    assert open_runner(build(layers=2), "eager", "float32", images=500).plan == "", "none is faster"


@pytest.mark.parametrize("is_kept", [False, True], ids=["new", "kept"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_layer_unknown_to_plans_is_computed(precision: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_kept:  # by a model of the same configuration, whose layers are vitkit's
        monkeypatch.setattr(plan, "measure_plans", lambda model, dtype: FAST)
        assert open_runner(build(), "eager", precision, images=500).plan == "folded-fused"
        monkeypatch.undo()
    model = build()
    model.blocks[1].mlp.act = torch.nn.Hardswish()
    runner = open_runner(model, "eager", precision, images=500)
    with torch.inference_mode():
        assert torch.equal(runner(images(2)), open_runner(model, "eager", precision, plan="plain")(images(2)))
    with refused("inference.layer-unsupported", "act is a Hardswish"):
        open_runner(model, "eager", precision, plan="folded-fused")
