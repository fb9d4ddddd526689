"""The entry point of the command `vitkit` and of `python -m vitkit`."""

from __future__ import annotations

import os

from vitkit.system.processes import stoppable


def main() -> None:
    """Run the command line. Signals are handled even while its modules are being imported."""
    os.environ["PYTHONSAFEPATH"] = "1"  # child processes import nothing from the current folder either
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DistributedDataParallel warns that all parameters were used
    with stoppable():
        from vitkit.cli.app import main as run

        run()


if __name__ == "__main__":
    main()
