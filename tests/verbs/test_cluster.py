"""`--cluster`: each image once and the numbers of one command, whatever process dies."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import photos
import vitkit as package
import warm
from dying import Dying
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.verbs.cluster import parts_of_cluster, share_of_nodes

EXACT: dict[str, Any] = {"backend": "eager", "precision": "float32"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, and with 21 photographs of two classes; processes, which import torch, begin warm."""
    monkeypatch.setattr("vitkit.system.processes.python", warm.starting())
    monkeypatch.chdir(tmp_path)
    classifier = Classifier(build(image_size=(16, 16), num_classes=2), ("blue", "red"), Preprocess(size=(16, 16)))
    classifier.save("model")
    for i in range(21):
        photos.save(photos.noise(20, 24, seed=i), tmp_path / "photos" / ("red", "blue")[i % 2] / f"{i}.png")
    return tmp_path


def values(seen: Path, out: Path, *, at: int, times: int, after: int = 0, parts: int = 4) -> list[Any]:
    request = Dying(seen, at, times, after)
    with parts_of_cluster(request, 20, out, cluster="local", workers=2, parts=parts, force=False) as every:
        return [value for value, _ in every.values()]


def test_a_worker_that_is_killed_is_replaced_and_goes_on(tmp_path: Path) -> None:
    seen, out = tmp_path / "seen", tmp_path / "out.csv"
    seen.mkdir()
    assert values(seen, out, at=7, times=2) == [i * i for i in range(20)]
    assert len(list(seen.glob("death*"))) == 2
    computed = Counter(file.name.partition(" ")[0] for file in seen.glob("* by *"))
    assert set(computed.values()) == {1}, "what was written before the death is not computed again"
    assert len(computed) == 20 and not (tmp_path / "out.csv.parts").exists()


def test_a_part_that_kills_each_worker_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    seen, out = tmp_path / "seen", tmp_path / "out.csv"
    seen.mkdir()
    with pytest.raises(VitkitError, match=r"part 4/4: its process died 3 times"):
        values(seen, out, at=19, times=9, after=19)
    kept = {file.name for file in (tmp_path / "out.csv.parts").glob("*.part")}
    assert kept == {f"{i}-of-4.part" for i in (1, 2, 3)}
    assert values(seen, out, at=19, times=0, parts=None) == [i * i for i in range(20)]  # type: ignore[arg-type]
    computed = Counter(file.name.partition(" ")[0] for file in seen.glob("* by *"))
    assert len(computed) == 20 and set(computed.values()) == {1}, "only what was missing is computed"


