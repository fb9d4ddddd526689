"""The rows of docs/articles.md on pictures of attention."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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


def by_hand(done: Any) -> list[torch.Tensor]:
    return attention_by_hand(done.names["model"], done.names["images"])


def near(mine: Any, expected: Any) -> bool:
    own, other = torch.as_tensor(mine).detach().numpy(), expected.detach().numpy()
    return own.shape == other.shape and np.allclose(own, other, rtol=1e-3, atol=1e-5)


SHEETS = {"4.1": 1, "4.11": 2}  # and the number of photographs


@pytest.mark.usefixtures("drawn_pictures")
@pytest.mark.parametrize("number", SHEETS)
def test_it_is_a_sheet_of_photographs_and_their_attention(row: Any, number: str) -> None:
    for path in sorted(Path("flower_photos/red").iterdir())[2:]:
        path.unlink()
    row()
    (svg,) = Path().glob("sheet*/attention.svg")
    assert svg.read_text(encoding="utf-8").count("<image") == 2 * SHEETS[number]
    assert len(list(svg.parent.rglob("rollout.png"))) == SHEETS[number]


HOLDS: dict[str, Callable[[Any], bool]] = {
    "4.2": lambda done: near(done.value.flatten(1), rollout_by_hand(by_hand(done))),
    "4.5": lambda done: all(near(mine, own) for mine, own in zip(done.value, by_hand(done), strict=True)),
    "4.6": lambda done: near(done.value, by_hand(done)[0]),
    "4.12": lambda _: near(maps_of("gradient")["gradient"], torch.tensor(explained("gradient", "red"))),
    "4.13": lambda _: maps_of("occlusion")["occlusion"].shape == (2, 2),
    "4.14": lambda _: {"gradient", "rollout", "raw", "occlusion", "heads"} <= maps_of("all").keys(),
    "4.15": lambda _: any("distance" in name for name in stored(Path("anatomy/anatomy.npz"))),
    "4.16": lambda done: near(done.value, done.value.T) and near(done.value.diagonal(), torch.ones(16)),
    "4.17": lambda _: (30, 32) in {array.shape for array in stored(Path("map.npz")).values()},
    "4.18": lambda done: "flower_photos/red/img1.png" in "".join(done.out.splitlines()[:2]),
}


@pytest.mark.parametrize("number", HOLDS)
def test_it_holds(row: Any, number: str) -> None:
    assert HOLDS[number](row())


def explained(method: str, target: str) -> np.ndarray:
    return vitkit.load("runs/flowers").explain("tulip.png", method, target).maps[method]


def test_4_3_hooks(row: Any) -> None:
    kept: list[torch.Tensor] = []
    done = row(kept=kept)
    model, images = done.names["model"], done.names["images"]
    model(images)
    for mine, expected in zip(kept[:2], model.forward_layers(images), strict=True):
        torch.testing.assert_close(mine, expected)


def test_4_4_matrices_in_hooks(row: Any) -> None:
    done, kept = row(), []
    for block in done.names["model"].blocks:
        block.attn.attn_drop.register_forward_hook(lambda module, inputs, output: kept.append(output))
    done.names["model"](done.names["images"])
    for mine, expected in zip(kept[:2], by_hand(done), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


MAPS: dict[str, tuple[str, str, Callable[[list[torch.Tensor]], torch.Tensor]]] = {  # folder, name, and the oracle
    "4.7": ("heads", "heads", lambda matrices: matrices[0][0, :, 0, 1:]),
    "4.9": ("raw", "raw", lambda matrices: matrices[-1][0, :, 0, 1:].mean(0)),
    "4.10": ("overlay", "rollout", lambda matrices: rollout_by_hand(matrices)[0]),
}


@pytest.mark.parametrize("number", MAPS)
def test_a_map_is_that_of_the_matrices(row: Any, number: str) -> None:
    folder, name, oracle = MAPS[number]
    row()
    classifier = vitkit.load("runs/flowers")
    with Image.open("tulip.png") as picture:
        image = torch.from_numpy(classifier.preprocess(picture.convert("RGB")))[None]
    expected = oracle(attention_by_hand(classifier.model, image))
    assert near(maps_of(folder)[name].reshape(expected.shape), expected)
    assert list(Path(folder).rglob("*.png"))


@pytest.mark.usefixtures("drawn_pictures")
def test_4_8_a_film_through_the_layers(row: Any) -> None:
    row()
    with Image.open("film.gif") as film:
        assert film.n_frames == 2
