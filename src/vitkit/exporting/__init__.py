"""Write a classifier as one file for another runtime, and check that the file predicts as the model does.

Open `formats.py` first: it lists ONNX, OpenVINO and torch.export, with one module each. `writing.py` writes a file
under a temporary name, compares its predictions with the model's, and then moves it to its final name. `loading.py`
opens an exported file as a classifier. Preprocessing, class names, temperature and thresholds are stored in the file as
a `Card` (`card.py`). The names of this package are imported only when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.exporting.card import Card as Card
    from vitkit.exporting.formats import FORMATS as FORMATS, Format, format_of
    from vitkit.exporting.loading import Exported as Exported, load_exported as load_exported
    from vitkit.exporting.packages import PACKAGES, RUNTIME_MEGABYTES, RUNTIME_URL, Package
    from vitkit.exporting.writing import NOISE, LogitComparison as LogitComparison, Pictures as Pictures
    from vitkit.exporting.writing import Refused as Refused, choose_pictures as choose_pictures, compare
    from vitkit.exporting.writing import export as export
else:
    __getattr__ = lazily(__name__)
