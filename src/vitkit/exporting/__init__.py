"""A classifier as one file for another runtime, believed only after that runtime has answered as the model does.

What the file needs beside its weights travels inside it: a `Card` with preprocessing, class names, temperature and
thresholds. `load_exported` turns it back into a classifier that predicts.
"""

from __future__ import annotations

from vitkit.exporting.card import Card
from vitkit.exporting.check import Comparison, Refused
from vitkit.exporting.formats import FORMATS, SUFFIXES
from vitkit.exporting.loading import Exported, load_exported
from vitkit.exporting.pictures import Pictures, choose_pictures
from vitkit.exporting.writing import export

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "Card",
    "Comparison",
    "Exported",
    "Pictures",
    "Refused",
    "choose_pictures",
    "export",
    "load_exported",
]
