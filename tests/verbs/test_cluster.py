"""`--cluster ray`: each image once and the numbers of one process, though a worker is killed."""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle

import photos
import vitkit as package
from dying import Dying, refuse
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.inference.prediction import ENCODING
from vitkit.verbs.cluster import _choose_computation, _divide_resources, _Job, _Worker, parquet_folder, write_by_ray

EXACT = package.Compute(backend="eager", precision="float32")
SQUARES = pyarrow.schema({"path": pyarrow.string(), "square": pyarrow.int64()})
TESTS = Path(__file__).parents[1]
# Ray Data sets its own deprecated settings to their defaults, for each of which it warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning:ray.data.context")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on this machine, whose processes import vitkit and `dying` from where this one does."""
    if sys.platform == "win32":
        pytest.skip("Ray for Windows is a beta, and Windows has no SIGKILL")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, sys.path)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, object_store_memory=100 * 2**20)
        yield
        ray.shutdown()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, with 21 photographs of two classes, and with a file that is none."""
    monkeypatch.chdir(tmp_path)
    classifier = Classifier(build(image_size=(16, 16), num_classes=2), ("blue", "red"), Preprocess(size=(16, 16)))
    classifier.save("model")
    for i in range(20):
        photos.save(photos.noise(20, 24, seed=i), tmp_path / "photos" / ("red", "blue")[i % 2] / f"{i}.png")
    photos.save(photos.noise(20, 24, seed=20), tmp_path / "photos" / "red" / os.fsdecode(b"caf\xe9.png"))
    (tmp_path / "photos" / "red" / "broken.png").write_text("no picture")
    return tmp_path


def write_here(start: Any, paths: Any, schema: Any, folder: Path, compute: Any) -> Any:
    """What `write_by_ray` does, as one worker after another in this process, which get their job as bytes."""
    sent = cloudpickle.dumps(_Job(start, str(Path.cwd()), 1, schema))
    computation = _choose_computation(cloudpickle.loads(sent))
    worker = _Worker(cloudpickle.loads(sent), computation)
    for i in range(0, len(paths), 5):
        block = pyarrow.table({"path": [path.encode(*ENCODING) for path in paths[i : i + 5]]})
        pq.write_table(pyarrow.concat_tables(worker(block)), folder / f"{i}.parquet")
    return computation


@pytest.mark.parametrize("is_on_ray", [False, pytest.param(True, marks=pytest.mark.accept)])
def test_rows_and_figures_are_those_of_one_process(
    vitkit: Any, here: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, is_on_ray: bool
) -> None:
    if is_on_ray:
        request.getfixturevalue("cluster")
    else:
        monkeypatch.setattr("vitkit.verbs.cluster.limit_cores", lambda _: None)  # of all tests after this
        for verb in ("predict", "embed", "evaluate"):
            monkeypatch.setattr(import_module(f"vitkit.verbs.{verb}"), "write_by_ray", write_here)

    promises = package.Promises(reject=0.6)
    whole = {row.path: row for row in package.predict("model", "photos", promises=promises, top=2, compute=EXACT)}
    flags = ("--top", 2, "--reject", 0.6, "--backend", "eager", "--precision", "float32")
    outcome = vitkit("predict", "model", "photos", *flags, "--cluster", "ray", "-o", "rows.parquet")
    rejected = sum(row.is_rejected for row in whole.values())
    words = f"22 images (1 unreadable, {rejected} rejected), eager, float32, on a Ray cluster: rows.parquet\n"
    words += f"{21 - rejected} answered, {1 + rejected} to look at.\n"
    assert outcome.code == 1 and outcome.out.endswith(words)
    rows = [row for file in Path("rows.parquet").iterdir() for row in pq.read_table(file).to_pylist()]
    assert len(rows) == 22 and len({row["path"] for row in rows}) == 22
    for row in rows:
        known = whole[os.fsdecode(b"photos/red/caf\xe9.png") if "caf" in row["path"] else row["path"]]
        assert (row["label"], row["error"]) == (known.label, known.error)
        confidences = [confidence for _, confidence in known.top] or [None, None]
        assert [row["confidence"], row["confidence_2"]] == pytest.approx(confidences, abs=1e-6)

    features = package.embed("model", "photos")
    result = package.embed("model", "photos", compute=package.Compute(cluster="ray"), out="features.parquet")
    assert (result.images, result.unreadable) == (22, 1)
    by_path = {row["path"]: row for row in pq.read_table("features.parquet").to_pylist()}
    readable = [path for path in features.paths if "caf" not in path]
    assert len(by_path) == 22
    assert by_path["photos/red/broken.png"]["error"] == features.errors["photos/red/broken.png"]
    expected = features.features[[features.paths.index(path) for path in readable]]
    np.testing.assert_allclose([by_path[path]["features"] for path in readable], expected, atol=1e-5)

    figures = package.evaluate("model", "photos", compute=EXACT).figures
    of_cluster = package.evaluate("model", "photos", out="figures", compute=EXACT.replace(cluster="ray")).figures
    assert of_cluster.keys() == figures.keys()
    for name in ("accuracy", "loss", "ece", "brier"):
        assert of_cluster[name] == pytest.approx(figures[name], abs=1e-6)
    assert of_cluster["per_class"] == figures["per_class"]
    assert not [file.name for file in here.iterdir() if file.name.startswith(".")]


@pytest.mark.accept
def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path, cluster: None) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    images = [str(i) for i in range(40)]
    with parquet_folder(tmp_path / "rows.parquet", (), force=False) as folder:
        write_by_ray(Dying(seen, "23").start, images, SQUARES, folder, package.Compute(cluster="ray:1", device="cpu"))
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert sorted(row["square"] for row in rows) == [i * i for i in range(40)]
    with (
        refused("unspecified", "there is no such model on this machine"),
        parquet_folder(tmp_path / "others.parquet", (), force=False) as folder,
    ):
        write_by_ray(refuse, ["1"], SQUARES, folder, package.Compute(cluster="ray:1", device="cpu"))
    assert not (tmp_path / "others.parquet").exists()
    assert (seen / "death").exists() and len({file.name.partition(" by ")[2] for file in seen.glob("* by *")}) == 2


def test_an_output_is_replaced_only_with_force(tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    for text in ("first", "second"):
        with parquet_folder(out, (), force=text == "second") as folder:
            (folder / f"{text}.parquet").write_text(text)
    assert [file.name for file in out.iterdir()] == ["second.parquet"]
    with refused("verbs.out-exists"), parquet_folder(out, (), force=False):
        pass
    (out / "mine.txt").write_text("mine")
    with refused("verbs.out-not-empty", "mine.txt"), parquet_folder(out, (), force=True):
        pass
    with refused("verbs.out-in-source"), parquet_folder(out / "a.parquet", [str(tmp_path)], force=False):
        pass
    with pytest.raises(RuntimeError), parquet_folder(tmp_path / "other.parquet", (), force=False) as folder:
        (folder / "half.parquet").write_text("half")
        raise RuntimeError
    assert [file.name for file in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize(
    ("command", "code", "named"),
    [
        ("predict model photos --cluster ray:0", "verbs.option-invalid", "ray:0"),
        ("predict model photos --cluster ray", "verbs.option-missing", "--out"),
        ("predict model photos --cluster ray -o rows.csv", "verbs.out-suffix", ".parquet"),
        ("predict model photos --cluster ray -o rows.parquet --pictures drawn", "verbs.option-conflict", "--pictures"),
    ],
)
def test_what_the_flags_require(vitkit: Any, here: Path, command: str, code: str, named: str) -> None:
    vitkit(*command.split()).refused(code, named)
    assert sorted(file.name for file in here.iterdir()) == ["model", "photos"]


def test_ray_and_a_model_that_other_machines_can_open_are_needed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = package.Compute(cluster="ray")
    with refused("verbs.model-not-file"):
        package.predict(package.load("model"), "photos", compute=compute, out="rows.parquet")
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("verbs.package-missing", "pip install 'vitkit[ray]'"):
        package.predict("model", "photos", compute=compute, out="rows.parquet")
    assert sorted(file.name for file in here.iterdir()) == ["model", "photos"]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=4), st.integers(1, 30))
def test_the_workers_fit_the_cluster_and_leave_cores_for_writing(nodes: list[tuple[int, int]], workers: int) -> None:
    alive = [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in nodes]
    count, resources, cores = _divide_resources(alive, workers, uses_gpus=True)
    cpus, gpus = (sum(of_node) for of_node in zip(*nodes, strict=True))
    assert count == workers and 1 <= cores <= max(1, cpus // workers)
    ((name, share),) = resources.items()
    assert (name, share > 0) == ("num_gpus" if gpus else "num_cpus", True)
    parts = round(10_000 * share)  # in which Ray counts; 25 x 0.14 is more than 3.5 in floating point
    assert share <= 1 and parts * workers <= 10_000 * (gpus or cpus / 2)
    dead = {"Alive": False, "Resources": {"CPU": 16, "GPU": 2}}
    by_machines = (gpus or len(nodes), gpus > 0)
    found, kind, _ = _divide_resources([*alive, dead], None, uses_gpus=True)
    assert (found, "num_gpus" in kind) == by_machines
