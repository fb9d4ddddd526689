"""Check on this machine that the model computes what the original did: `python verify.py`.

If it does, `.unverified` is removed from the name of this folder. Otherwise, the exit status is 1.
"""

import sys
from pathlib import Path

import numpy as np

from model import logits  # type: ignore[import-not-found]

folder = Path(__file__).resolve().parent
stored = np.load(folder / "expected.npz")
expected = stored["logits"]
most = float(stored["largest_error"])
found = logits(stored["images"])
size = 1.0
if expected.shape[1] > 1:
    size = np.sqrt(np.square(expected - expected.mean(axis=1, keepdims=True)).mean())
error = np.sqrt(np.square(found - expected).mean()) / size
peak = np.abs(found - expected).max() / size
agreement = (found.argmax(axis=1) == expected.argmax(axis=1)).mean()
print(f"{len(found)} pictures: logits differ by {error:.2%} of their size, and by {peak:.2%} at most")
print(f"the most probable class is the same for {agreement:.1%}")
if not (error <= most and peak <= 8 * most):  # NaN, too, is refused
    sys.exit(f"the model does not compute what the original did: rounding explains {most:.1%} and {8 * most:.1%}")
print("verified")
if folder.suffix == ".unverified":
    try:
        folder.rename(folder.with_suffix(""))
    except OSError:  # Windows renames no folder in which a program works
        print(f"remove .unverified from the name of {folder}")
