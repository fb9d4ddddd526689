"""`--method probe-sgd`: the backbone is frozen, and its head is trained by gradient as any other model is."""

from __future__ import annotations

from torch import nn

from vitkit.model.vit import VisionTransformer

_HEADS = ("pre_logits", "head", "head_dist")


def heads_of(model: VisionTransformer) -> list[nn.Module]:
    """What makes logits of features: the head, a distilled model's second one, the representation layer if kept."""
    return [module for name, module in model.named_children() if name in _HEADS]


def freeze_backbone(model: VisionTransformer) -> list[str]:
    """Freeze all but the heads.

    Returns:
        The names of the tensors that are trained.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.split(".")[0] in _HEADS
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]
