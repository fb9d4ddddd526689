"""Explain a class: by gradients (gradient-weighted attention, Grad-CAM for convolutional networks), and by occlusion.

Gradient-weighted attention computes the relevance of a layer from its attention matrix A. A is multiplied elementwise
by the gradient of the class's logit with respect to A. The positive part of the product is averaged over heads (arXiv
2012.09838 and 2103.15679, sec. 3.1). The forward pass stores only the input of each layer. The backward pass recomputes
one layer at a time with explicit attention, so that only the matrices of one layer are in memory.

Grad-CAM (arXiv 1610.02391, sec. 3) weights each channel of the last feature map by the mean gradient of the class's
logit (eq. 1) and keeps the positive part of the sum (eq. 2).

Occlusion (arXiv 1311.2901, sec. 4.2) measures how the probability of a class changes when a part of the image is
covered. It uses neither attention nor gradients, so it can verify methods that use them.

Shapes: B batch, H heads, N tokens, D hidden size, K classes, C channels, h x w patch grid or last feature map, S
positions of the covering square.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import product

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.explanation.attention import (
    attention_layers,
    copy_with_attention,
    exact_matrix,
    head_token_weights,
    prepare,
    to_grid,
    unwrap_compiled,
)
from vitkit.model.names import Config, NetworkConfig
from vitkit.model.network import Network
from vitkit.model.vit import Attention, VisionTransformer

_AT_A_TIME = 32  # covered images in a forward pass
Target = Tensor | int | None  # a class for each image, or one for all images; None is the predicted class


class ExplicitAttention(Attention):
    """Attention that is computed explicitly (eq. 6 in float32).

    It stores the matrix (B, H, N, N) in `last_matrix`, so that the gradient with respect to it can be computed.
    """

    last_matrix: Tensor

    def attend_within(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute windowed attention as one matrix over all tokens, with weights of 0 outside the windows."""
        if self.windows is not None:
            bias = self.windows.masked_bias(bias, q)
        return self.attend(q, k, v, bias)

    def matrix(self, q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
        self.last_matrix = exact_matrix(self, q, k, bias)
        return self.last_matrix.to(q.dtype)


def gradient_rollout(model: nn.Module, images: Tensor, target: Target = None) -> Tensor:
    """Follow the relevance of a class through all layers to the patches: (B, h, w), not normalised.

    The accumulated relevance R starts as the identity matrix, and each layer adds the product of its relevance and R.
    The result is the row of the class token in R, for the patches only. If the classification head reads other tokens,
    their rows are averaged with the weights of `attention.head_token_weights`.

    Args:
        model: the model, compiled or not, in any precision. Its mode and gradients are not changed.
        images: (B, C, height, width), preprocessed.
        target: one class for each image (B,), or one for all; None is the predicted class.

    Raises:
        VitkitError: there is no such class, the model has no head, or no layer has attention.
    """
    _check_head(unwrap_compiled(model).config)
    copied, inputs = _forward(model, images)
    # The gradient of each image's target logit with respect to the last layer's output, (B, N, D).
    with torch.inference_mode(mode=False), torch.enable_grad():
        tokens = inputs.pop().requires_grad_()
        logits = copied.forward_head(copied.norm(tokens))  # (B, K)
        targets = find_targets(copied.config, target, logits).clone()  # they may have been created in inference mode
        gradient = torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), tokens)[0]
    # Only one row of R is needed, so it is computed from the last layer to the first.
    row = head_token_weights(copied.config).to(gradient.device)  # (N,), then (B, N)
    for layer in range(copied.config.layers - 1, attention_layers(copied.config)[0] - 1, -1):
        relevance, gradient = _backward_layer(copied, layer, inputs.pop(), gradient)
        if relevance is not None:
            with torch.autocast(relevance.device.type, enabled=False):
                row = row.to(relevance)
                row = row + (row.unsqueeze(-2) @ relevance).squeeze(-2)
    return to_grid(row, copied.config)


