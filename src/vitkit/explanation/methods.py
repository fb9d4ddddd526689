"""The registry of explanation methods. Importing this module does not import torch.

To add a method, write a function and add a row. The choices of the command line and the texts of pages
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
    description: str  # a description of the map for pages, one or two sentences
    module: str
    function: str  # the name of a function (model, images) -> (B, h, w) float32; for `heads`, (B, H, h, w)
    is_class_specific: bool = False  # whether the function also has the parameter `target`
    is_layer_specific: bool = False  # whether the function also has the parameter `layer`
    compares_classes: bool = False  # whether the map requires classes that exclude each other, not multi-label ones

    def __call__(self, model: object, images: Tensor, *arguments: object, **options: object) -> Tensor:
        """Compute the maps of images. `options` are keyword arguments of the function, such as `target` and `layer`."""
        compute: Callable[..., Tensor] = getattr(import_module(self.module), self.function)
        return compute(model, images, *arguments, **options)


HEADS = "heads"  # the method that computes one map per head; other methods compute one map per image


def methods_for(*, is_network: bool) -> dict[str, Method]:
    """Return the methods for a Vision Transformer, or for another library's network."""
    return NETWORK_METHODS if is_network else METHODS


def method_names() -> tuple[str, ...]:
    """Return the names that can be requested: every row, and `all`."""
    return (*METHODS, "all")


def by_layer() -> tuple[str, ...]:
    """Return the names of the methods whose map is specific to a layer."""
    return tuple(name for name, method in METHODS.items() if method.is_layer_specific)


_HOME = "vitkit.explanation"

_ROWS = (
    Method(
        name="gradient",
        description="Attention followed through all layers, weighted by its effect on this class.",
        module=f"{_HOME}.class_maps",
        function="gradient_rollout",
        is_class_specific=True,
    ),
    Method(
        name="rollout",
        description="Attention followed through all layers. It is the same for every class.",
        module=f"{_HOME}.attention",
        function="rollout",
    ),
    Method(
        name="raw",
        description="The attention of one layer, averaged over heads. It is the same for every class.",
        module=f"{_HOME}.attention",
        function="last_attention",
        is_layer_specific=True,
    ),
    Method(
        name="occlusion",
        description=(
            "How much less probable this class becomes when a square is covered. This is an experiment, not attention."
        ),
        module=f"{_HOME}.class_maps",
        function="occlusion",
        is_class_specific=True,
        compares_classes=True,
    ),
    Method(
        name=HEADS,
        description="The attention of each head in each layer. It is the same for every class.",
        module=f"{_HOME}.attention",
        function="head_maps",
        is_layer_specific=True,
    ),
)
METHODS = {method.name: method for method in _ROWS}
NETWORK_METHODS = {  # the methods for networks of other libraries, by the same names
    "gradient": Method(
        name="gradient",
        description=(
            "Grad-CAM: the last feature map before the pooling, each channel weighted by its effect on this class."
        ),
        module=f"{_HOME}.class_maps",
        function="grad_cam",
        is_class_specific=True,
    ),
    "occlusion": METHODS["occlusion"],
}