def test_processes_write_what_one_command_writes(vitkit: Any, here: Path) -> None:
    (here / "photos" / "broken.png").write_text("no picture")
    flags = ("--backend", "eager", "--precision", "float32", "--top", 2)
    whole = vitkit("predict", "model", "photos", *flags, "-o", "whole.csv")
    cluster = ("--cluster", "local", "--workers", 2, "--parts", 5)
    outcome = vitkit("predict", "model", "photos", *flags, *cluster, "-o", "rows.csv")
    assert (outcome.code, outcome.out) == (0, whole.out.replace("whole.csv", "rows.csv"))
    assert Path("rows.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert not [file.name for file in here.iterdir() if ".parts" in file.name]
    assert "--out rows.csv exists" in vitkit("predict", "model", "photos", *cluster, "-o", "rows.csv").err
    package.predict("model", "photos", out="rows.csv", shard="1/2", top=1)
    Path("rows.csv.parts/mine.txt").write_text("mine")
    assert vitkit("predict", "model", "photos", *flags, *cluster, "-o", "rows.csv", "--force").code == 0
    assert {file.name for file in Path("rows.csv.parts").iterdir()} == {"mine.txt", "1-of-2.part"}
    assert len(package.predict("model", "photos", out="rows.jsonl", cluster="local", parts=2, top=2)) == 22


def test_features_and_figures_by_processes(here: Path) -> None:
    package.embed("model", "photos", out="whole.npz")
    features = package.embed("model", "photos", out="rows.npz", cluster="local", parts=2)
    assert Path("rows.npz").read_bytes() == Path("whole.npz").read_bytes() and len(features) == 21
    whole = package.evaluate("model", "photos", **EXACT)
    assert package.evaluate("model", "photos", out="figures", cluster="local", **EXACT).figures == whole.figures


def test_what_the_command_refuses_is_said_once(vitkit: Any, here: Path) -> None:
    for arguments, words in (
        (("nowhere", "photos"), "nowhere"),
        (("model", "nowhere"), "no such file, folder or pattern: nowhere"),
        (("model", "photos", "--preprocess", "size=3"), "size"),
    ):
        outcome = vitkit("predict", *arguments, "--cluster", "local", "-o", "rows.csv")
        assert outcome.code == 2 and words in outcome.err and outcome.err.count("error:") == 1
    outcome = vitkit("predict", "model", "photos", "--cluster", "local", "--merge", 99, "-o", "rows.csv")
    assert (outcome.code, outcome.out) == (2, "") and "part 1/" in outcome.err
    with pytest.raises(VitkitError, match="--cluster requires a model that other processes can open"):
        package.predict(package.load("model"), "photos", out="rows.csv", cluster="local")


def test_ray_is_named_if_it_is_missing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(VitkitError, match=r"--cluster ray requires Ray: pip install 'vitkit\[ray\]'"):
        package.predict("model", "photos", out="rows.csv", cluster="ray")
    assert not Path("rows.csv.parts").exists()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=4), st.integers(1, 30))
def test_every_worker_finds_a_place_at_the_same_time(nodes: list[tuple[int, int]], workers: int) -> None:
    cores, gpus = share_of_nodes(nodes, workers)
    has_gpus = any(of_node for _, of_node in nodes)
    assert cores > 0 and (gpus > 0) == has_gpus
    free = [(10_000 * cpu, 10_000 * gpu) for cpu, gpu in nodes]  # ten-thousandths, as Ray counts
    need = round(10_000 * cores), round(10_000 * gpus)
    for _ in range(workers):
        place = next((i for i, have in enumerate(free) if have[0] >= need[0] and have[1] >= need[1]), None)
        assert place is not None
        free[place] = free[place][0] - need[0], free[place][1] - need[1]


@pytest.mark.parametrize(
    ("nodes", "workers", "share"),
    [
        ([(16, 4), (16, 4)], 8, (4, 1)),
        ([(4, 0), (4, 0), (4, 0)], 4, (2, 0)),  # 3 cores would leave one worker without a place
        ([(2, 0)], 4, (0.5, 0)),
        ([(8, 1)], 3, (2, 0.3333)),
        ([(8, 2), (8, 0)], 2, (4, 1)),
    ],
)
def test_workers_share_what_there_is(nodes: list[tuple[int, int]], workers: int, share: tuple[float, float]) -> None:
    assert share_of_nodes(nodes, workers) == share


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_writes_what_one_command_writes_though_a_worker_is_killed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # of its processes, for `dying`
    package.predict("model", "photos", out="whole.csv", **EXACT)
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        package.predict("model", "photos", out="rows.csv", cluster="ray", workers=4, parts=5, **EXACT)  # two a core
        assert Path("rows.csv").read_bytes() == Path("whole.csv").read_bytes()
        seen = here / "seen"
        seen.mkdir()
        request = Dying(seen, 7, 2)
        with parts_of_cluster(request, 20, here / "a.csv", cluster="ray", workers=1, parts=4, force=False) as every:
            assert [value for value, _ in every.values()] == [i * i for i in range(20)]
        assert len(list(seen.glob("death*"))) == 2 and len(list(seen.glob("* by *"))) == 20
        with (
            pytest.raises(VitkitError, match="a worker failed: "),
            parts_of_cluster(Dying(seen, 7, 99), 20, here / "b.csv", cluster="ray", workers=1, parts=4, force=False),
        ):
            pass
        assert (here / "b.csv.parts" / "1-of-4.part").exists()
    finally:
        ray.shutdown()
