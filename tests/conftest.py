"""What all tests share. Its presence puts this folder on the path, so that tests in subfolders can import `tiny`."""

import gc
import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

if "VITKIT_TEST_GPU" not in os.environ:  # what is tested here is the same on every machine; tests/gpu is of the others
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import once
import warm

# A busy machine is no failure. Every run draws the same examples, so that only a change can fail.
settings.register_profile("vitkit", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)  # for `make accept`
settings.load_profile("vitkit")

gc.disable()  # until all is imported that stays


def pytest_configure(config: pytest.Config) -> None:
    """Before the processes that run tests start: where they write, and the one server of warm programs for them all."""
    # The tests write 6 GB in small files and delete them, 1 GB at a time; on a disk that takes a tenth of their time.
    memory = Path("/dev/shm")
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    if has_room and not os.statvfs(memory).f_flag & os.ST_NOEXEC:  # some tests run what they have written
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        warm.share()


def pytest_collection_finish() -> None:
    """What was imported and collected, millions of objects, is no garbage: not to be looked through again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Extensions count at the end what is left of their own."""
    gc.unfreeze()


_files = itertools.count(1)


@pytest.fixture(autouse=True, scope="module")
def _what_stays() -> Iterator[None]:
    """Tests import as well. Every eighth file, what is no garbage by then is not to be looked through again either."""
    yield
    if next(_files) % 8 == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that another run of the tests, or the user, has put into the cache decides what happens here."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cache", "state"):
            patch.setenv(f"VITKIT_{name.upper()}", str(tmp_path_factory.mktemp(name)))
        yield


@pytest.fixture(autouse=True, scope="session")
def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.getbasetemp()
    once.root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "once"
    once.root.mkdir(exist_ok=True)


@pytest.fixture(autouse=True, scope="session")
def _converted_once(_shared_folder: None) -> Iterator[None]:
    import converted  # which imports torch: not in a process that only waits for others

    with pytest.MonkeyPatch.context() as patch:
        converted.keep(patch.setattr)
        yield


@pytest.fixture(autouse=True, scope="session")
def _signals_arrive() -> Iterator[None]:
    """A shell starts background jobs with Ctrl-C ignored, and a program leaves ignored what it finds so."""
    ignored = [own for own in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(own) == signal.SIG_IGN]
    for own in ignored:
        signal.signal(own, signal.default_int_handler if own == signal.SIGINT else signal.SIG_DFL)
    yield
    for own in ignored:
        signal.signal(own, signal.SIG_IGN)


@pytest.fixture(autouse=True, scope="session")
def _any_processor() -> Iterator[None]:
    """Neither its bfloat16 nor what is fastest on it decides what the command line answers here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.inference.backends.best_precision", lambda _: "float32")
        patch.setattr("vitkit.inference.backends.openvino.processor_precision", lambda: "float32")
        patch.setattr("vitkit.inference.backends.torch.measure_plans", lambda model, dtype: {"plain": 1.0})
        yield


@pytest.fixture(autouse=True, scope="session")
def _blank_pictures() -> Iterator[None]:
    """Whoever looks at pictures, or has names that could break one, asks for `drawn_pictures`."""
    import blank  # which imports torch: not in a process that only waits for others

    with pytest.MonkeyPatch.context() as patch:
        blank.blank(patch.setattr)
        yield


@pytest.fixture(autouse=True, scope="session")
def _disk_in_its_own_time() -> Iterator[None]:
    """No test takes the current away, and a small training waits for the disk twenty times, an eighth of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def drawn_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What matplotlib makes of the figures."""
    import blank

    blank.real(monkeypatch.setattr)
