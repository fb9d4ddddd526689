"""Compute features: vectors that describe images."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.model.build import Model
    from vitkit.model.network import Network

Features = Literal["head", "class", "mean", "patches"]


def read_features(model: Model, images: Tensor, what: Features) -> Tensor:
    """Compute features of preprocessed images (B, C, height, width).

    Args:
        model: the model, on the device of the images.
        images: the preprocessed images.
        what: `head` for the input of the head (B, D), `class` for the class token (B, D), `mean` for the mean of the
            patches (B, D), or `patches` for every patch (B, h * w, D), row by row, in a grid of h x w patches.

    Raises:
        VitkitError: the model does not have the tokens that `what` requires.
    """
    import torch

    from vitkit.model.network import Network

    if isinstance(model, Network):
        return _of_network(model, images, what)
    if what == "class" and not model.config.class_token:
        raise VitkitError("the model has no class token: use mean, patches or head")
    with torch.inference_mode():
        tokens = model.forward_features(images)  # (B, N, D)
        if what == "head":
            return model.forward_head(tokens, pre_logits=True).clone()  # it may be a view of all tokens
        patches = tokens[:, model.config.prefix_tokens :]
        if what == "mean":
            return patches.mean(dim=1)
        return patches if what == "patches" else tokens[:, 0].clone()


def with_features(model: Model) -> Model:
    """Return a model that outputs its logits followed by the input of its head: (B, K + D) instead of (B, K).

    A `FeatureHead` replaces the head. The result is an ordinary model, so every backend and export format supports it.
    It shares its weights with `model`.

    Raises:
        VitkitError: the model has no head.
    """
    from vitkit.model.layers import FeatureHead
    from vitkit.model.network import Network

    if model.head is None:
        raise VitkitError("the model has no head, so there are no logits: train one, or load with num_classes")
    wide = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    holder, names = (wide.network, [wide.anatomy.head]) if isinstance(wide, Network) else (wide, ["head", "head_dist"])
    for parent, _, name in (each.rpartition(".") for each in names):
        if (head := getattr(holder.get_submodule(parent), name)) is not None:
            holder.get_submodule(parent)._modules[name] = FeatureHead(head)
    wide.config = model.config.replace(num_classes=model.config.num_classes + model.head.in_features)
    return wide.eval()


def classes_and_features(model: Model) -> tuple[int, int]:
    """Return the number of logits K and the number of features D that a model outputs.

    D is 0 unless the model has a `FeatureHead` (`with_features`).
    """
    from vitkit.model.layers import FeatureHead

    head = model.head
    return (head.classes, head.in_features) if isinstance(head, FeatureHead) else (model.config.num_classes, 0)


def _of_network(model: Network, images: Tensor, what: Features) -> Tensor:
    import torch

    if what != "head":
        raise VitkitError(f"{model.config.full_name} has no tokens, which {what} requires: use head")
    with torch.inference_mode():
        return model.forward_features(images).clone()
