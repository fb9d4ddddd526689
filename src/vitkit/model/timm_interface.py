"""Attributes and methods under timm's names, so that scripts for timm's models work with vitkit's."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module

from vitkit.errors import VitkitError


class TimmAttention:
    """A mixin with the attributes of timm's attention, for `Attention`.

    Scripts for timm set `fused_attn` to False in order to read attention matrices with hooks.
    """

    @property
    def num_heads(self: Any) -> int:
        """H, the number of heads."""
        return int(self.heads)

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

    def reset_classifier(self: Any, num_classes: int) -> None:
        """Replace the head by a new one of zeros (paper, sec. 3.2), and remove the representation layer.

        Args:
            num_classes: K; 0 leaves the model without a head.
        """
        self.config = self.config.replace(num_classes=num_classes, representation_size=None)
        first = next(self.parameters())  # its device and dtype are those of the new layers
        self._create_heads()
        for layer in (self.head, self.head_dist):
            if layer is not None:
                layer.to(first.device, first.dtype)
                for parameter in layer.parameters():
                    nn.init.zeros_(parameter)

    def no_weight_decay(self: Any) -> set[str]:
        """Return the names of the parameters without weight decay: tokens and positions."""
        names = ("cls_token", "dist_token", "reg_token", "pos_embed", "rope")
        return {name for name, _ in self.named_parameters() if name.partition(".")[0] in names}