def find_targets(config: Config, target: Target, logits: Tensor) -> Tensor:
    """Return the class to explain for each image, (B,): `target`, or the class with the largest logit if it is None.

    Raises:
        VitkitError: a class does not exist, or the number of classes differs from the number of images.
    """
    if target is None:
        return logits.argmax(dim=-1)
    targets = torch.as_tensor(target, device=logits.device)
    is_integer = not targets.is_floating_point() and targets.dtype != torch.bool
    if not is_integer or targets.shape not in ((), (len(logits),)):
        raise VitkitError(
            "explanation.target-invalid",
            f"target must be one class or one for each of the {len(logits)} images, as whole numbers, not {target!r}",
        )
    if len(logits) and not bool(((targets >= 0) & (targets < config.num_classes)).all()):
        text = f"there is no class {target!r}: there are 0 to {config.num_classes - 1}"
        raise VitkitError("explanation.class-missing", text)
    return targets.long().expand(len(logits))


def _check_head(config: Config) -> None:
    if config.num_classes == 0:
        text = "the model has no head, so there is no class to explain; use rollout or raw"
        raise VitkitError("explanation.head-missing", text)


@torch.inference_mode(mode=False)  # autograd refuses tensors that were created in inference mode
@torch.no_grad()
def _forward(model: nn.Module, images: Tensor) -> tuple[VisionTransformer, list[Tensor]]:
    """Return a copy of the model, the inputs of all its layers, and last of these the final output, (B, N, D) each."""
    copied, x = prepare(model, images, ExplicitAttention)
    copied.fused_attention = True  # matrices are only needed in the backward pass
    inputs = [x]
    for layer in range(copied.config.layers):
        inputs.append(copied.layer(layer, inputs[-1]))
    return copied, inputs


@torch.inference_mode(mode=False)
@torch.enable_grad()
def _backward_layer(model: VisionTransformer, layer: int, x: Tensor, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return a layer's relevance (None if convolutional) and the gradient at its input, from that at its output."""
    x.requires_grad_()
    attention = model.blocks[layer].attn
    if not isinstance(attention, ExplicitAttention):
        return None, torch.autograd.grad(model.layer(layer, x), x, gradient)[0]
    attention.fused = False
    output = model.layer(layer, x)
    matrix = attention.last_matrix
    del attention.last_matrix
    matrix_gradient, input_gradient = torch.autograd.grad(output, (matrix, x), gradient)
    return matrix_gradient.mul_(matrix.detach()).relu_().mean(dim=1), input_gradient


@torch.inference_mode(mode=False)  # autograd refuses tensors that were created in inference mode
@torch.enable_grad()
def grad_cam(model: nn.Module, images: Tensor, target: Target = None) -> Tensor:
    """Return the Grad-CAM of a class for the last feature map: (B, h, w), not normalised.

    The model is a network of another library. The other arguments are those of `gradient_rollout`.

    Raises:
        VitkitError: there is no such class, or the model has no head or no feature map before it.
    """
    if not isinstance(model, Network):
        message = "Grad-CAM applies to networks of other libraries; for a Vision Transformer, use gradient_rollout"
        raise VitkitError("explanation.model-kind", message)
    _check_head(model.config)
    check_feature_map(model)
    copied = copy_with_attention(model, Attention)
    feature_maps: list[Tensor] = []

    def store_output(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        feature_maps.append(output.detach().requires_grad_())
        return feature_maps[-1].clone()  # later layers may modify the feature map in place

    layer = copied.network.get_submodule(str(model.anatomy.map))
    layer._forward_hooks = OrderedDict()  # the copy would share the hooks of the model
    layer.register_forward_hook(store_output)
    images = images.detach().to(next(copied.parameters()))
    if images.is_inference():
        images = images.clone()
    logits = copied(images).float()
    targets = find_targets(model.config, target, logits).clone()
    (gradient,) = torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), feature_maps[-1])  # (B, C, h, w)
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    return (weights * feature_maps[-1].detach()).sum(dim=1).relu().float()


