"""What is kept of an image's tokens is what was asked for, not the whole of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.inference import flow
from vitkit.training import compute_features

TOKENS, BATCHES, SIZE = (8, 256, 512), 40, 4 * 2**20  # 4 MiB of tokens a batch, 160 in all


class Wide(nn.Module):
    """Answers each image with many tokens, the first of which is what the head reads."""

    config = SimpleNamespace(image_size=(1, 1))

    def forward_features(self, images: Tensor) -> Tensor:
        first = images.flatten(1).sum(dim=1)
        return torch.ones(len(images), *TOKENS[1:]) * first[:, None, None]

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        assert pre_logits
        return tokens[:, 0]


def grown(work: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes that the process holds more than before, and what the work gave."""

    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    before = held()
    outcome = work()
    return held() - before, outcome


images = [(torch.full((1, 1, 1), float(i)), i % 3) for i in range(BATCHES * TOKENS[0])]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for the memory it holds")
def test_features_of_many_images_are_one_array() -> None:
    recipe: Any = SimpleNamespace(batch_size=TOKENS[0], workers=0, device="cpu")
    more, (features, labels) = grown(lambda: compute_features(Wide(), images, recipe, "float32", lambda *_: None))  # type: ignore[arg-type]
    assert more < 12 * SIZE
    assert features[:, 0].tolist() == [float(i) for i in range(len(images))]
    assert labels.tolist() == [i % 3 for i in range(len(images))]
    assert not features.is_inference() and not labels.is_inference()


@pytest.mark.parametrize("config", [{}, {"class_token": False, "pool": "gap"}, {"pool": "token+gap"}])
@pytest.mark.parametrize("what", ["head", "class", "mean"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_feature_holds_no_other_token(config: dict[str, Any], what: Any, batch: int) -> None:
    model = build(image_size=(16, 16), **config)
    if what == "class" and not model.config.class_token:
        pytest.skip("there is none")
    found = Classifier(model, tuple("abcdefg"), Preprocess(size=(16, 16))).features(torch.rand(batch, 3, 16, 16), what)
    assert found.untyped_storage().nbytes() == found.nbytes


def test_a_row_that_is_kept_keeps_its_batch_of_features_alone() -> None:
    classifier = Classifier(build(image_size=(16, 16)), tuple("abcdefg"), Preprocess(size=(16, 16)))
    read = torch.rand(3, 16, 16)
    rows = flow(map(str, range(20)), lambda _: read, classifier.features, 4, is_concurrent=False)
    for _, row in rows:
        assert not isinstance(row, str)
        held = row.base if row.base is not None else row
        assert held.nbytes <= 4 * row.nbytes
