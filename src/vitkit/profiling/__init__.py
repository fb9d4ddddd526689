"""What a model costs: parameters, multiply-accumulates, memory and time.

Open `model_info.py` first: `describe` measures a configuration without allocating it. `speed` times models against each
other and against the ceiling of this machine; `accelerators` lists the figures of other machines.
"""
