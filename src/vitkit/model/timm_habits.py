"""What timm's users do with a model, by timm's names: other heads, features of several layers, groups without decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.config import canonical
from vitkit.model.layers import heads


class TimmHabits:
    """Methods of timm's Vision Transformers, for `VisionTransformer`."""

    @property
    def num_features(self: Any) -> int:
        """D, of each token."""
        return int(self.config.hidden_size)

    @property
    def num_classes(self: Any) -> int:
        """K, of the logits; 0 without a head."""
        return int(self.config.num_classes)

    def get_classifier(self: Any) -> Any:
        """The head; DeiT's two where there are two."""
        if self.head is not None and self.head_dist is not None:
            return self.head, self.head_dist
        return self.head

    def reset_classifier(self: Any, num_classes: int, global_pool: str | None = None) -> None:
        """A new head of zeros (paper, sec. 3.2), without the representation layer; 0 leaves the model without a head.

        Args:
            num_classes: K.
            global_pool: what the head is to read: `token`, or `avg` for the mean of the patches; None: as before.

        Raises:
            VitkitError: the model cannot have such a head.
        """
        changes = {} if global_pool is None else canonical({"global_pool": global_pool})
        changes |= {"num_classes": num_classes, "representation_size": None}
        self.config = self.config.replace(class_token=self.config.class_token, **changes)  # its tokens stay
        at = next(self.parameters())
        self.pre_logits, self.head, self.head_dist = heads(self.config)
        for own in (self.pre_logits, self.head, self.head_dist):
            if own is not None:
                own.to(at.device, at.dtype)
                for parameter in own.parameters():
                    nn.init.zeros_(parameter)

    def no_weight_decay(self: Any) -> set[str]:
        """Parameters that are never decayed: tokens and positions."""
        names = ("cls_token", "dist_token", "reg_token", "pos_embed", "rope")
        return {name for name, _ in self.named_parameters() if name.partition(".")[0] in names}

    def set_grad_checkpointing(self: Any, enable: bool = True) -> None:
        """Whether blocks are computed again in the backward pass, which takes less memory and more time."""
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
        """The tokens after some layers, as timm's method of that name gives them.

        Args:
            x: images (B, C, height, width).
            indices: layers, 0 the first and -1 the last; a number for so many last ones; None for all.
            return_prefix_tokens: each as a pair with the prefix tokens (B, P, D).
            norm: with the model's last LayerNorm.
            stop_early: compute no layer after the last that is asked for.
            output_fmt: `NCHW`, patches as (B, D, h, w); `NLC`, as (B, h * w, D).
            intermediates_only: leave out the final tokens.

        Returns:
            A list, and ahead of it, unless `intermediates_only`, the final tokens (B, N, D), normalised.

        Raises:
            VitkitError: there is no such layer or format.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise VitkitError(f"output_fmt must be NCHW or NLC, not {output_fmt!r}")
        depth = self.config.layers
        wanted = range(depth) if indices is None else indices
        if isinstance(wanted, int):
            if not 0 < wanted <= depth:
                raise VitkitError(f"indices {wanted} of {depth} layers")
            wanted = range(depth - wanted, depth)
        wanted = sorted({i % depth if -depth <= i < depth else i for i in wanted})  # of others the model tells
        last = wanted[-1] if stop_early and wanted else depth - 1
        *found, end = self.forward_layers(x, [*wanted, last])
        taken = [self._as_timm(self.norm(own) if norm else own, output_fmt, return_prefix_tokens) for own in found]
        return taken if intermediates_only else (self.norm(end), taken)

    def _as_timm(self: Any, tokens: Tensor, output_fmt: str, with_prefix: bool) -> Tensor | tuple[Tensor, Tensor]:
        prefix, patches = torch.split(tokens, [p := self.config.prefix_tokens, tokens.shape[1] - p], dim=1)
        if output_fmt == "NCHW":
            patches = patches.transpose(1, 2).reshape(len(patches), -1, *self.config.grid)  # (B, D, h, w)
        return (patches, prefix) if with_prefix else patches
