"""`--device`: what is asked for is taken or refused in a line, by every command that computes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import vitkit
from exporting.ready import exported
from photos import folder
from refusals import refused
from tiny import build, images, tiny
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.explanation import METHODS
from vitkit.exporting import load_exported
from vitkit.inference import open_runner
from vitkit.model import VisionTransformer
from vitkit.system import best_precision, choose_device, processor_precision
from vitkit.system import environment as devices
from vitkit.training import Recipe, distributed, fabric_of
from vitkit.training import start as setup
from vitkit.verbs import open_model


def have(monkeypatch: pytest.MonkeyPatch, *, cuda: bool = False, mps: bool = False) -> None:
    """Let torch say that the machine has these."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def classifier() -> Classifier:
    return Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)))


def test_a_device_is_chosen_or_refused_with_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, asked, chosen in (
        (False, False, "auto", "cpu"),
        (True, False, "auto", "cuda"),
        (True, False, "cpu", "cpu"),
        (False, True, "auto", "cpu"),
        (False, True, "mps", "mps"),
    ):
        have(monkeypatch, cuda=cuda, mps=mps)
        assert choose_device(asked) == chosen
    with refused("system.device-missing", "cuda", "available: cpu, mps"):
        choose_device("cuda")


def test_verbs_refuse_a_missing_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    have(monkeypatch)
    data, model, out = folder(tmp_path / "data", {"a": 1, "b": 1}), tmp_path / "model", tmp_path / "out"
    classifier().save(model)
    calls: list[Callable[[Any], object]] = [
        lambda device: vitkit.bench(model, device=device),
        lambda device: vitkit.train(data, Recipe(device=device), out=out),
        lambda device: vitkit.explain(model, data, out, compute=vitkit.Compute(device=device)),
    ]
    for device, code in (("mps", "system.device-missing"), ("tpu", "text.value-wrong")):
        for call in calls:
            with refused(code, device):
                call(device)
    assert not list(out.glob("**/*.*"))


def test_the_processor_is_taken_on_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may touch the GPU, which is not there in truth."""
    have(monkeypatch, cuda=True)
    expected = open_runner(build(), "eager", "float32", device="cpu")(images(2))
    assert torch.isfinite(expected).all()
    assert best_precision("cpu") == processor_precision()
    assert best_precision("mps") == "float32"


def test_a_backend_of_processors_refuses_a_gpu_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    have(monkeypatch, cuda=True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)  # which converting to ONNX keeps
    with refused("inference.device-unsupported", "openvino", "cuda"):
        open_runner(build(), "openvino", "float32", device="cuda")
    assert open_runner(build(), "openvino", "float32").backend == "openvino"  # which it takes where it has the choice


def test_an_exported_file_runs_on_the_processor() -> None:
    pytest.importorskip("onnxruntime")
    file = load_exported(exported(".onnx"))
    assert file.use(device="cpu") is file
    assert file.to("auto") is file
    with refused("exporting.device-unsupported", "model.onnx"):
        file.use(device="cuda")


def test_a_run_asks_for_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, cuda=True)
    assert setup.choose_device(Recipe()) == "auto"
    assert setup.choose_device(Recipe(device="cpu")) == "cpu"
    assert setup.choose_device(Recipe(device="cuda")) == "cuda"
    assert fabric_of("float32", setup.choose_device(Recipe(device="cpu"))).device.type == "cpu"
    assert not setup.choose_compile(Recipe(device="cpu"), 10**9)
    assert setup.choose_precision("auto", "cpu") == processor_precision()


def test_a_classifier_is_moved_as_torch_moves_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch)
    own = classifier()
    assert own.to("cpu") is own
    assert own.device.type == "cpu"
    with refused("system.device-missing"):
        own.to("cuda")
    with refused("classifier.backend-fixed"):
        own.use("eager", "float32").to("cpu")


def test_images_go_where_the_model_is_and_answers_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that torch pretends: it tells where each tensor is, and has no numbers."""
    monkeypatch.setattr("vitkit.model.vit.initialise", lambda *_: None)  # which looks at numbers
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            model = VisionTransformer(tiny(layers=1))
        own = Classifier(model, tuple("abcdefg"), Preprocess(size=(12, 16)))
        batch = torch.empty(2, 3, 12, 16)
        assert (own.device.type, batch.device.type) == ("cuda", "cpu")
        for answer in (own.logits(batch), own.probabilities(batch), own.features(batch, "mean")):
            assert answer.device.type == "cpu"
        assert own.logits(batch.to("cuda")).device.type == "cuda"
        assert METHODS["rollout"](own.model, batch).device.type == "cuda"  # others compute numbers to go by


def test_a_verb_does_not_move_what_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_devices", lambda: ("cpu", "meta"))  # which is one without numbers
    own = classifier()
    there = open_model(own, lambda _: None, device="meta")
    assert (own.device.type, there.device.type) == ("cpu", "meta")
    assert open_model(own, lambda _: None, device="cpu") is own
    assert open_model(there, lambda _: None, device="auto") is there
    assert own.to("meta") is own
    assert own.device.type == "meta"


@pytest.mark.parametrize("asked", ["cpu", "cuda", "auto"])
def test_processes_are_started_for_the_device(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two on the processor of a machine with one GPU; on the GPU there is room for one."""
    have(monkeypatch, cuda=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    fabric = Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr("lightning_fabric.Fabric", fabric)
    expected: AbstractContextManager[Any] = pytest.raises(ZeroDivisionError)
    with expected if asked == "cpu" else refused("training.devices-missing"):
        distributed.form_process_group(2, 1, setup.choose_device(Recipe(device=asked)))
    assert [call.kwargs["accelerator"] for call in fabric.call_args_list] == (["cpu"] if asked == "cpu" else [])
