"""Attributes and methods under timm's names, so that scripts for timm's models work with vitkit's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from vitkit.errors import VitkitError
from vitkit.model.config import canonical


class TimmAttention:
    """A mixin with the attributes of timm's attention, for `Attention`.

    Scripts for timm set `fused_attn` to False in order to read attention matrices with hooks.
    """

    @property
    def num_heads(self: Any) -> int:
        """H, the number of heads."""
        return int(self.heads)

    @property
    def head_dim(self: Any) -> int:
        """D_h, the number of features of a head."""
        return int(self.qkv.in_features // self.heads)

    @property
    def fused_attn(self: Any) -> bool:
        """Whether one kernel computes the attention. Otherwise hooks on `attn_drop` receive the matrix (B, H, N, N)."""
        return bool(self.fused)

    @fused_attn.setter
    def fused_attn(self: Any, fused: bool) -> None:
        self.fused = fused


# Python modules whose hooks read no tokens: they shard weights, count operations, or cancel requests.
_WITHOUT_TOKENS = ("torch.distributed.", "torch.utils.", "vitkit.profiling.", "vitkit.serving.")


class TimmModel:
    """A mixin with the attributes and methods of timm's Vision Transformers, for `VisionTransformer`."""

    @property
    def is_observed(self: Any) -> bool:
        """Whether hooks or a user's modules may read tokens of the last block, which must then compute all of them."""
        hooks = [
            module._global_forward_hooks,
            module._global_forward_pre_hooks,
            module._global_backward_hooks,
            module._global_backward_pre_hooks,
        ]
        for part in (self.blocks, self.norm, *self.blocks[-1].modules()):
            if not type(part).__module__.startswith(("vitkit.", "torch.")):
                return True
            hooks += [part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks]
        modules = [str(hook.__module__) for by_id in hooks if by_id for hook in by_id.values()]
        return not all(name.startswith(_WITHOUT_TOKENS) for name in modules)

    @property
    def num_features(self: Any) -> int:
        """D, the number of features of a token."""
        return int(self.config.hidden_size)

    embed_dim = num_features

    @property
    def num_classes(self: Any) -> int:
        """K, the number of logits; 0 without a head."""
        return int(self.config.num_classes)

    @property
    def num_tokens(self: Any) -> int:
        """The number of tokens before the patches: class token, distillation token, registers."""
        return int(self.config.prefix_tokens)

    num_prefix_tokens = num_tokens

    @property
    def has_logits(self: Any) -> bool:
        """Whether there is a representation layer before the head."""
        return self.config.representation_size is not None

    def __prepare_scriptable__(self) -> None:
        """Raise an error: TorchScript's compiler calls this method, and TorchScript is not supported."""
        raise VitkitError(
            "model.torchscript-unsupported",
            "torch.jit.script does not understand this model, and PyTorch has deprecated TorchScript: use "
            "torch.export.export(model, (images,)), or vitkit export --to torch, which also stores the preprocessing",
        )

    def get_classifier(self: Any) -> Any:
        """Return the head, or both heads of a DeiT."""
        if self.head is not None and self.head_dist is not None:
            return self.head, self.head_dist
        return self.head

    def reset_classifier(self: Any, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one of zeros (paper, sec. 3.2), and remove the representation layer.

        Args:
            num_classes: K; 0 leaves the model without a head.
            global_pool: the input of the head: `token`, or `avg` for the mean of the patches; None for no change.

        Raises:
            VitkitError: the model cannot have such a head.
        """
        changes = {} if global_pool is None else canonical({"global_pool": global_pool})
        if changes.get("pool") == "map" and self.config.pool != "map":
            raise VitkitError(
                "model.option-unsupported",
                "global_pool 'map' needs layers that this model does not have: use token or avg",
            )
        changes |= {"num_classes": num_classes, "representation_size": None}
        self.config = self.config.replace(class_token=self.config.class_token, **changes)  # the tokens stay the same
        first = next(self.parameters())  # its device and dtype are those of the new layers
        self._create_heads()
        for layer in (self.pre_logits, self.head, self.head_dist):
            if layer is not None:
                layer.to(first.device, first.dtype)
                for parameter in layer.parameters():
                    nn.init.zeros_(parameter)

    def no_weight_decay(self: Any) -> set[str]:
        """Return the names of the parameters without weight decay: tokens and positions."""
        names = ("cls_token", "dist_token", "reg_token", "pos_embed", "rope")
        return {name for name, _ in self.named_parameters() if name.partition(".")[0] in names}

    def set_grad_checkpointing(self: Any, enable: bool = True) -> None:
        """Switch activation checkpointing of all blocks on or off. Checkpointing saves memory and costs time."""
        self.checkpointing = int(enable)

    def forward_intermediates(
        self: Any,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return the tokens after some layers, like timm's method of this name.

        Args:
            x: images (B, C, height, width).
            indices: the numbers of the layers, where 0 is the first and -1 the last. A single number n selects the last
                n layers, and None selects all.
            return_prefix_tokens: whether each entry is a pair of the patches and the prefix tokens (B, P, D).
            norm: whether to apply the model's last norm to each entry.
            stop_early: whether to skip the layers after the last of `indices`.
            output_fmt: `NCHW` for patches as (B, D, h, w), `NLC` for (B, h * w, D).
            intermediates_only: whether to leave out the final tokens.

        Returns:
            The final tokens (B, N, D), after the last norm, and a list with one entry for each layer, in the order of
            the layers. With `stop_early`, the final tokens are those of the last of `indices`. With
            `intermediates_only`, only the list.

        Raises:
            VitkitError: the model has no such layer, or `output_fmt` is unknown.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise VitkitError("model.value-invalid", f"output_fmt must be NCHW or NLC, not {output_fmt!r}")
        depth = self.config.layers
        if indices is None:
            indices = depth
        if isinstance(indices, int):
            if not 0 < indices <= depth:
                raise VitkitError(
                    "model.value-invalid", f"indices must be from 1 to {depth}, the number of layers, not {indices}"
                )
            indices = range(depth - indices, depth)
        # `forward_layers` raises an error for numbers that are out of range.
        numbers = sorted({i % depth if -depth <= i < depth else i for i in indices})
        last = numbers[-1] if stop_early and numbers else depth - 1
        *outputs, end = self.forward_layers(x, [*numbers, last])
        outputs = [self.norm(tokens) if norm else tokens for tokens in outputs]
        layers: list[Any] = []
        P = self.config.prefix_tokens
        for tokens in outputs:
            prefix, patches = torch.split(tokens, [P, tokens.shape[1] - P], dim=1)
            if output_fmt == "NCHW":
                patches = patches.transpose(1, 2).reshape(len(patches), -1, *self.config.grid)  # (B, D, h, w)
            layers.append((patches, prefix) if return_prefix_tokens else patches)
        return layers if intermediates_only else (self.norm(end), layers)
