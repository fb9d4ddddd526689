"""Makes the fixtures of `conftest_articles` known, and the command line in this process."""

from conftest_articles import place, row

from cli.conftest import vitkit as command

__all__ = ["command", "place", "row"]
