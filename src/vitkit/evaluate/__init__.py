"""How good a classifier is, in numbers, pictures and one page."""
