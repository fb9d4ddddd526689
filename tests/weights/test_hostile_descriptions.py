"""Descriptions and names that claim what no model has: refused in a line, before anything is made of it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mutations
import tiny
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, read_contents, split_from_file
from vitkit.errors import VitkitError
from vitkit.model import ViTConfig
from vitkit.training import Recipe
from vitkit.weights import load, read_checkpoint

HUGE = 4_000_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "model"
    model = tiny.build(num_classes=3)
    Classifier(model, ("a", "b", "c"), Preprocess(size=model.config.image_size)).save(path)
    return path


def changed(folder: Path, target: Path, place: str, value: Any) -> Path:
    target.mkdir()
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    described = json.loads((folder / "model.json").read_text())
    *above, last = place.split(".")
    parent = described
    for step in above:
        parent = parent[step]
    parent[last] = value
    (target / "model.json").write_text(json.dumps(described))
    return target


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("temperature", value) for value in ("1", None, True, 0, float("nan"), 10**400)),
        *(("classes", value) for value in ("abc", [1, 2, 3], ["a", "b", None], ["a", "b", "\ud800"])),
        *(("provenance", value) for value in ([], "none", {"recipe": 3}, {"balance": [1]})),
        ("preprocess", []),
        ("preprocess.mean", "abc"),
        ("preprocess.mean", [0.5, 0.5, "0.5"]),
        ("preprocess.std", [0.5, 0.5, float("inf")]),
        ("preprocess.size", [HUGE, HUGE]),
        ("preprocess.size", HUGE),
        ("preprocess.crop_pct", 1e-320),
        ("preprocess.fit", []),
        ("config", None),
        ("config.layers", 10**9),
        ("config.layers", 1000),
        *((f"config.{name}", HUGE) for name in ("hidden_size", "mlp_size", "num_classes", "registers")),
        ("config.image_size", [HUGE, HUGE]),
        ("config.stem", [10**9]),
        ("config.conv_layers", [10**18]),
        ("config.layer_scale", 10**400),
    ],
)
def test_descriptions_of_other_values_are_refused_quickly(folder: Path, tmp_path: Path, place: str, value: Any) -> None:
    started = time.monotonic()
    with pytest.raises(VitkitError) as caught:
        load(changed(folder, tmp_path / "model", place, value))
    assert str(tmp_path) in str(caught.value) and len(str(caught.value)) < 800
    assert time.monotonic() - started < 10


def test_what_is_nested_too_deeply_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text(mutations.DEEP)
    (tmp_path / "recipe.toml").write_text(f"data = {mutations.DEEP}")
    target = changed(folder, tmp_path / "model", "temperature", 1.0)
    (target / "model.json").write_text(mutations.DEEP)
    reads: list[tuple[Callable[[Path], object], Path]] = [
        *((load, target), (split_from_file, tmp_path / "split.json")),
        *((read_contents, tmp_path / "split.json"), (Recipe.load, tmp_path / "recipe.toml")),
    ]
    for read, path in reads:
        with pytest.raises(VitkitError, match="deep"):
            read(path)


@pytest.mark.parametrize("name", ["lr", "epochs", "seed"])
def test_numbers_beyond_any_are_refused_in_recipes(name: str) -> None:
    for value in (10**400, -(10**400)):
        with refused("text.value-wrong", name):
            Recipe(**{name: value})


@pytest.mark.parametrize(
    "name",
    [
        *("blocks.999999999.norm1.weight", f"blocks.{'9' * 5000}.norm1.weight", "blocks.999.norm1.weight"),
        *("encoder.layers.encoder_layer_999999999.ln_1.weight", "vit.encoder.layer.999999999.layernorm_before.weight"),
        "patch_embed.backbone.stages.0.blocks.999999999.conv1.weight",
    ],
)
def test_a_name_as_of_a_deep_model_is_refused_quickly(tmp_path: Path, name: str) -> None:
    state = {key: value.clone() for key, value in tiny.build().state_dict().items()}
    save_file({**state, name: torch.zeros(32)}, tmp_path / "a.safetensors")
    started = time.monotonic()
    with pytest.raises(VitkitError):
        load(tmp_path / "a.safetensors", image_size=(12, 16))
    assert time.monotonic() - started < 10


def test_a_stack_without_numbers_may_not_be_deep(tmp_path: Path) -> None:
    names = [f"params/Transformer/encoderblock/{own}" for own in ("a/scale", "b/bias")]
    np.savez(tmp_path / "a.npz", **{name: np.zeros((10**9, 0), np.float32) for name in names})
    with refused("weights.tensor-misnamed"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("fields", [{"layers": 1001}, {"hidden_size": 2**25, "heads": 1}, {"image_size": 2**20 + 16}])
def test_what_no_model_has_cannot_be_configured(fields: dict[str, Any]) -> None:
    with refused("model.size-too-large"):
        ViTConfig(**fields)


INDICES = {"model.safetensors.index.json": "w.safetensors", "pytorch_model.bin.index.json": "w.bin"}


def sharded(place: Path, index: str, shard: Any) -> Path:
    """A folder of a hub whose index names `shard`; beside it `private`, with weights that are nobody's business."""
    for folder in (place / "given", place / "private", place / "given" / "below"):
        folder.mkdir(parents=True)
        save_file({"a": torch.ones(2)}, folder / "w.safetensors")
        torch.save({"a": torch.ones(2)}, folder / "w.bin")
    (place / "given" / index).write_text(json.dumps({"weight_map": {"a": shard} if shard is not None else {}}))
    return place / "given"


@pytest.mark.parametrize("index", INDICES)
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, index: str) -> None:
    outside = (
        "../private/{}",
        "{place}/private/{}",
        "below/{}",
        "./{}",
        "..",
        ".",
        "",
        "..\\private\\{}",
        "C:{}",
        "w\0",
    )
    for at, shard in enumerate((*outside, "w\0", 3, ["{}"], None)):
        place = tmp_path / str(at)
        if isinstance(shard, str):
            shard = shard.replace("{place}", str(place)).replace("{}", INDICES[index])
        with refused("weights.index-invalid" if isinstance(shard, str | int) else "weights.file-damaged", index):
            read_checkpoint(sharded(place, index, shard))
    assert list(read_checkpoint(sharded(tmp_path / "a", index, INDICES[index])).tensors) == ["a"]


def test_shards_may_be_links_as_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    folder = sharded(tmp_path, "model.safetensors.index.json", "w.safetensors")
    (folder / "w.safetensors").rename(tmp_path / "blob")
    (folder / "w.safetensors").symlink_to("../blob")
    assert list(read_checkpoint(folder).tensors) == ["a"]
