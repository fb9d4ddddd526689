"""The explanation methods, one row each. Importing this module does not import torch.

To add a method, add a function and a row. The command line derives its choices from this table, and pages their texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Method:
    """A method that makes a map of an image.

    Attributes:
        name: the name by which it is requested.
        tells: what the map says, in a sentence or two, for the page.
        module: the module where its function is.
        function: (model, images) -> (B, h, w) float32; of `heads`, (B, H, h, w).
        of_class: the function takes `target` as well, and its map is of that class.
        of_layer: it takes `layer` as well, and its map is of that layer.
        of_rivals: it asks how one class gives way to others, so a multi-label model has no answer.
    """

    name: str
    tells: str
    module: str
    function: str
    of_class: bool = False
    of_layer: bool = False
    of_rivals: bool = False

    def __call__(self, model: object, images: Tensor, *arguments: object, **options: object) -> Tensor:
        """Compute the map; the options are `target` and `layer`, if the method takes them, and its own."""
        compute: Callable[..., Tensor] = getattr(import_module(self.module), self.function)
        return compute(model, images, *arguments, **options)


METHODS: dict[str, Method] = {}
OF_NETWORKS: dict[str, Method] = {}  # of these names, what they are for another library's network
HEADS = "heads"  # which makes one map for each head, where the others make one of all


def register(method: Method) -> None:
    """Add a row; a command line that is imported afterwards offers it.

    Raises:
        ValueError: there is one of this name.
    """
    if method.name in method_names():
        raise ValueError(f"there is a method {method.name!r} already")
    METHODS[method.name] = method


def methods_for(*, is_network: bool) -> dict[str, Method]:
    """Return the methods for a Vision Transformer, or for another library's network."""
    return OF_NETWORKS if is_network else METHODS


def method_names() -> tuple[str, ...]:
    """Return the names that can be requested: every row, and `all`."""
    return (*METHODS, "all")


def class_specific() -> tuple[str, ...]:
    """Return the methods whose map is of one class."""
    return tuple(name for name, method in METHODS.items() if method.of_class)


def by_layer() -> tuple[str, ...]:
    """Return the methods whose map is of one layer."""
    return tuple(name for name, method in METHODS.items() if method.of_layer)


_HOME = "vitkit.explanation"

for _row in (
    Method(
        "gradient",
        "Attention followed through all layers, weighed by what it does for this class.",
        f"{_HOME}.gradient",
        "gradient_rollout",
        of_class=True,
    ),
    Method(
        "rollout",
        "Attention followed through all layers. The same whatever class is asked about.",
        f"{_HOME}.attention",
        "rollout",
    ),
    Method(
        "raw",
        "What the model attends to in one layer, heads averaged. The same whatever class is asked about.",
        f"{_HOME}.attention",
        "last_attention",
        of_layer=True,
    ),
    Method(
        "gradient-attention",
        "The attention of one layer, weighed by what it does for this class.",
        f"{_HOME}.gradient",
        "gradient_attention",
        of_class=True,
        of_layer=True,
    ),
    Method(
        "occlusion",
        "By how much this class becomes less probable when a square is covered. Not attention: an experiment.",
        f"{_HOME}.occluding",
        "occlusion",
        of_class=True,
        of_rivals=True,
    ),
    Method(
        HEADS,
        "What each head of each layer attends to, whatever class is asked about.",
        f"{_HOME}.attention",
        "head_maps",
        of_layer=True,
    ),
):
    register(_row)

OF_NETWORKS |= {
    "gradient": Method(
        "gradient",
        "Grad-CAM: the last map of features before they are pooled, each channel weighed by what it does for this "
        "class.",
        f"{_HOME}.gradient",
        "grad_cam",
        of_class=True,
    ),
    "occlusion": METHODS["occlusion"],
}
