"""Gradient class maps of convolutional networks: Grad-CAM (arXiv 1610.02391, sec. 3).

    alpha_k = 1/Z sum_ij dy / dA^k_ij      eq. 1: how much the class's logit y grows with map k, on average
    L       = ReLU(sum_k alpha_k A^k)      eq. 2

Shapes: B batch, C channels, h x w the last map of features.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.explanation.attention import twin
from vitkit.explanation.gradient import Target, check_head, find_targets
from vitkit.model.network import Network
from vitkit.model.vit import Attention


@torch.inference_mode(mode=False)  # autograd refuses what was made in inference mode
@torch.enable_grad()
def grad_cam(model: nn.Module, images: Tensor, target: Target = None) -> Tensor:
    """Where in the last map of features a class comes from: (B, h, w), not normalised.

    Args:
        model: a network of another library; its mode and its gradients stay as they are.
        images: (B, C, height, width), preprocessed.
        target: a class for each image (B,), or one for all; None is the class that the model predicts.

    Raises:
        VitkitError: there is no such class, the model has no head, or no map of features comes before it.
    """
    if not isinstance(model, Network):
        raise VitkitError("Grad-CAM is of convolutional networks; take gradient")
    check_head(model.config)
    check_map(model)
    still = twin(model, Attention)
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _given: object, made: Tensor) -> Tensor:
        seen.append(made.detach().requires_grad_())
        return seen[-1].clone()  # what follows may change it in place

    place = still.network.get_submodule(str(model.anatomy.map))
    place._forward_hooks = OrderedDict()  # which the twin has in common with the model
    place.register_forward_hook(keep)
    images = images.detach().to(next(still.parameters()))
    logits = still(images.clone() if images.is_inference() else images).float()
    targets = find_targets(model.config, target, logits).clone()
    (gradient,) = torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), seen[-1])  # (B, C, h, w)
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    return (weights * seen[-1].detach()).sum(dim=1).relu().float()


def check_map(model: Network) -> None:
    """Refuse a network without a map of features ahead of its head.

    Raises:
        VitkitError: it has none: its last parts attend, or the images are too small.
    """
    if model.anatomy.map is None:
        raise VitkitError(
            f"{model.config.full_name} has no map of features ahead of its head, which gradient needs: take occlusion"
        )
