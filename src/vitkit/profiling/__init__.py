"""What a model costs: parameters, multiply-accumulates, memory and time.

Open `model_info.py` first: `describe` measures a configuration without allocating it. `speed` times models against each
other and against the ceiling of this machine; `accelerators` lists the figures of other machines.
"""

from __future__ import annotations

from vitkit.system.lazy import public

__all__, __getattr__ = public(
    __name__,
    {
        "accelerators": "ACCELERATORS Accelerator find_accelerator register",
        "model_info": "ModelInfo describe",
        "speed": (
            "Ceiling Contender Product Quartiles Speed Timing compare drift_of interleave on_cpu open_backends "
            "products random_model resident row stopwatch_for"
        ),
    },
)
