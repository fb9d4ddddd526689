"""Backends by name, and the one that `auto` takes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import warm
from refusals import refused
from tiny import build, images, largest_difference
from vitkit.errors import VitkitError
from vitkit.inference import BACKENDS, Backend, KernelReplay, open_runner, register
from vitkit.inference import backends as backend
from vitkit.inference.backends import registry
from vitkit.inference.backends import torch as own
from vitkit.system import best_precision, processor_precision
from vitkit.system import environment as hardware


class Stand:
    """A runner in another's place."""

    def __init__(self, backend: str, precision: str) -> None:
        self.backend, self.precision = backend, precision


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every backend that takes long to start is there, and no GPU is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(registry, "find_spec", lambda _: object())
    monkeypatch.setattr(own, "compiled", lambda _, precision, __: Stand("compile", precision))
    for name in ("openvino", "onnx"):
        module = ModuleType(name)
        module.from_model = lambda _, precision, name=name: Stand(name, precision)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"vitkit.inference.backends.{name}", module)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_eager_answers_as_the_model_does(precision: str) -> None:
    """In float32 it is the model itself as it was."""
    model, x = build(), images(3)
    runner = open_runner(model, "eager", precision)
    assert (runner.backend, runner.precision) == ("eager", precision)
    with torch.inference_mode():
        expected = model(x)
        model.head.weight.zero_()
    found = runner(x)
    assert (found.dtype, found.device.type, found.requires_grad) == (torch.float32, "cpu", False)
    assert largest_difference(found, expected) <= {"float32": 0, "bfloat16": 0.1}[precision]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_is_opened_by_its_name(stands: None, name: str) -> None:
    for precision in ("float32", "bfloat16"):
        runner = open_runner(build(), name, precision)
        assert (runner.backend, runner.precision) == (name, precision)
    with pytest.raises(ValueError, match=name):
        register(Backend(name, "another", "nowhere"))


def test_auto_takes_eager_for_few_images_and_openvino_for_many(stands: None) -> None:
    for number, expected in {0: "eager", 1: "eager", 100: "eager", 1_000_000: "openvino", None: "openvino"}.items():
        assert open_runner(build(), "auto", "float32", number).backend == expected


@pytest.mark.parametrize("trouble", ["fails", "missing"])
def test_auto_takes_eager_where_the_other_fails_but_what_was_named_is_not_replaced(
    stands: None, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    if trouble == "fails":
        failing = Mock(side_effect=VitkitError("it cannot run the model"))
        monkeypatch.setattr(sys.modules["vitkit.inference.backends.openvino"], "from_model", failing)
    else:
        monkeypatch.setattr(registry, "find_spec", lambda _: None)
    assert open_runner(build()).backend == "eager"
    with refused("unspecified" if trouble == "fails" else "inference.package-missing"):
        open_runner(build(), "openvino")
    if trouble == "missing":
        with refused("inference.package-missing", "onnx"):
            open_runner(build(), "onnx")


def test_auto_neither_compiles_nor_leaves_the_gpu(stands: None, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = list[str]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(own, "model_on_gpu", lambda _model, _precision, device: devices.append(device))
    assert open_runner(build(), "auto", "float32").backend == "eager"
    assert devices == ["cuda"]


def test_the_compiled_double_answers_as_the_model_does_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, compile_ = Mock(side_effect=lambda graph, _: graph), torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda module, **_: compile_(module, fullgraph=True, backend=backend, dynamic=False)
    )
    torch._dynamo.reset()
    model = build()
    runner = open_runner(model, "compile", "float32")
    for batch in (8, 3, 1, 8):
        found = runner(images(batch))
        assert largest_difference(found, model(images(batch)).detach()) <= 1e-5
    assert backend.call_count == 1


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("tensorrt",), "inference.backend-unknown"),
        (("eager", "float8"), "inference.precision-unknown"),
        (("auto", "float16", None, "auto", "cpu"), "system.precision-unsupported"),
        (("openvino", "float16", None, "auto", "cpu"), "system.precision-unsupported"),
    ],
)
def test_names_that_do_not_exist_and_float16_on_processors_are_refused(options: tuple[Any, ...], code: str) -> None:
    with refused(code):
        open_runner(build(), *options)


def test_what_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: Mock(side_effect=RuntimeError("no C++ compiler\nis here")))
    with refused("inference.compiler-failed", "no C++ compiler"):
        open_runner(build(), "compile", "float32")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({"avx2": True}, "float32")],
)
def test_precision_follows_the_hardware(
    capabilities: dict[str, bool], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the system tells of it, or PyTorch where the system does not."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "cpuinfo")
    assert best_precision() == expected
    there = " ".join(name for name, is_there in capabilities.items() if is_there)
    (tmp_path / "cpuinfo").write_text(
        f"processor\t: 0\nmodel name\t: amx_bf16\nflags\t\t: fpu {there} sse\n\n", "utf-8"
    )
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": expected == "float32"})
    assert best_precision() == processor_precision() == expected


def test_onnx_takes_float32_by_itself(stands: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "best_precision", lambda _: "bfloat16")
    assert open_runner(build(), "onnx").precision == "float32"
    assert open_runner(build(), "openvino").precision == "bfloat16"


_AT_ONCE = """
import os, sys, threading
from vitkit.inference.backends.openvino import import_openvino
package = import_openvino()
sys.setswitchinterval(1e-6)
start = threading.Barrier(4)
def ask():
    start.wait()
    package.Type.f32.to_dtype()
threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join(20)
os._exit(any(thread.is_alive() for thread in threads))
"""


def test_threads_that_ask_openvino_first_at_once_do_not_wait_for_one_another() -> None:
    """Every second of these hung, in C, where Python's own timeouts do not reach: hence a process, twice."""
    for _ in range(2):
        done = subprocess.run([warm.python(), "-c", _AT_ONCE], timeout=60, check=False)
        assert done.returncode == 0


def test_a_model_whose_kernels_cannot_be_recorded_is_computed_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    @contextmanager
    def capture(*_: object, **__: object) -> Iterator[None]:
        attempts.append(1)
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: SimpleNamespace(wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    model = build()
    replay = KernelReplay(model)
    batch = images(2, config=model.config)
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(replay(batch), model(batch))
    assert attempts == [1], "it is not tried again for every batch"
