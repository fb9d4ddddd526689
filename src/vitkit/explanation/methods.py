"""All ways to make a map, by name.

Each takes (model, images) and returns float32 (B, h, w); `heads` returns (B, H, h, w). Those of `CLASS_SPECIFIC` take
`target` as well, those of `BY_LAYER` take `layer`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vitkit.explanation.attention import head_maps, last_attention
from vitkit.explanation.gradient import gradient_attention, gradient_rollout
from vitkit.explanation.occluding import occlusion
from vitkit.explanation.rollouts import rollout

METHODS: dict[str, Callable[..., Tensor]] = {
    "raw": last_attention,
    "rollout": rollout,
    "gradient": gradient_rollout,
    "gradient-attention": gradient_attention,
    "occlusion": occlusion,
    "heads": head_maps,
}
CLASS_SPECIFIC = ("gradient", "gradient-attention", "occlusion")
BY_LAYER = ("raw", "gradient-attention", "heads")
