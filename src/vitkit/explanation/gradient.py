"""Methods that use the gradient of a class: attention weighed by it, and Grad-CAM for convolutional networks.

The relevance of a layer is the mean over heads of the positive part of A times the gradient of the class's logit with
respect to A (arXiv 2012.09838 and 2103.15679, sec. 3.1). The forward pass stores only the input of each layer; on the
way back, one layer at a time is computed again with explicit attention, so there are never more than one layer's
matrices.

Grad-CAM (arXiv 1610.02391, sec. 3) weighs each channel of the last map of features by the mean gradient of the class's
logit (eq. 1) and keeps the positive part of their sum (eq. 2).

Shapes: B batch, H heads, N tokens, D hidden size, K classes, C channels, h x w patch grid or last map of features.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.explanation.attention import attending, exact_matrix, find_layer, plain, prepare, readers, to_grid, twin
from vitkit.model.network import Network
from vitkit.model.network_config import Config
from vitkit.model.vit import Attention, VisionTransformer

Target = Tensor | int | None  # a class for each image, or one for all; None is the class that the model predicts


class WrittenAttention(Attention):
    """Attention written out: eq. 6 in float32, with the matrix (B, H, N, N) kept in `seen` for its gradient."""

    seen: Tensor

    def attend_within(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend to all tokens, with weights of 0 outside the windows, so that there is one matrix."""
        return self.attend(q, k, v, bias if self.windows is None else self.windows.masked(bias, q))

    def matrix(self, q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
        self.seen = exact_matrix(self, q, k, bias)
        return self.seen.to(q.dtype)


def gradient_rollout(model: nn.Module, images: Tensor, target: Target = None) -> Tensor:
    """Follow the relevance of a class through all layers: (B, h, w), not normalised.

    R <- R + relevance R, from the identity, first layer to last. Here one row of R is followed, last layer to first.

    Args:
        model: compiled or not, of any precision, under autocast or not; its mode and its gradients stay as they are.
        images: (B, C, height, width), preprocessed.
        target: a class for each image (B,), or one for all; None is the class that the model predicts.

    Returns:
        The patches' entries of the class token's row; of the rows that the head reads (`readers`), where it reads more.

    Raises:
        VitkitError: there is no such class, the model has no head, or no layer attends.
    """
    config = plain(model).config
    row = readers(config).to(images.device)  # (N,), then (B, N)
    for _, relevance in _relevances(model, images, target):
        row = row.to(relevance)
        row = row + _times(row, relevance)
    return to_grid(row, config)


def gradient_attention(model: nn.Module, images: Tensor, target: Target = None, layer: int = -1) -> Tensor:
    """Return what the head's token attends to in one layer, weighted by its effect on a class: (B, h, w).

    It does not tell from where the tokens of that layer got what they hold, least of all with mean pooling.

    Args:
        model: see `gradient_rollout`.
        images: (B, C, height, width), preprocessed.
        target: a class for each image (B,), or one for all; None is the class that the model predicts.
        layer: counted from the end where negative; -1 is the last that attends.

    Raises:
        VitkitError: there is no such class or layer, the model has no head, or the layer has no attention.
    """
    config = plain(model).config
    for number, relevance in _relevances(model, images, target):
        if number == find_layer(config, layer):
            return to_grid(_times(readers(config).to(relevance), relevance), config)
    raise AssertionError("find_layer names a layer that attends")


def find_targets(config: Config, target: Target, logits: Tensor) -> Tensor:
    """Return the class of each image, (B,), where the logits are (B, K).

    Raises:
        VitkitError: there is no such class, or not one for each image.
    """
    if target is None:
        return logits.argmax(dim=-1)
    targets = torch.as_tensor(target, device=logits.device)
    if targets.is_floating_point() or targets.dtype == torch.bool or targets.shape not in ((), (len(logits),)):
        raise VitkitError(
            f"target must be one class or one for each of the {len(logits)} images, as whole numbers, not {target!r}"
        )
    if len(logits) and not bool(((targets >= 0) & (targets < config.num_classes)).all()):
        raise VitkitError(f"there is no class {target!r}: there are 0 to {config.num_classes - 1}")
    return targets.long().expand(len(logits))


def check_head(config: Config) -> None:
    """Refuse a model that names no class."""
    if config.num_classes == 0:
        raise VitkitError("the model has no head, so there is no class to explain; take rollout or raw attention")


def _relevances(model: nn.Module, images: Tensor, target: Target) -> Iterator[tuple[int, Tensor]]:
    """Yield the index and the relevance (B, N, N) of each layer with attention, last to first."""
    check_head(plain(model).config)
    copied, inputs = _forward(model, images)
    gradient = _enter(copied, inputs.pop(), target)
    lowest = attending(copied.config)[0]
    for layer in range(copied.config.layers - 1, lowest - 1, -1):
        relevance, gradient = _back(copied, layer, inputs.pop(), gradient)
        if relevance is not None:
            yield layer, relevance


@torch.inference_mode(mode=False)  # autograd refuses what was made in inference mode
@torch.no_grad()
def _forward(model: nn.Module, images: Tensor) -> tuple[VisionTransformer, list[Tensor]]:
    """Return a twin of the model, the input of each layer and the output of the last, (B, N, D) each."""
    copied, x = prepare(model, images, WrittenAttention)
    copied.fused_attention, inputs = True, [x]
    for layer in range(copied.config.layers):
        inputs.append(copied.layer(layer, inputs[-1]))
    return copied, inputs


@torch.inference_mode(mode=False)
@torch.enable_grad()
def _enter(model: VisionTransformer, tokens: Tensor, target: Target) -> Tensor:
    """Return the gradient of each image's target logit with respect to the last layer's output, (B, N, D)."""
    tokens.requires_grad_()
    logits = model.forward_head(model.norm(tokens))  # (B, K)
    targets = find_targets(model.config, target, logits).clone()  # inference mode may have made them, too
    return torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), tokens)[0]


@torch.inference_mode(mode=False)
@torch.enable_grad()
def _back(model: VisionTransformer, layer: int, x: Tensor, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
    """Compute a layer's relevance and the gradient of its input from the gradient of its output."""
    x.requires_grad_()
    attention = model.blocks[layer].attn
    if not isinstance(attention, WrittenAttention):
        return None, torch.autograd.grad(model.layer(layer, x), x, gradient)[0]
    attention.fused = False
    output, seen = model.layer(layer, x), attention.seen
    del attention.seen
    by_attention, by_input = torch.autograd.grad(output, (seen, x), gradient)
    return by_attention.mul_(seen.detach()).relu_().mean(dim=1), by_input


def _times(row: Tensor, relevance: Tensor) -> Tensor:
    """(N,) or (B, N) times (B, N, N) -> (B, N), in float32."""
    with torch.autocast(relevance.device.type, enabled=False):
        return (row.unsqueeze(-2) @ relevance).squeeze(-2)


@torch.inference_mode(mode=False)  # autograd refuses what was made in inference mode
@torch.enable_grad()
def grad_cam(model: nn.Module, images: Tensor, target: Target = None) -> Tensor:
    """Return where in the last feature map a class comes from: (B, h, w), not normalised.

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

    def keep(_module: nn.Module, _inputs: object, made: Tensor) -> Tensor:
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
