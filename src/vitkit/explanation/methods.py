"""The registry of explanation methods. Importing this module does not import torch.

To add a method, write a function and add a row to `METHODS`. The choices of the command line and the texts of pages
come from this registry.
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
    """An explanation method, which computes a map of an image."""

    name: str
    tells: str  # a description of the map for pages, one or two sentences
    module: str
    function: str  # the name of a function (model, images) -> (B, h, w) float32; for `heads`, (B, H, h, w)
    of_class: bool = False  # whether the function also takes `target`, because its map is specific to a class
    of_layer: bool = False  # whether the function also takes `layer`, because its map is specific to a layer
    of_rivals: bool = False  # whether the map compares a class with rival classes, as no multi-label model has

    def __call__(self, model: object, images: Tensor, *arguments: object, **options: object) -> Tensor:
        """Compute the maps of images. `options` are keyword arguments of the function, such as `target` and `layer`."""
        compute: Callable[..., Tensor] = getattr(import_module(self.module), self.function)
        return compute(model, images, *arguments, **options)


METHODS: dict[str, Method] = {}
OF_NETWORKS: dict[str, Method] = {}  # the methods for networks of other libraries, by the same names
HEADS = "heads"  # the method that computes one map per head; other methods compute one map per image


def register(method: Method) -> None:
    """Add a method. The command line offers the method if it is registered before the command line is imported.

    Raises:
        ValueError: a method with this name exists already.
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
    """Return the names of the methods whose map is specific to a class."""
    return tuple(name for name, method in METHODS.items() if method.of_class)


def by_layer() -> tuple[str, ...]:
    """Return the names of the methods whose map is specific to a layer."""
    return tuple(name for name, method in METHODS.items() if method.of_layer)


_HOME = "vitkit.explanation"

for _row in (
    Method(
        "gradient",
        "Attention followed through all layers, weighted by its effect on this class.",
        f"{_HOME}.class_maps",
        "gradient_rollout",
        of_class=True,
    ),
    Method(
        "rollout",
        "Attention followed through all layers. It is the same for every class.",
        f"{_HOME}.attention",
        "rollout",
    ),
    Method(
        "raw",
        "The attention of one layer, averaged over heads. It is the same for every class.",
        f"{_HOME}.attention",
        "last_attention",
        of_layer=True,
    ),
    Method(
        "gradient-attention",
        "The attention of one layer, weighted by its effect on this class.",
        f"{_HOME}.class_maps",
        "gradient_attention",
        of_class=True,
        of_layer=True,
    ),
    Method(
        "occlusion",
        "How much less probable this class becomes when a square is covered. This is an experiment, not attention.",
        f"{_HOME}.class_maps",
        "occlusion",
        of_class=True,
        of_rivals=True,
    ),
    Method(
        HEADS,
        "The attention of each head in each layer. It is the same for every class.",
        f"{_HOME}.attention",
        "head_maps",
        of_layer=True,
    ),
):
    register(_row)

OF_NETWORKS |= {
    "gradient": Method(
        "gradient",
        "Grad-CAM: the last feature map before the pooling, each channel weighted by its effect on this class.",
        f"{_HOME}.class_maps",
        "grad_cam",
        of_class=True,
    ),
    "occlusion": METHODS["occlusion"],
}
