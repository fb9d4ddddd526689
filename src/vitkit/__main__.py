"""`python -m vitkit` is `vitkit`."""

from vitkit.cli.app import main

if __name__ == "__main__":
    main()
