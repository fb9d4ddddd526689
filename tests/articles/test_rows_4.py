"""The rows of docs/articles.md on pictures of attention."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import vitkit


def attention_by_hand(model: Any, images: torch.Tensor) -> list[torch.Tensor]:
    """Eqs. 5 and 6 of the paper with the model's weights: (B, H, N, N) of each layer."""
    maps, tokens = [], model.embed(images)
    for block in model.blocks:
        B, N, D = tokens.shape
        heads = block.attn.num_heads
        q, k, _ = block.attn.qkv(block.norm1(tokens)).reshape(B, N, 3, heads, D // heads).permute(2, 0, 3, 1, 4)
        maps.append((q @ k.transpose(-2, -1) / (D // heads) ** 0.5).softmax(-1))
        tokens = block(tokens)
    return maps


def rollout_by_hand(maps: list[torch.Tensor]) -> torch.Tensor:
    joint = torch.eye(maps[0].shape[-1])
    for attention in maps:
        mean = attention.mean(1) + torch.eye(attention.shape[-1])
        joint = (mean / mean.sum(-1, keepdim=True)) @ joint
    torch.testing.assert_close(joint.sum(-1), torch.ones(joint.shape[:2]))
    return joint[:, 0, 1:]


def stored(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


def maps_of(folder: str) -> dict[str, np.ndarray]:
    (path,) = Path(folder).rglob("maps.npz")
    return stored(path)


def image_of_tulip() -> torch.Tensor:
    with Image.open("tulip.png") as picture:
        return torch.from_numpy(vitkit.load("runs/flowers").preprocess(picture.convert("RGB")))[None]


SHEETS = {"4.1": 1, "4.11": 2}  # and the number of photographs


@pytest.mark.usefixtures("drawn_pictures")
@pytest.mark.parametrize("number", SHEETS)
def test_it_is_a_sheet_of_photographs_and_their_attention(row: Any, number: str) -> None:
    for path in sorted(Path("flower_photos/red").iterdir())[2:]:
        path.unlink()
    row()
    (svg,) = Path().glob("sheet*/attention.svg")
    assert svg.read_text(encoding="utf-8").count("<image") == 2 * SHEETS[number]
    assert svg.with_suffix(".pdf").read_bytes().startswith(b"%PDF") and svg.with_suffix(".png").is_file()
    assert len(list(svg.parent.rglob("rollout.png"))) == SHEETS[number]


def test_4_6_matrix_of_a_layer(row: Any) -> None:
    done = row()
    expected = attention_by_hand(done.names["model"], done.names["images"])[0]
    torch.testing.assert_close(done.value, expected, rtol=1e-4, atol=1e-6)


HOLDS: dict[str, Callable[[Any], bool]] = {
    "4.13": lambda _: maps_of("occlusion")["occlusion"].shape == (2, 2),
    "4.14": lambda _: {"gradient", "rollout", "raw", "occlusion", "heads"} <= maps_of("all").keys(),
    "4.16": lambda done: (
        torch.allclose(done.value, done.value.T) and torch.allclose(done.value.diagonal(), torch.ones(16))
    ),
    "4.18": lambda done: "flower_photos/red/img1.png" in "".join(done.out.splitlines()[:2]),
}


@pytest.mark.parametrize("number", HOLDS)
def test_it_holds(row: Any, number: str) -> None:
    assert HOLDS[number](row())


def test_4_2_rollout(row: Any) -> None:
    done = row()
    expected = rollout_by_hand(attention_by_hand(done.names["model"], done.names["images"]))
    torch.testing.assert_close(done.value.flatten(1), expected.detach(), rtol=1e-4, atol=1e-6)


def test_4_3_hooks(row: Any) -> None:
    kept: list[torch.Tensor] = []
    done = row(kept=kept)
    model, images = done.names["model"], done.names["images"]
    model(images)
    for mine, expected in zip(kept, model.forward_layers(images), strict=False):
        torch.testing.assert_close(mine, expected)
    assert len(kept) == 4, "of two layers, twice"


def test_4_4_matrices_in_hooks(row: Any) -> None:
    done, kept = row(), []
    model, images = done.names["model"], done.names["images"]
    for block in model.blocks:
        block.attn.attn_drop.register_forward_hook(lambda module, inputs, output: kept.append(output))
    model(images)
    for mine, expected in zip(kept, attention_by_hand(model, images), strict=False):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)
    assert len(kept) == 4, "two layers, whose matrices the oracle reads once more"


def test_4_5_matrices_of_every_layer(row: Any) -> None:
    done = row()
    for mine, expected in zip(done.value, attention_by_hand(done.names["model"], done.names["images"]), strict=True):
        torch.testing.assert_close(mine, expected.detach(), rtol=1e-4, atol=1e-6)


MAPS: dict[str, tuple[str, str, Callable[[list[torch.Tensor]], torch.Tensor]]] = {  # folder, name, and the oracle
    "4.7": ("heads", "heads", lambda matrices: matrices[0][0, :, 0, 1:]),
    "4.9": ("raw", "raw", lambda matrices: matrices[-1][0, :, 0, 1:].mean(0)),
    "4.10": ("overlay", "rollout", lambda matrices: rollout_by_hand(matrices)[0]),
}


@pytest.mark.parametrize("number", MAPS)
def test_a_map_is_that_of_the_matrices(row: Any, number: str) -> None:
    folder, name, oracle = MAPS[number]
    row()
    expected = oracle(attention_by_hand(vitkit.load("runs/flowers").model, image_of_tulip())).detach()
    np.testing.assert_allclose(maps_of(folder)[name].reshape(expected.shape), expected, rtol=1e-3, atol=1e-5)
    assert list(Path(folder).rglob("*.png"))


@pytest.mark.usefixtures("drawn_pictures")
def test_4_8_a_film_through_the_layers(row: Any) -> None:
    row()
    with Image.open("film/layers.gif") as film:
        assert film.n_frames == 2


def test_4_12_pixels_that_speak_for_a_class(row: Any) -> None:
    row()
    explanation = vitkit.load("runs/flowers").explain("tulip.png", "gradient", "red")
    np.testing.assert_allclose(maps_of("gradient")["gradient"], explanation.maps["gradient"], atol=1e-5)
    other = vitkit.load("runs/flowers").explain("tulip.png", "gradient", "blue").maps["gradient"]
    assert not np.allclose(other, explanation.maps["gradient"], atol=1e-6)


def test_4_15_figure_7(row: Any) -> None:
    row()
    numbers = stored(Path("anatomy/anatomy.npz"))
    model = vitkit.load("runs/flowers").model
    positions = F.normalize(model.pos_embed[0, 1:], dim=-1)
    expected = (positions @ positions.T).reshape(2, 2, 2, 2).detach()
    similarity = next(array for array in numbers.values() if array.shape == (2, 2, 2, 2))
    np.testing.assert_allclose(similarity, expected, atol=1e-5)
    assert any("distance" in name for name in numbers)


def test_4_17_features(row: Any) -> None:
    row()
    features = next(array for array in stored(Path("map.npz")).values() if array.shape == (30, 32))
    assert np.isfinite(features).all() and (features.std(axis=1) > 0).all()
