"""Compute attention maps, that is, the exact attention matrices of eq. 6, and rollout through the layers.

The forward pass uses the fused kernel as usual. In addition, softmax(QK^T) is computed in float32 from the q and k of
each layer. A copy of the model that shares its weights computes it (`copy_with_attention`); the model is not changed.
Rollout (arXiv 2005.00928; the paper's Figure 6, app. D.8) follows attention through all layers to the patches.

Some large models store global information in a few patches, whose tokens then have very large norms (arXiv
2309.16588). These artefacts are bright in attention maps although the image shows nothing there.

Shapes: B batch, H heads, N tokens, h x w patch grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.position import Relative
from vitkit.model.variants import MAPS, check, unsupported_reason
from vitkit.model.vit import Attention, VisionTransformer

M = TypeVar("M", bound=nn.Module)


def unwrap_compiled(model: nn.Module) -> VisionTransformer:
    """Return a Vision Transformer without the wrapper of `torch.compile`; any other model raises a `VitkitError`."""
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, VisionTransformer):
        text = f"only a VisionTransformer has attention maps, not a {type(inner).__name__}"
        raise VitkitError("explanation.model-kind", text)
    return inner


class ExactAttention(Attention):
    """Attention that computes its usual output, and stores the exact attention matrix in `last_matrix`.

    The matrix is (B, H, n, N) float32; n is the number of queries, which are the first `queries` tokens or all tokens.
    """

    last_matrix: Tensor | None = None

    def forward(self, x: Tensor, queries: int | None = None, relative: Relative | None = None) -> Tensor:
        output = super().forward(x, queries, relative)
        q, k = self._inputs
        del self._inputs
        bias = None
        if relative is not None:
            q, k, bias = relative(q, k, self.scale)
        if self.windows is not None:
            bias = self.windows.masked_bias(bias, q)
        self.last_matrix = exact_matrix(self, q, k, bias)
        return output

    def project(self, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Store q and k for `forward`, which calls this method through `super().forward`."""
        q, k, v = super().project(x, queries)
        self._inputs = q, k
        return q, k, v


