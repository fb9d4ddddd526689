"""Find properties of files that tell the classes apart, such as a format, a camera or a border.

A model may learn such a shortcut instead of what the pictures show, and then be right on these data only. Each property
is tested for independence of the classes (chi-squared), the tests are corrected for their number (Benjamini and
Yekutieli 2001), and the strength of what is left is Cramér's V without its bias (Bergsma 2013), from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.data.file_facts import Facts, FactTable
from vitkit.data.table import UNLABELLED, ImageTable

CHANCE = 0.01  # the significance level: the probability of a false alarm in data without shortcuts
_MIN_STRENGTH = 0.3
_MIN_IMAGES = 5  # values and classes with fewer images are merged into one

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shortcut:
    """A property of files that tells the classes apart."""

    name: str
    strength: float  # Cramér's V: 0 if the property is independent of the class, 1 if it determines the class
    accuracy: float  # of guessing, for each value, the most frequent class of the images with this value
    baseline: float  # the accuracy of always guessing the largest class


def find_shortcuts(table: ImageTable, facts: Sequence[Facts]) -> list[Shortcut]:
    """Return the properties of files that tell the classes apart, the strongest first."""
    from scipy.stats import chi2_contingency, false_discovery_control

    labelled = [i for i in range(len(table)) if table.name_of(i) != UNLABELLED]
    classes = _without_rare(np.array(table.labels, dtype=np.int64)[labelled])
    forms, modes, widths, heights, qualities, cameras, borders = FactTable.of(facts).columns(
        "format", "mode", "width", "height", "quality", "camera", "border"
    )
    width = np.array(widths, dtype=float)
    height = np.array(heights, dtype=float)
    properties = {  # the value of each image, as the number of a category
        "format": _numbered(forms),
        "colour mode": _numbered(modes),
        "size": _binned(width * height),
        "aspect": _binned(width / height),
        "JPEG quality": _binned(np.array(qualities, dtype=float)),
        "camera": _numbered(cameras),
        "border": _numbered(borders),
    }
    tables = {}  # the number of images by value and class, (V, K), without empty rows and columns
    for name, values_of_images in properties.items():
        values = values_of_images[labelled]
        counts = np.zeros((values.max(initial=0) + 1, classes.max(initial=0) + 1), np.int64)
        np.add.at(counts, (values, classes), 1)
        counts = counts[counts.any(axis=1)][:, counts.any(axis=0)]
        if min(counts.shape) > 1:
            tables[name] = counts
    if not tables:
        return []
    tests = [chi2_contingency(counts, correction=False) for counts in tables.values()]
    p_values = false_discovery_control([test.pvalue for test in tests], method="by")
    shortcuts = []
    for (name, counts), test, p_value in zip(tables.items(), tests, p_values, strict=True):
        strength = _cramers_v(counts, test.statistic)
        if p_value <= CHANCE and strength >= _MIN_STRENGTH:
            accuracy = counts.max(axis=1).sum() / counts.sum()
            baseline = counts.sum(axis=0).max() / counts.sum()
            shortcuts.append(Shortcut(name, strength, float(accuracy), float(baseline)))
    return sorted(shortcuts, key=lambda shortcut: -shortcut.strength)


def _cramers_v(counts: Ints, chi_squared: float) -> float:
    """Return Cramér's V of a contingency table with Bergsma's correction."""
    rows, columns = counts.shape
    images = int(counts.sum())
    phi_squared = max(0.0, chi_squared / images - (rows - 1) * (columns - 1) / (images - 1))
    corrected_sizes = (size - 1 - (size - 1) ** 2 / (images - 1) for size in (rows, columns))
    return float(np.sqrt(phi_squared / min(corrected_sizes)))


def _numbered(values: Sequence[Any]) -> Ints:
    return _without_rare(np.unique(np.array(values), return_inverse=True)[1])


def _binned(values: npt.NDArray[np.float64]) -> Ints:
    limits = np.unique(np.quantile(values, np.arange(1, 10) / 10, method="nearest"))  # ten bins
    return _without_rare(np.searchsorted(limits, values))


def _without_rare(values: Ints) -> Ints:
    """Replace the values by numbers from 0 on. All rare values share one number."""
    _, numbers, images = np.unique(values, return_inverse=True, return_counts=True)
    merged = np.where(images < _MIN_IMAGES, 0, 1 + np.arange(len(images)))
    return np.unique(merged[numbers], return_inverse=True)[1]
