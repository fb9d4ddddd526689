"""Compute features of images: what a model sees in them, as vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.model.build import Model
    from vitkit.model.network import Network

Features = Literal["head", "class", "mean", "patches"]


def read_features(model: Model, images: Tensor, what: Features) -> Tensor:
    """(B, C, height, width), preprocessed -> features, in float32, which keep no other tokens in memory.

    Args:
        model: the model, on the device of the images.
        images: what it sees.
        what: `head`, what the head reads (B, D); `class`, the class token (B, D); `mean`, the mean of the patches
            (B, D); `patches`, every patch (B, h * w, D), row by row.

    Raises:
        VitkitError: the model has no class token.
    """
    import torch

    from vitkit.model.network import Network

    if isinstance(model, Network):
        return _of_network(model, images, what)
    if what == "class" and not model.config.class_token:
        raise VitkitError("the model has no class token: take mean, patches or head")
    with torch.inference_mode():
        tokens = model.forward_features(images)  # (B, N, D)
        if what == "head":
            return model.forward_head(tokens, pre_logits=True).clone()  # of tokens it may be a view
        patches = tokens[:, model.config.prefix_tokens :]
        if what == "mean":
            return patches.mean(dim=1)
        return patches if what == "patches" else tokens[:, 0].clone()


def _of_network(model: Network, images: Tensor, what: Features) -> Tensor:
    import torch

    if what != "head":
        raise VitkitError(f"{model.config.full_name} has no tokens, of which {what} would be: take head")
    with torch.inference_mode():
        return model.forward_features(images).clone()
