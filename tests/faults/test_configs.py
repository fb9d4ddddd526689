"""Descriptions that somebody damaged or made up: each is refused in a line, or read rightly, and quickly."""

import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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


Reading = Callable[[], object]


def model_folder(folder: Path) -> Path:
    torch.manual_seed(0)
    model = tiny.build(num_classes=3)
    even = {"counts": [4, 4, 4], "shift": [0.0] * 3, "in_head": [0.0] * 3, "prior": "data", "strength": 1.0}
    provenance = {"recipe": {"seed": 0}, "metrics": {"epoch": 1}, "balance": even, "versions": {"torch": "2"}}
    size = model.config.image_size
    Classifier(model, ("a", "b", "c"), Preprocess(size=size), 0.7, provenance).save(folder)
    return folder


def model_descriptions(here: Path, rng: random.Random) -> Iterator[Reading]:
    folder = model_folder(here / "model")
    text = (folder / "model.json").read_text()
    for _ in range(300):
        changed = mutations.mutate_json(text, rng)
        (folder / "model.json").write_text(changed, encoding="utf-8", errors="surrogatepass")
        yield partial(load, folder)


def recipes(here: Path, rng: random.Random) -> Iterator[Reading]:
    path, fields = here / "recipe.toml", {**runs.QUICK, "data": "photos", "lr": 0.001}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    values = ["-1", "0", "1e308", "nan", "inf", '"x"', "[]", "{}", "true", "10" + "0" * 400, "1979-05-27"]
    for count in range(300):
        name = rng.choice([*fields, "momentum", "beta2", "max_images", "fit", "image_size"])
        line = f"{name} = {rng.choice(values)}"
        if count % 2:
            path.write_text(mutations.mutate_text(text, rng), encoding="utf-8")
        else:
            path.write_text(text.replace(f"{name} =", f"{line} #") if name in fields else f"{text}{line}\n")
        yield partial(Recipe.load, path)


def cards(here: Path, rng: random.Random) -> Iterator[Reading]:
    text = Card.from_classifier(load(model_folder(here / "model")), "float32").to_json()
    for _ in range(300):
        yield partial(Card.from_json, mutations.mutate_json(text, rng), Path("model.onnx"))


def tables(here: Path, rng: random.Random) -> Iterator[Reading]:
    for columns in ("path,label", "path,label,split", "path,labels"):
        cells = [(f"{name}{i}.png", name, ("train", "val", "test")[i % 3]) for i in range(10) for name in "ab"]
        lines = [columns, *(",".join(row[: columns.count(",") + 1]) for row in cells)]
        for _ in range(150):
            (here / "all.csv").write_bytes(mutations.mutate_text("\n".join(lines) + "\n", rng).encode())
            yield partial(read_source, here / "all.csv")


def splits_and_groups(here: Path, rng: random.Random) -> Iterator[Reading]:
    table = split(read_source(runs.photos(here / "photos")), (0.6, 0.2, 0.2), 0)
    text = json.dumps({**split_to_dict(table), "contents": dict.fromkeys(table.paths, "00")})
    for _ in range(300):
        changed = mutations.mutate_json(text, rng)
        (here / "split.json").write_text(changed, encoding="utf-8", errors="surrogatepass")
        for read in (split_from_file, groups_from_file, read_contents):
            yield partial(read, here / "split.json")


@pytest.mark.parametrize(
    ("readings", "tried"),
    [(model_descriptions, 300), (recipes, 300), (cards, 300), (tables, 450), (splits_and_groups, 900)],
)
def test_what_was_damaged_is_read_or_refused_in_time(
    readings: Callable[[Path, random.Random], Iterator[Reading]], tried: int, tmp_path: Path
) -> None:
    count, wrong = 0, list[str]()
    for count, read in enumerate(readings(tmp_path, random.Random(1)), 1):
        started = time.monotonic()
        try:
            read()
        except VitkitError:
            pass
        except Exception as error:
            wrong.append(f"{count}: {type(error).__name__}: {str(error)[:200]}")
        if time.monotonic() - started > LONGEST:
            wrong.append(f"{count}: {time.monotonic() - started:.0f} s")
    assert (count, wrong) == (tried, [])
