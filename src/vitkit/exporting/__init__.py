"""A classifier as one file for another runtime, believed only after that runtime has answered as the model does.

What the file needs beside its weights travels inside it: a `Card` with preprocessing, class names, temperature and
thresholds. `load_exported` turns it back into a classifier that predicts. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system.lazy import public

if TYPE_CHECKING:
    from vitkit.exporting.card import Card
    from vitkit.exporting.check import Comparison, Pictures, Refused, choose_pictures
    from vitkit.exporting.formats import FORMATS
    from vitkit.exporting.loading import Exported, load_exported
    from vitkit.exporting.writing import export

__all__ = [
    "FORMATS",
    "Card",
    "Comparison",
    "Exported",
    "Pictures",
    "Refused",
    "choose_pictures",
    "export",
    "load_exported",
]

_, __getattr__ = public(
    __name__,
    {
        "card": "Card",
        "check": "Comparison NOISE Pictures Refused choose_pictures compare",
        "formats": "FORMATS format_of",
        "loading": "Exported load_exported",
        "writing": "export",
    },
)
