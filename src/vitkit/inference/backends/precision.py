"""What the hardware computes fastest in."""

from __future__ import annotations

from typing import Any


def best_precision() -> str:
    """`bfloat16` where the hardware multiplies such numbers, else `float32`."""
    import torch

    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    capabilities: dict[str, Any] = dict(getattr(torch.cpu, "get_capabilities", dict)())
    has_bfloat16 = any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16"))
    return "bfloat16" if has_bfloat16 else "float32"
