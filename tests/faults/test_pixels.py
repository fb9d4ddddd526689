"""Pictures whose numbers are not plain bytes, written by hand: read by what the file says, or doubted aloud."""

from pathlib import Path

import numpy as np
import pytest

from tiffs import write_tiff
from vitkit.data import read_picture
from vitkit.data.decode import UnreadableImageError

pytestmark = pytest.mark.accept
RAMP = np.linspace(0, 1, 24 * 32).reshape(24, 32)


def test_every_depth_order_and_way_of_telling(tmp_path: Path) -> None:
    """Of all that Pillow opens: the true brightness within a step, or a doubt that is told."""
    tried = read = 0
    for dtype in ("u2", "u4", "i2", "i4", "f4"):
        for order in "<>":
            for bits in range(7, 8 * int(dtype[1]) + 1):
                for told in (None, 281, 341):
                    for is_negative in (False, True):
                        tried += 1
                        read += _is_right(tmp_path / "a.tif", dtype, order, bits, told, is_negative=is_negative)
    assert (tried, read >= 150) == (1176, True), (tried, read)


def _is_right(path: Path, dtype: str, order: str, bits: int, told: int | None, *, is_negative: bool) -> bool:
    kind = dtype[0]
    most = 1.0 if kind == "f" else float(2 ** min(bits, 8 * int(dtype[1]) - (kind == "i")) - 1)
    values = RAMP * most
    values = (values if kind == "f" else np.floor(values)).astype(order + dtype)
    tags = {} if told is None or (told == 281 and most > 65535) else {f"t{told}": (3 if told == 281 else 12, most)}
    tags = {name: (type_, int(value) if type_ == 3 else value) for name, (type_, value) in tags.items()}
    write_tiff(path, values, white_is_zero=is_negative, **tags)
    try:
        picture = read_picture(path)
    except UnreadableImageError:
        return False
    expected = 255 * (1 - RAMP if is_negative else RAMP)
    if dtype[1] == "2" and told is None and most in (32767.0, 16383.0) and picture.doubt is None:
        expected = 255 * (1 - RAMP / 2 if is_negative else RAMP / 2) if bits < 16 - (kind == "i") else expected
    off = np.abs(np.asarray(picture.image)[..., 0] - expected).max()
    assert off <= 0.6 + 255 / most * (kind != "f") or picture.doubt, (dtype, order, bits, told, is_negative, off)
    return True


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for count in range(100):
        values = (RAMP * (1 + 899 * (count % 2))).astype("<f4")
        bad = rng.random(values.shape) < rng.choice([0.001, 0.1, 0.9])
        values[bad] = rng.choice([np.nan, np.inf, -np.inf], bad.sum())
        picture = read_picture(write_tiff(tmp_path / "a.tif", values))
        good = np.asarray(picture.image)[..., 0][~bad]
        assert (np.diff(good.astype(int)) >= 0).all() and (not bad.any() or picture.doubt)
        assert len(good) < 2 or good.max() > 100 or bad.mean() > 0.5
