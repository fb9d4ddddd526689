"""Makes the fixtures of `conftest_articles` known."""

from conftest_articles import made, place, row

__all__ = ["made", "place", "row"]
