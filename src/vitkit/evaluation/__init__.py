"""How good a classifier is, in numbers. Nothing here writes a model or a page."""