def check_feature_map(model: Network) -> None:
    """Raise a `VitkitError` if a network has no feature map before its head, such as for very small images."""
    if model.anatomy.map is None:
        raise VitkitError(
            "explanation.feature-map-missing",
            f"{model.config.full_name} has no feature map before its head, which the method gradient requires: use the "
            "method occlusion",
        )


# --- Occlusion ------------------------------------------------------------------------------------------------


@torch.no_grad()
def occlusion(model: nn.Module, images: Tensor, target: Target = None, *, square: int = 3) -> Tensor:
    """Return how much the probability of a class drops when a square of patches is covered: (B, h, w), -1 to 1.

    The square is moved by one patch at a time, and covered pixels get the mean colour. The value of a patch is the mean
    drop over the squares that cover it. Each position needs one forward pass.

    Args:
        model: the model, compiled or not, in any precision; its mode is not changed.
        images: (B, C, height, width), preprocessed.
        target: one class for each image (B,), or one for all; None is the predicted class.
        square: the side of the square in patches, or in 14ths of the image for another library's network.

    Raises:
        VitkitError: there is no such class, the model has no head, or the square is empty.
    """
    inner = getattr(model, "_orig_mod", model)  # without the wrapper of torch.compile
    model = inner if isinstance(inner, Network) else unwrap_compiled(inner)
    _check_head(model.config)
    if square < 1:
        raise VitkitError("explanation.option-too-small", f"square must be at least 1, not {square}")
    copied = copy_with_attention(model, Attention)
    images = images.to(next(model.parameters()))
    logits = copied(images).float()
    targets = find_targets(model.config, target, logits)
    uncovered = logits.softmax(dim=-1).gather(1, targets[:, None])  # the probabilities of the targets, (B, 1)
    height, width = model.config.image_size
    patch_height, patch_width = _patch_size(model.config)
    h, w = -(-height // patch_height), -(-width // patch_width)  # the last patches may reach beyond the image
    high, wide = min(square, h), min(square, w)  # of the square
    masks = torch.zeros(h - high + 1, w - wide + 1, h, w, dtype=torch.bool, device=images.device)
    for top, left in product(range(h - high + 1), range(w - wide + 1)):
        masks[top, left, top : top + high, left : left + wide] = True
    masks = masks.flatten(0, 1)  # (S, h, w)
    sums = []
    for image, class_number, probability in zip(images, targets.tolist(), uncovered, strict=True):
        parts = torch.split(masks, _AT_A_TIME)
        logits_of_parts = [copied(cover(image[None], part, model.config, 0.0)).float() for part in parts]
        drops = probability - torch.cat(logits_of_parts).softmax(dim=-1)[:, class_number]  # (S,)
        sums.append((drops[:, None, None] * masks).sum(dim=0))  # (h, w)
    return torch.stack(sums) / masks.sum(dim=0)


def cover(images: Tensor, patches: Tensor, config: Config, fill: float | Tensor) -> Tensor:
    """Replace the pixels of masked patches (S, h, w) by `fill`: (S, C, height, width).

    `images` are S images, or one image that is covered S times, (1, C, height, width).
    """
    patch_height, patch_width = _patch_size(config)
    pixels = patches.repeat_interleave(patch_height, dim=1).repeat_interleave(patch_width, dim=2)
    height, width = images.shape[-2:]  # a hybrid's last patches may reach beyond the image
    return torch.where(pixels[:, None, :height, :width], fill, images)


def _patch_size(config: Config) -> tuple[int, int]:
    """Return the height and width in pixels of a patch, or of a 14th of the image for another library's network."""
    if isinstance(config, NetworkConfig):
        height, width = config.image_size  # a ViT with 16-pixel patches has 14 x 14 of them at 224 pixels
        return max(round(height / 14), 1), max(round(width / 14), 1)
    return config.patch_size[0] * config.stem_stride, config.patch_size[1] * config.stem_stride
