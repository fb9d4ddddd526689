"""`python -m vitkit` is `vitkit`."""

from __future__ import annotations

import os

from vitkit.system.stopping import stoppable


def main() -> None:
    """The command line; a signal that comes while its modules are being imported is answered too."""
    os.environ["PYTHONSAFEPATH"] = "1"  # whatever a library starts imports nothing from the current folder either
    with stoppable():
        from vitkit.cli.app import main as run

        run()


if __name__ == "__main__":
    main()
