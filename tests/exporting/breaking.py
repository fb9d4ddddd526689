"""Formats that make a mistake when they convert a model, or when they write its card."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vitkit.model import VisionTransformer

Break = Callable[[pytest.MonkeyPatch, ModuleType], None]


def in_model(change: Callable[[Any], object]) -> Break:
    """Let a format convert a changed copy of the model."""

    def apply(patch: pytest.MonkeyPatch, home: ModuleType) -> None:
        convert = home.convert

        def other(model: VisionTransformer, storage: Any) -> Any:
            copy = VisionTransformer(model.config).eval()
            copy.load_state_dict(model.state_dict())
            change(copy)
            return convert(copy, storage)

        patch.setattr(home, "convert", other)

    return apply


def in_card(old: str, new: str) -> Break:
    """Let a format write a changed card."""

    def apply(patch: pytest.MonkeyPatch, home: ModuleType) -> None:
        save = home.save

        def other(graph: Any, path: Path, card: str) -> None:
            assert old in card
            save(graph, path, card.replace(old, new, 1))

        patch.setattr(home, "save", other)

    return apply
