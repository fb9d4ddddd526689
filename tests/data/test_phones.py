"""HEIC and AVIF, as phones write them: upright once, within the same bounds, and at no cost to whoever has none."""

import io
import struct
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import pillow_heif
import pytest
from PIL import Image, features

from data.test_decode import STORED_BY_ORIENTATION, pixels, reason, rotated_exif
from photos import folder, noise, save, smooth
from vitkit.data import estimate_bytes, examine, read_picture, read_source
from vitkit.data.decode import decode

KINDS = ["heic", "avif"] if features.check("avif") else ["heic"]


@pytest.fixture(scope="module", autouse=True)
def _writes_heic() -> None:
    pillow_heif.register_heif_opener()


@pytest.fixture(scope="module")
def heic() -> bytes:
    """A picture of 300 x 200 pixels, of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (300, 200), (200, 30, 60)).save(buffer, "HEIF", quality=10)
    return buffer.getvalue()


def saying(content: bytes, width: int, height: int) -> bytes:
    """The same file that says to have other sides."""
    changed, place = bytearray(content), 0
    while (place := changed.find(b"ispe", place)) >= 0:
        changed[place + 8 : place + 16] = struct.pack(">II", width, height)
        place += 4
    return bytes(changed)


@pytest.mark.parametrize(("kind", "orientation"), [*product(KINDS[:1], STORED_BY_ORIENTATION), (KINDS[-1], 6)])
def test_a_turned_phone_gives_an_upright_picture(tmp_path: Path, kind: str, orientation: int) -> None:
    turn = STORED_BY_ORIENTATION[orientation]
    stored = smooth(64, 48) if turn is None else smooth(64, 48).transpose(turn)
    path = save(stored, tmp_path / f"a.{kind}", quality=95, exif=rotated_exif(orientation).tobytes())
    picture = read_picture(path)
    assert (picture.width, picture.height) == picture.image.size == (64, 48)
    np.testing.assert_allclose(pixels(picture.image).astype(int), np.asarray(smooth(64, 48)).astype(int), atol=16)


def test_tiles_transparency_and_grey_are_read_and_of_several_pictures_the_one_that_is_shown(tmp_path: Path) -> None:
    tiled = save(smooth(200, 150), tmp_path / "tiles.heic", format="HEIF", quality=95, tile_size=64)
    np.testing.assert_allclose(pixels(decode(tiled)).astype(int), np.asarray(smooth(200, 150)).astype(int), atol=16)
    clear = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    clear.paste((255, 0, 0, 255), (0, 0, 64, 8))
    assert pixels(decode(save(clear, tmp_path / "clear.heif", format="HEIF")))[32, 32].min() > 250
    grey = decode(save(Image.new("L", (64, 64), 90), tmp_path / "grey.hif", format="HEIF"))
    np.testing.assert_allclose(pixels(grey).astype(int), 90, atol=3)
    path = tmp_path / "burst.heic"
    smooth(64, 48).save(path, save_all=True, append_images=[noise(64, 48)], primary_index=0, quality=95)
    np.testing.assert_allclose(pixels(decode(path)).astype(int), np.asarray(smooth(64, 48)).astype(int), atol=16)


def test_more_pixels_than_the_limit_are_refused_before_they_are_decoded(tmp_path: Path, heic: bytes) -> None:
    (tmp_path / "huge.heic").write_bytes(saying(heic, 60_000, 60_000))
    with mock.patch.object(Image.Image, "load", lambda *_: pytest.fail("decoded")):
        told = reason(tmp_path / "huge.heic")
    assert "limit of 178,956,970" in told


def test_a_file_that_lies_about_its_sides_and_a_part_of_one_are_no_picture(tmp_path: Path, heic: bytes) -> None:
    """The reader would take the memory of what is in it, not of what was looked at."""
    lies = [saying(heic, *own) for own in ((299, 200), (301, 200), (10_000, 9_000), (200, 300))]
    for content in (*lies, *(heic[:part] for part in (13, 400))):
        (tmp_path / "a.heic").write_bytes(content)
        assert "damaged" in reason(tmp_path / "a.heic")


def test_the_doctor_knows_them_and_the_image_cache_their_sizes(tmp_path: Path) -> None:
    folder(tmp_path, {"cat": 2, "dog": 2})
    files = [save(smooth(64 + i, 48), tmp_path / "cat" / f"{i}.heic") for i in range(3)]
    found = examine(read_source(tmp_path))
    assert found.unreadable == {}
    assert found.to_dict()["formats"] == {"PNG": 4, "HEIF": 3}
    assert not any("HEIF" in str(own) for own in found.findings)
    assert estimate_bytes(files, None) == pytest.approx(3 * 3 * 65 * 48, rel=0.05)
