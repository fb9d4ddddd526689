"""The cost of a model: parameters, multiply-accumulates, memory and time.

Open `model_info.py` first: `describe` counts the cost of a configuration without allocating its weights. `speed`
compares the speeds of implementations with each other and with the highest speed that is possible on this machine.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "model_info": "ModelInfo describe",
        "speed": (
            "Ceiling Contender Product Quartiles Speed Timing compare drift_of interleave on_cpu open_backends "
            "products random_model resident row stopwatch_for"
        ),
    },
)
