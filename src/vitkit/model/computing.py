"""How a model's parts compute, set for all of them at once."""

from __future__ import annotations

from typing import Any


class Computing:
    """Methods of `VisionTransformer` that reach into all of its parts."""

    @property
    def fused_attention(self: Any) -> bool:
        """Whether eqs. 6-7 are one kernel; written out they give the same numbers."""
        return all(block.attn.fused for block in self.blocks if hasattr(block.attn, "fused"))

    @fused_attention.setter
    def fused_attention(self: Any, fused: bool) -> None:
        for block in self.blocks:
            if hasattr(block.attn, "fused"):
                block.attn.fused = fused

    def rebuild_tables(self: Any) -> None:
        """Compute the fixed tables anew, beside the parameters, after the model left the meta device."""
        for module in self.modules():
            if module is not self and hasattr(module, "rebuild_tables"):
                module.rebuild_tables(self.patch_embed.proj.weight)