def exact_matrix(attention: Attention, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the attention matrix (B, H, n, N) of eq. 6 for n queries in float32, even if q and k are less precise."""
    with torch.autocast(q.device.type, enabled=False):
        return Attention.matrix(attention, q.float(), k.float(), None if bias is None else bias.float())


def copy_with_attention(module: M, attention: type[Attention]) -> M:
    """Copy a module, compiled or not, into evaluation mode, and make its `Attention` layers instances of `attention`.

    The copy shares the module's weights, which get no gradients. The module is not changed.
    """
    module = getattr(module, "_orig_mod", module)
    kind: type[nn.Module] = attention if type(module) is Attention else type(module)
    copied = kind.__new__(kind)  # `__init__` would make new weights
    fields = dict(vars(module))
    fields.pop("_compiled_call_impl", None)
    fields["training"] = False
    fields["_parameters"] = {name: _without_gradient(tensor) for name, tensor in module._parameters.items()}
    fields["_buffers"] = {name: _without_gradient(tensor) for name, tensor in module._buffers.items()}
    fields["_modules"] = {
        name: None if part is None else copy_with_attention(part, attention) for name, part in module._modules.items()
    }
    copied.__dict__ = fields
    return cast(M, copied)


def _without_gradient(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return tensor.clone()  # autograd cannot save a tensor that was created in inference mode
    return tensor.detach()


def prepare(model: nn.Module, images: Tensor, attention: type[Attention]) -> tuple[VisionTransformer, Tensor]:
    """Return a copy of the model (`copy_with_attention`), and the input of the copy's first layer, (B, N, D).

    The images (B, C, height, width) are preprocessed. A model without attention maps raises a `VitkitError`.
    """
    model = unwrap_compiled(model)
    check(model.config, MAPS)
    if not attention_layers(model.config):
        message = "every layer of the model is convolutional, so there is no attention to show; use occlusion"
        raise VitkitError("explanation.attention-missing", message)
    copied = copy_with_attention(model, attention)
    images = images.detach().to(copied.patch_embed.proj.weight)
    if images.is_inference() and not torch.is_inference_mode_enabled():
        images = images.clone()  # as in `_without_gradient`
    return copied, copied.embed(images)


def attention_layers(config: ViTConfig) -> list[int]:
    """Return the indices of the layers that have attention maps. Convolutional layers have none."""
    if unsupported_reason(config, MAPS):
        return []
    return [layer for layer in range(config.layers) if layer not in config.conv_layers]


def find_layer(config: ViTConfig, layer: int) -> int:
    """Return the index of a layer with attention; -1 is the last of these, and -2 the second to last of all layers."""
    check(config, MAPS)
    number = attention_layers(config)[-1] if layer == -1 else config.number_of(layer)
    if number in config.conv_layers:
        message = f"layer {layer} is convolutional; the layers with attention are {attention_layers(config)}"
        raise VitkitError("explanation.attention-missing", message)
    return number


def head_token_weights(config: ViTConfig) -> Tensor:
    """Return the weight of each token in the input of the classification head, (N,) summing to 1.

    A model that pools by attention raises a `VitkitError`, because its weights depend on the image.
    """
    if config.pool == "map":
        raise VitkitError(
            "explanation.pooling-unsupported",
            "this model pools by attention, so the tokens that its head reads differ by image: use --method occlusion",
        )
    weights = torch.zeros(config.tokens)
    if config.distill_head:  # the class and the distillation token
        weights[:2] = 0.5
    elif config.pool == "token":
        weights[0] = 1.0
    else:
        weights[config.prefix_tokens :] = 1.0 / config.patches
        if config.pool == "token+gap":
            weights[config.prefix_tokens :] /= 2
            weights[0] = 0.5
    return weights


def to_grid(rows: Tensor, config: ViTConfig) -> Tensor:
    """Select the values of the patches from the values of all tokens, as a grid: (..., N) -> (..., h, w)."""
    return rows[..., config.prefix_tokens :].reshape(*rows.shape[:-1], *config.grid)


def attention_maps(model: nn.Module, images: Tensor) -> Iterator[Tensor]:
    """Yield the attention matrices of each layer, first to last: (B, H, N, N) float32, each row summing to 1.

    Convolutional layers are left out. A layer is computed when it is requested.

    Args:
        model: the model, compiled or not, in any precision. Its mode and gradients are not changed.
        images: (B, C, height, width), preprocessed.

    Raises:
        VitkitError: no layer has attention, or the images do not have the model's size and channels.
    """
    model, x = prepare(model, images, ExactAttention)  # checks the arguments before the first layer is requested

    def maps(x: Tensor) -> Iterator[Tensor]:
        for layer in range(attention_layers(model.config)[-1] + 1):
            x = model.layer(layer, x)
            if layer not in model.config.conv_layers:
                yield vars(model.blocks[layer].attn).pop("last_matrix")  # so that only the caller keeps it

    return maps(x)


def head_maps(model: nn.Module, images: Tensor, layer: int = -1) -> Tensor:
    """Return each head's attention to each patch in one layer: (B, H, h, w), not normalised.

    This is the attention of the class token. If the classification head reads other tokens, it is the average of their
    attention with the weights of `head_token_weights`.

    Args:
        model: see `attention_maps`.
        images: (B, C, height, width), preprocessed.
        layer: the index of the layer, as in `find_layer`.

    Raises:
        VitkitError: there is no such layer, or it has no attention.
    """
    config = unwrap_compiled(model).config
    maps = attention_maps(model, images)  # checks that there are some
    requested = find_layer(config, layer)
    for number, attention in zip(attention_layers(config), maps, strict=False):
        if number == requested:
            return to_grid(average_rows_of_head(attention, config), config)
    raise AssertionError("find_layer returned a layer without attention")


def last_attention(model: nn.Module, images: Tensor, layer: int = -1) -> Tensor:
    """Return the attention to each patch in one layer, averaged over heads: (B, h, w), not normalised.

    Arguments and errors are those of `head_maps`.
    """
    return head_maps(model, images, layer).mean(dim=1)


def average_rows_of_head(attention: Tensor, config: ViTConfig) -> Tensor:
    """Average the rows of the tokens that the head reads (`head_token_weights`): (..., N, N) -> (..., N)."""
    with torch.autocast(attention.device.type, enabled=False):
        return head_token_weights(config).to(attention) @ attention


def patch_attention(model: nn.Module, images: Tensor, row: int, column: int) -> Tensor:
    """Return the attention of one patch to all patches, for each layer with attention and each head: (layers, H, h, w).

    There is one image (1, C, height, width), preprocessed. Rows and columns of patches count from 0 at the top left.

    Raises:
        VitkitError: there is no such patch, or no layer has attention.
    """
    config = unwrap_compiled(model).config
    h, w = config.grid
    if not (0 <= row < h and 0 <= column < w):
        text = f"there is no patch ({row}, {column}): there are {h} rows of {w} patches, numbered from 0"
        raise VitkitError("explanation.patch-missing", text)
    query = config.prefix_tokens + row * w + column
    with torch.no_grad():
        maps = [to_grid(attention[0, :, query], config) for attention in attention_maps(model, images)]  # (H, h, w)
    return torch.stack(maps)


def rollout(model: nn.Module, images: Tensor) -> Tensor:
    """Follow attention through all layers to the patches (arXiv 2005.00928; the paper's app. D.8): (B, h, w).

    The attention matrices of all layers, averaged over heads, are multiplied. The identity is added to each matrix for
    the residual connection, and rows are renormalised to sum to 1. Convolutional layers count as the identity.

    The result is the row of the class token in the product, for the patches only. If the classification head reads
    other tokens, it is the average of their rows with the weights of `head_token_weights`. It is the same for every
    class. Its sum is less than 1 if prefix tokens receive some of the attention.

    Args:
        model: see `attention_maps`.
        images: (B, C, height, width), preprocessed.

    Raises:
        VitkitError: no layer has attention.
    """
    config = unwrap_compiled(model).config
    product = torch.eye(config.tokens, device=next(model.parameters()).device)  # (N, N), then (B, N, N)
    for attention in attention_maps(model, images):
        mean = attention.mean(dim=1)
        mean.diagonal(dim1=-2, dim2=-1).add_(1.0)
        mean.div_(mean.sum(dim=-1, keepdim=True))
        with torch.autocast(mean.device.type, enabled=False):
            product = mean @ product
    return to_grid(average_rows_of_head(product, config), config)
