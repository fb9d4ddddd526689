"""`python -m vitkit` is `vitkit`."""

from __future__ import annotations

from vitkit.system.stopping import stoppable


def main() -> None:
    """The command line; a signal that comes while its modules are being imported is answered too."""
    with stoppable():
        from vitkit.cli.app import main as run

        run()


if __name__ == "__main__":
    main()
