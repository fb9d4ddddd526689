"""Write a classifier as one file for another runtime, and check that the file predicts as the model does.

Open `formats.py` first: it lists the formats, with one module each. `writing.py` writes a file under a temporary name,
compares its predictions with the model's (`comparison.py`, on images of `pictures.py`), and then moves it to its final
name. `quantization.py` is INT8, and `loading.py` opens a file as a classifier. `elsewhere.py` writes folders for
runtimes that are not on this machine. Preprocessing, class names, temperature and thresholds are stored in the file as
a `Card` (`card.py`). The names of this package are imported only when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.exporting.card import Card as Card
    from vitkit.exporting.formats import FORMATS as FORMATS, Format, format_of
    from vitkit.exporting.loading import Exported as Exported, load_exported as load_exported
    from vitkit.exporting.packages import PACKAGES, RUNTIME_MEGABYTES, RUNTIME_URL, PackageKind
    from vitkit.exporting.comparison import NOISE, AccuracyChange as AccuracyChange, LogitComparison as LogitComparison
    from vitkit.exporting.comparison import Refused as Refused, compare
    from vitkit.exporting.pictures import Pictures as Pictures, choose_pictures as choose_pictures
    from vitkit.exporting.writing import Int8 as Int8, Outcome as Outcome, export as export
else:
    __getattr__ = lazily(__name__)
