"""Formats that make a mistake when they convert a model, or when they write its card."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

from vitkit.inference.backends.span import WHOLE
from vitkit.model import VisionTransformer

Break = Callable[[pytest.MonkeyPatch, ModuleType], None]


def in_model(change: Callable[[Any], object], *in_graph: tuple[str, Any]) -> Break:
    """Let a format convert a changed copy of the model.

    A conversion to ONNX takes ten seconds. So its graph is changed if `in_graph` says how to make the changed logits
    from those of the model: operations, each of which takes the logits and a constant.
    """

    def apply(patch: pytest.MonkeyPatch, home: ModuleType) -> None:
        convert = home.convert

        def other(model: VisionTransformer, storage: Any) -> Any:
            if in_graph and home.__name__.endswith("onnx_format"):
                converted = convert(model, storage)
                return _followed(converted, in_graph) if storage.span == WHOLE else converted
            copy = VisionTransformer(model.config).eval()
            copy.load_state_dict(model.state_dict())
            change(copy)
            return convert(copy, storage)

        patch.setattr(home, "convert", other)

    return apply


def _followed(converted: Any, operations: tuple[tuple[str, Any], ...]) -> Any:
    for number, (operation, constant) in enumerate(operations):
        before, other = f"logits_{number}", f"constant_{number}"
        for node in converted.graph.node:
            node.output[:] = [before if name == "logits" else name for name in node.output]
        axis = {"axis": 1} if operation == "Gather" else {}
        converted.graph.initializer.append(onnx.numpy_helper.from_array(constant, other))
        converted.graph.node.append(onnx.helper.make_node(operation, [before, other], ["logits"], **axis))
    return converted


def in_card(change: Callable[[str], str]) -> Break:
    """Let a format write a changed card."""

    def apply(patch: pytest.MonkeyPatch, home: ModuleType) -> None:
        save = home.save

        def other(graph: Any, path: Path, card: str) -> None:
            save(graph, path, change(card))

        patch.setattr(home, "save", other)

    return apply
