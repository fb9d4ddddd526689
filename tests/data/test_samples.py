"""Numbers of more than 8 bits, signed or real, against files written by hand whose black and white are known."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.test_decode import before, png_chunk
from photos import noise, save
from tiffs import write_png, write_tiff
from vitkit.data import MemoryBudget, read_picture
from vitkit.data import decode as decoding
from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.in_memory import PictureInMemory, open_in_memory

RAMP = np.linspace(0, 1, 24 * 32).reshape(24, 32)


def ramp(dtype: str, most: float, least: float = 0) -> np.ndarray[Any, Any]:
    scaled = least + RAMP * (most - least)
    return (scaled if "f" in dtype else scaled.round()).astype(dtype)


def grey(path: Path) -> np.ndarray[Any, Any]:
    return np.asarray(decode(path))[..., 0].astype(float)


def nodata(text: str) -> dict[str, Any]:
    return {"t42113": (2, text.encode() + b"\0")}


SAYING = {  # what is written, and what the file says besides
    "16 bits": (ramp("<u2", 65535), {}),
    "12 bits in 16": (ramp("<u2", 4095), {"t281": (3, 4095)}),
    "12 bits in 16, big end first": (ramp(">u2", 4095), {"t281": (3, 4095)}),
    "10 bits in 16": (ramp("<u2", 1023), {"t281": (3, 1023), "t280": (3, 0)}),
    "14 bits in 32": (ramp("<u4", 16383), {"t281": (3, 16383)}),
    "32 bits": (ramp("<u4", 2**32 - 1), {"t341": (4, 2**32 - 1)}),
    "signed 16 bits": (ramp("<i2", 3071, -1024), {"t340": (9, -1024), "t341": (9, 3071)}),
    "signed 16 bits, none negative": (ramp("<i2", 32767), {}),
    "floats from 0 to 1": (ramp("<f4", 1), {}),
    "floats from 0 to 1, big end first": (ramp(">f4", 1), {}),
    "floats from -2 to 5": (ramp("<f4", 5, -2), {"t340": (11, -2.0), "t341": (11, 5.0)}),
}
READ_INVERTED = ("16 bits", "floats from 0 to 1", "floats from 0 to 1, big end first")
UNSAID = {
    "12 bits in 16": (ramp("<u2", 4095), 16, "none of its numbers is above 4095 of 65535"),
    "12 bits in 32": (ramp("<i4", 4095), 1, "how many of its 32 bits"),
    "16 bits in 32, unsigned": (ramp("<u4", 65535), 1, "how many of its 32 bits"),
    "32 bits": (ramp("<u4", 2**32 - 1), 1, "which of its numbers, 0 to 4.29497e+09"),
    "signed": (ramp("<i2", 3071, -1024), 1, "which of its numbers, -1024 to 3071"),
    "floats": (ramp("<f4", 900, -4), 1, "which of its numbers, -4 to 900"),
}


@pytest.mark.parametrize("white_is_zero", [False, True])
@pytest.mark.parametrize("name", SAYING)
def test_a_tiff_is_read_by_what_it_says_of_its_numbers(tmp_path: Path, name: str, white_is_zero: bool) -> None:
    values, tags = SAYING[name]
    path = write_tiff(tmp_path / "a.tif", values, white_is_zero=white_is_zero, **tags)
    try:
        picture = read_picture(path)
    except decoding.UnreadableImageError:
        assert white_is_zero and name not in READ_INVERTED  # Pillow reads few of these
        return
    expected = 255 * (1 - RAMP if white_is_zero else RAMP)
    atol = 0.51 + (255 / 1023 if "10" in name else 0)
    np.testing.assert_allclose(np.asarray(picture.image)[..., 0], expected, atol=atol)
    assert picture.doubt is None


@pytest.mark.parametrize("name", UNSAID)
def test_what_a_tiff_does_not_say_is_doubted(tmp_path: Path, name: str) -> None:
    values, too_dark, said = UNSAID[name]
    picture = read_picture(write_tiff(tmp_path / "a.tif", values))
    np.testing.assert_allclose(np.asarray(picture.image)[..., 0], 255 * RAMP / too_dark, atol=0.6)
    assert said in str(picture.doubt)


def test_bands_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "a.tif", np.stack([ramp("u1", 255)] * 4, axis=2), t262=(3, 2), t338=(3, 0))
    np.testing.assert_allclose(grey(path), 255 * RAMP, atol=0.51)
    assert "only 3" in str(read_picture(path).doubt)


def test_a_number_that_is_not_finite_spoils_no_other(tmp_path: Path) -> None:
    for bad, most in ((np.inf, 1.0), (-np.inf, 900.0), (np.nan, 900.0)):
        values, expected = ramp("<f4", most), 255 * RAMP
        values[3, 4], expected[3, 4] = bad, 255 if bad == np.inf else 0
        picture = read_picture(write_tiff(tmp_path / "a.tif", values))
        np.testing.assert_allclose(np.asarray(picture.image)[..., 0], expected, atol=0.51)
        assert picture.doubt


@pytest.mark.parametrize(
    ("most", "tags", "white"),
    [
        *((65535, {"t281": (3, written)}, 65535) for written in (4095, 0)),  # exceeded, or nonsense
        *((65535, {"t341": written}, 65535) for written in ((11, float("nan")), (12, 1e300))),
        *((65535, nodata(written), 65535) for written in ("70000", "-1", "none")),
        # The standard has MaxSampleValue for statistics: a dark picture of 12 bits stays dark.
        (2500, {"t281": (3, 2500)}, 4095),
    ],
)
def test_a_largest_number_that_cannot_be_meant_is_not_believed(
    tmp_path: Path, most: int, tags: dict[str, Any], white: int
) -> None:
    path = write_tiff(tmp_path / "a.tif", ramp("<u2", most), **tags)
    np.testing.assert_allclose(grey(path), 255 * RAMP * most / white, atol=0.6)


@pytest.mark.parametrize("write", [write_tiff, write_png])
def test_colours_of_16_bits_that_are_all_small_are_doubted(tmp_path: Path, write: Any) -> None:
    colours = np.stack([ramp("<u2", 4095)] * 3, axis=2)
    assert read_picture(write(tmp_path / "dark", colours)).doubt
    assert read_picture(write(tmp_path / "light", colours * 16)).doubt is None
    told = write_tiff(tmp_path / "told.tif", colours, t281=(3, 4095))
    np.testing.assert_allclose(grey(told), 255 * RAMP, atol=16)  # Pillow keeps four bits of twelve
    colours[:3] = 65535  # holes do not hide that the others are small
    assert read_picture(write_tiff(tmp_path / "holes.tif", colours, **nodata("65535"))).doubt


def test_the_significant_bits_of_a_png_are_its_upper_ones(tmp_path: Path) -> None:
    scaled = (ramp("<u2", 255) << 8) | ramp("<u2", 255)
    np.testing.assert_allclose(grey(write_png(tmp_path / "a.png", scaled, 8)), 255 * RAMP, atol=0.51)
    dark = ramp("<u2", 255) << 4  # twelve significant bits, rightly the upper ones: dark, and told so
    picture = read_picture(write_png(tmp_path / "b.png", dark, 12))
    assert np.asarray(picture.image).max() <= 16 and picture.doubt
    unscaled = read_picture(write_png(tmp_path / "c.png", ramp("<u2", 4095), 12))
    np.testing.assert_allclose(np.asarray(unscaled.image)[..., 0], 255 * RAMP, atol=0.51)
    assert unscaled.doubt is None


HOLES = {  # numbers, the one that stands for a hole, and how the file says so
    "the largest": ("<u2", 3000.0, 65535, "65535"),
    "black": ("<u2", 60000.0, 0, "0"),
    "a space and a point": ("<i2", 3000.0, -9999, "-9999.0 "),
    "a comma": ("<f4", 300.0, -9999, "-9999,0"),
    "an exponent": ("<f4", 300.0, -3.4028234663852886e38, "-3.4028234663852886e+38"),
    "no number": ("<f4", 300.0, np.nan, "nan"),
    "a decimal fraction": ("<f4", 300.0, -0.1, "-0.1"),
    "within 0 to 1": ("<f4", 1.0, -9999, "-9999"),
}


@pytest.mark.parametrize("name", HOLES)
def test_holes_do_not_change_how_other_numbers_are_read(tmp_path: Path, name: str) -> None:
    dtype, most, hole, text = HOLES[name]
    values = ramp(dtype, most, 1 if hole == 0 else 0)
    plain = read_picture(write_tiff(tmp_path / "plain.tif", values[3:]))
    values[:3] = hole
    picture = read_picture(write_tiff(tmp_path / "a.tif", values, **nodata(text)))
    np.testing.assert_array_equal(np.asarray(picture.image)[3:], np.asarray(plain.image))
    assert np.asarray(picture.image)[:3].max() == 0
    assert picture.doubt == plain.doubt


def test_a_transparent_grey_of_16_bits_is_white_and_a_colour_is_refused(tmp_path: Path) -> None:
    values = ramp("<u2", 65535)
    values[:3] = 300
    path = before(write_png(tmp_path / "a.png", values), b"IDAT", png_chunk(b"tRNS", b"\1\x2c"))
    expected = 255 * RAMP
    expected[values == 300] = 255
    np.testing.assert_allclose(grey(path), expected, atol=0.51)
    with Image.open(path) as image, open_in_memory(PictureInMemory("a", image)) as held:
        np.testing.assert_array_equal(np.asarray(held.image)[..., 0], grey(path))
    colours = write_png(tmp_path / "b.png", np.stack([ramp("<u2", 65535)] * 3, axis=2))
    with pytest.raises(UnreadableImageError, match="transparent"):
        decode(before(colours, b"IDAT", png_chunk(b"tRNS", bytes(6))))


RAW = "a camera's raw file, of which only the preview could be read: convert it to JPEG or TIFF"
UNSUPPORTED = {
    "13 bands": (
        np.zeros((4, 4, 13), "<u2"),
        {"262": (3, 1)},
        r"a TIFF of a kind .* \(bands: 13, bits: 16, compression: 1\)",
    ),
    "reals": (np.zeros((4, 4, 3), "<f4"), {}, "bands: 3, bits: 32, .* 8 or 16 bits"),
    "Lab": (np.zeros((4, 4, 3), "<u2"), {"262": (3, 8)}, "bands: 3, bits: 16"),
    "long reals": (np.zeros((4, 4), "<f8"), {}, "bands: 1, bits: 64"),
    "JPEG 2000": (np.zeros((4, 4), "u1"), {"259": (3, 34712)}, "compression: 34712"),
    "a sensor": (np.zeros((4, 4), "<u2"), {"262": (3, 32803)}, RAW),
    "DNG": (np.zeros((4, 4, 3), "u1"), {"50706": (4, 1)}, RAW),
    "NEF": (np.zeros((4, 4, 3), "u1"), {"254": (4, 1), "330": (4, 0)}, RAW),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unread_tiff_is_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    values, tags, said = UNSUPPORTED[name]
    write_tiff(tmp_path / "a.tif", values, **{f"t{tag}": value for tag, value in tags.items()})
    with pytest.raises(UnreadableImageError, match=said):
        decode(tmp_path / "a.tif")


@pytest.mark.parametrize(("size", "most_at_once"), [(2**40, 4), (1, 1)])
def test_large_pictures_are_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, most_at_once: int
) -> None:
    paths = [save(noise(100, 100, i), tmp_path / f"{i}.png") for i in range(8)]
    monkeypatch.setattr(decoding, "LEAST_BUDGET", size)
    monkeypatch.setattr(decoding, "available_memory", lambda: 4 * size)
    monkeypatch.setattr(decoding, "DECODE_BUDGET", MemoryBudget())
    meeting = threading.Barrier(most_at_once)
    lock, inside, most = threading.Lock(), 0, 0

    def look(path: Path) -> None:
        nonlocal inside, most
        for _ in range(5):
            with decoding.picture_of(path):
                with lock:
                    inside += 1
                    most = max(most, inside)
                meeting.wait(timeout=60)
                with lock:
                    inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(look, paths, timeout=60))
    assert most == most_at_once


def test_what_failed_gives_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a picture is larger than the room, too: one thread never waits for itself."""
    monkeypatch.setattr(decoding, "LEAST_BUDGET", 1)
    monkeypatch.setattr(decoding, "available_memory", lambda: 4)
    monkeypatch.setattr(decoding, "DECODE_BUDGET", MemoryBudget())
    path = save(noise(164, 164), tmp_path / "a.png")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(decoding.UnreadableImageError):
        decode(path)
    done = threading.Thread(target=decode, args=(save(noise(130, 130), tmp_path / "b.png"),))
    done.start()
    done.join(timeout=10)
    assert not done.is_alive()
