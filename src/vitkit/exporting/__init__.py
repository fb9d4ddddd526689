"""Write a classifier as one file for another runtime, and check that the file predicts as the model does.

Open `formats.py` first: it lists ONNX, OpenVINO and torch.export, with one module each. `writing.py` writes a file
under a temporary name, compares its predictions with the model's, and then moves it to its final name. `loading.py`
opens an exported file as a classifier. Preprocessing, class names, temperature and thresholds are stored in the file as
a `Card` (`card.py`). The names of this package are imported only when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import public

if TYPE_CHECKING:
    from vitkit.exporting.card import Card
    from vitkit.exporting.formats import FORMATS
    from vitkit.exporting.loading import Exported, load_exported
    from vitkit.exporting.writing import LogitComparison, Pictures, Refused, choose_pictures, export

__all__ = [
    "FORMATS",
    "Card",
    "Exported",
    "LogitComparison",
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
        "formats": "FORMATS format_of",
        "loading": "Exported load_exported",
        "writing": "LogitComparison NOISE Pictures Refused choose_pictures compare export",
    },
)
