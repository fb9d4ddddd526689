"""`--method probe-sgd`: the backbone is frozen, and its head is trained by gradient as any other model is."""

from __future__ import annotations

from torch import nn

from vitkit.model.build import Model
from vitkit.model.network import Network
from vitkit.model.vit import VisionTransformer

_HEADS = ("pre_logits", "head", "head_dist")


def heads_of(model: nn.Module) -> list[nn.Module]:
    """What makes logits of features: the head, a distilled model's second one, the representation layer if kept."""
    if isinstance(model, Network):
        return [] if model.head is None else [model.head]
    # Into the space of texts leads a layer of the backbone's.
    is_shared = isinstance(model, VisionTransformer) and model.config.representation == "unit"
    heads = _HEADS[1:] if is_shared else _HEADS
    return [module for name, module in model.named_children() if name in heads]


def freeze_backbone(model: Model) -> list[str]:
    """Freeze all but the heads.

    Returns:
        The names of the tensors that are trained.
    """
    trained = {id(parameter) for module in heads_of(model) for parameter in module.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad = id(parameter) in trained
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]
