"""Descriptions that somebody damaged or made up: each is refused in a line, or read rightly, and quickly."""

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mutations
import runs
import tiny
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, groups_from_file, read_contents, read_source, split, split_from_file, split_to_dict
from vitkit.errors import VitkitError
from vitkit.exporting import Card
from vitkit.training import Recipe
from vitkit.weights import load

pytestmark = pytest.mark.accept
LONGEST = 10.0  # seconds


class Watch:
    """Runs readers on damaged files, and remembers what was neither an answer nor a refusal."""

    def __init__(self) -> None:
        self.tried, self.wrong = 0, list[str]()

    def __call__(self, read: Callable[..., Any], *arguments: Any) -> None:
        self.tried += 1
        started = time.monotonic()
        try:
            read(*arguments)
        except VitkitError:
            pass
        except Exception as error:
            self.wrong.append(f"{self.tried}: {type(error).__name__}: {str(error)[:200]}")
        if time.monotonic() - started > LONGEST:
            self.wrong.append(f"{self.tried}: {time.monotonic() - started:.0f} s")


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    assert watch.wrong == []


def model_folder(folder: Path) -> Path:
    torch.manual_seed(0)
    model = tiny.build(num_classes=3)
    even = {"counts": [4, 4, 4], "shift": [0.0] * 3, "in_head": [0.0] * 3, "prior": "data", "strength": 1.0}
    provenance = {"recipe": {"seed": 0}, "metrics": {"epoch": 1}, "balance": even, "versions": {"torch": "2"}}
    size = model.config.image_size
    Classifier(model, ("a", "b", "c"), Preprocess(size=size), 0.7, provenance).save(folder)
    return folder


def test_model_descriptions(tmp_path: Path, watch: Watch) -> None:
    folder = model_folder(tmp_path / "model")
    path = folder / "model.json"
    text, rng = path.read_text(), random.Random(1)
    for _ in range(300):
        path.write_text(mutations.mutate_json(text, rng), encoding="utf-8", errors="surrogatepass")
        watch(load, folder)
    assert watch.tried == 300


def test_recipes(tmp_path: Path, watch: Watch) -> None:
    path, rng = tmp_path / "recipe.toml", random.Random(2)
    fields = {**runs.QUICK, "data": "photos", "lr": 0.001}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    values = ["-1", "0", "1e308", "nan", "inf", '"x"', "[]", "{}", "true", "10" + "0" * 400, "1979-05-27"]
    for count in range(300):
        name = rng.choice([*fields, "momentum", "beta2", "max_images", "fit", "image_size"])
        line = f"{name} = {rng.choice(values)}"
        if count % 2:
            path.write_text(mutations.mutate_text(text, rng), encoding="utf-8")
        else:
            path.write_text(text.replace(f"{name} =", f"{line} #") if name in fields else f"{text}{line}\n")
        watch(Recipe.load, path)
    assert watch.tried == 300


def test_cards(tmp_path: Path, watch: Watch) -> None:
    folder = model_folder(tmp_path / "model")
    text, rng = Card.from_classifier(load(folder), "float32").to_json(), random.Random(3)
    for _ in range(300):
        watch(Card.from_json, mutations.mutate_json(text, rng), Path("model.onnx"))
    assert watch.tried == 300


@pytest.mark.parametrize("columns", ["path,label", "path,label,split", "path,labels"])
def test_tables(tmp_path: Path, columns: str, watch: Watch) -> None:
    width = columns.count(",")
    rows = [[f"{name}{i}.png", name, ("train", "val", "test")[i % 3]][: width + 1] for i in range(10) for name in "ab"]
    text, rng = "\n".join([columns, *map(",".join, rows)]) + "\n", random.Random(4)
    path = tmp_path / "all.csv"
    for _ in range(150):
        path.write_bytes(mutations.mutate_text(text, rng).encode())
        watch(read_source, path)
    assert watch.tried == 150


def test_splits_and_groups(tmp_path: Path, watch: Watch) -> None:
    table = split(read_source(runs.photos(tmp_path / "photos")), (0.6, 0.2, 0.2), 0)
    text = json.dumps({**split_to_dict(table), "contents": dict.fromkeys(table.paths, "00")})
    rng = random.Random(5)
    for _ in range(300):
        damaged = mutations.mutate_json(text, rng)
        (tmp_path / "split.json").write_text(damaged, encoding="utf-8", errors="surrogatepass")
        for read in (split_from_file, groups_from_file, read_contents):
            watch(read, tmp_path / "split.json")
    assert watch.tried == 900


@pytest.mark.parametrize("number", ["999", "99999", "9" * 18])
def test_arrays_named_as_of_a_deep_model(tmp_path: Path, number: str) -> None:
    arrays = {"embedding/kernel": np.zeros((4, 4, 3, 8)), "cls": np.zeros((1, 1, 8))}
    arrays |= {f"Transformer/encoderblock_{number}/LayerNorm_0/scale": np.zeros(8)}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(VitkitError):
        load(tmp_path / "a.npz")
