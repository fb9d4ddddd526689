"""Whatever is in the file, it comes out as the upright RGB picture, or as the reason why not."""

import errno
import io
import json
import resource
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import pillow_heif
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, features

import runs
from photos import folder, noise, save, smooth
from vitkit.data import EvaluationImages, Preprocess, estimate_bytes, examine, read_picture, read_source
from vitkit.data import picture as module
from vitkit.data.decode import UnreadableImageError, decode
from vitkit.errors import ShortageError, VitkitError

ORIENTATION = 0x0112
KINDS = ["heic", "avif"] if features.check("avif") else ["heic"]
# EXIF orientation -> how to store an upright picture so that a viewer that obeys the tag shows it upright.
STORED_BY_ORIENTATION = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def pixels(picture: Image.Image) -> np.ndarray:
    assert picture.mode == "RGB"
    return np.asarray(picture)


def rotated_exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def reason(path: Path) -> str:
    with pytest.raises(UnreadableImageError) as caught:
        decode(path)
    return str(caught.value)


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "ppm", "webp", "gif"])
def test_a_lossless_rgb_picture_comes_back_to_the_bit_and_of_several_the_first(tmp_path: Path, ending: str) -> None:
    options = {"lossless": True} if ending == "webp" else {}
    if ending != "gif":
        path = save(noise(), tmp_path / f"a.{ending}", **options)
        np.testing.assert_array_equal(pixels(decode(path)), np.asarray(noise()))
    if ending not in ("bmp", "ppm"):
        frames = [Image.new("RGB", (8, 6), colour) for colour in [(255, 0, 0), (0, 255, 0), (0, 0, 255)]]
        path = save(frames[0], tmp_path / f"b.{ending}", save_all=True, append_images=frames[1:], **options)
        np.testing.assert_array_equal(pixels(decode(path)), np.asarray(frames[0]))


def test_a_picture_of_any_mode_is_its_rgb(tmp_path: Path) -> None:
    for mode in ("1", "L", "P", "RGB"):
        picture = noise().quantize(40) if mode == "P" else noise().convert(mode)
        path = save(picture, tmp_path / "a.png")
        np.testing.assert_array_equal(pixels(decode(str(path))), np.asarray(picture.convert("RGB")), mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_an_alpha_channel_is_laid_on_white(tmp_path: Path, mode: str) -> None:
    opaque = noise().quantize(16) if mode == "PA" else noise().convert(mode.removesuffix("A"))
    alpha = np.tile(np.linspace(0, 255, opaque.width).astype(np.uint8), (opaque.height, 1))
    picture = opaque.convert("PA") if mode == "PA" else opaque.copy()
    picture.putalpha(Image.fromarray(alpha))
    # No format that Pillow writes keeps the mode PA.
    out = pixels(module.flattened(picture)[0] if mode == "PA" else decode(save(picture, tmp_path / "a.png")))
    colour, share = np.asarray(opaque.convert("RGB")).astype(float), alpha[..., None] / 255
    np.testing.assert_allclose(out, colour * share + 255 * (1 - share), atol=1)
    assert (out[:, 0] == 255).all(), "alpha 0 is exactly white, whatever colour hides below"
    np.testing.assert_array_equal(out[:, -1], colour[:, -1], "alpha 255 is exactly the colour")


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
def test_the_transparent_colour_of_a_png_lands_on_white_and_the_others_stay(tmp_path: Path, mode: str) -> None:
    picture = noise().quantize(40) if mode == "P" else noise().convert(mode)
    colour = picture.getpixel((3, 5))
    is_clear = np.asarray(picture) == colour
    expected = np.asarray(picture.convert("RGB")).copy()
    expected[is_clear.all(axis=-1) if mode == "RGB" else is_clear] = 255
    np.testing.assert_array_equal(pixels(decode(save(picture, tmp_path / "a.png", transparency=colour))), expected)
    assert tuple(expected[5, 3]) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["RGBA", "P", "RGB"])
def test_a_picture_that_is_transparent_everywhere_is_read_as_opaque_with_a_doubt(tmp_path: Path, mode: str) -> None:
    picture = {"RGBA": noise(), "P": noise().quantize(8), "RGB": Image.new("RGB", (8, 6), (9, 8, 7))}[mode]
    expected = np.asarray(picture.convert("RGB"))
    if mode == "RGBA":
        picture.putalpha(0)
    options = {"RGBA": {}, "P": {"transparency": bytes(8)}, "RGB": {"transparency": (9, 8, 7)}}[mode]
    found = read_picture(save(picture, tmp_path / "a.png", **options))
    np.testing.assert_array_equal(pixels(found.image), expected)
    assert "transparent everywhere" in str(found.doubt)


def test_jpegs_are_close_to_their_originals_and_cmyk_and_ycbcr_are_converted(tmp_path: Path) -> None:
    for colour in ((200, 30, 40), (20, 180, 60), (240, 240, 240), (10, 10, 10)):
        flat = Image.new("RGB", (16, 16), colour)
        path = save(flat.convert("CMYK"), tmp_path / "flat.jpg", quality=95)
        np.testing.assert_allclose(pixels(decode(path)), np.asarray(flat), atol=6)
    jpeg, tiff = save(smooth(), tmp_path / "a.jpg", quality=95), save(smooth().convert("YCbCr"), tmp_path / "b.tif")
    np.testing.assert_allclose(pixels(decode(jpeg)), np.asarray(smooth()).astype(int), atol=8)
    np.testing.assert_array_equal(pixels(decode(jpeg, 256)), pixels(decode(jpeg)), "only what is large is scaled")
    np.testing.assert_allclose(pixels(decode(tiff)), np.asarray(smooth()).astype(int), atol=4)


@pytest.mark.parametrize("orientation", [*STORED_BY_ORIENTATION, 9])
def test_every_exif_orientation_gives_the_same_upright_pixels(tmp_path: Path, orientation: int) -> None:
    method = STORED_BY_ORIENTATION.get(orientation)  # one that EXIF does not know changes nothing
    small, large = (own if method is None else own.transpose(method) for own in (noise(20, 14), smooth(320, 240)))
    for ending, options in (("png", {}), ("tif", {}), ("webp", {"lossless": True})):
        path = save(small, tmp_path / f"a.{ending}", exif=rotated_exif(orientation), **options)
        np.testing.assert_array_equal(pixels(decode(path, 4)), np.asarray(noise(20, 14)), ending)  # no JPEG, not scaled
    path = save(large, tmp_path / "a.jpg", exif=rotated_exif(orientation), quality=95)
    for short_side, size in ((None, (320, 240)), (32, (160, 120))):  # a turned picture swaps its sides
        out = decode(path, short_side)
        assert out.size == size
        np.testing.assert_allclose(pixels(out), np.asarray(smooth(320, 240).resize(size)).astype(int), atol=10)


def test_a_photo_whose_exif_block_is_broken_is_still_a_photo_and_a_phones_mpo_is_one(tmp_path: Path) -> None:
    plain = save(smooth(320, 240), tmp_path / "b.jpg")
    for block in (b"", b"garbage", b"II*\0\x08\0\0\0\xff\xff\x12\x01", bytes(40)):
        path = save(smooth(320, 240), tmp_path / "a.jpg", exif=b"Exif\0\0" + block)
        np.testing.assert_array_equal(pixels(decode(path)), pixels(decode(plain)))
    path = save(smooth(320, 240), tmp_path / "c", format="MPO", save_all=True, append_images=[noise(320, 240)])
    for short_side in (None, 25):
        np.testing.assert_array_equal(pixels(decode(path, short_side)), pixels(decode(plain, short_side)))


def test_a_photo_whose_exif_block_can_be_read_but_not_written_again_is_turned_upright(tmp_path: Path) -> None:
    exif = rotated_exif(6)
    exif[0x011A] = (72, 1)  # a resolution, renamed below to a tag of another type
    with warnings.catch_warnings(action="ignore"):  # Pillow on what it is made to write
        whole = exif.tobytes()
    block = whole.replace(b"\x01\x1a\x00\x05", b"\x01\x19\x00\x05")
    assert block != whole
    stored = smooth().transpose(STORED_BY_ORIENTATION[6])
    out = decode(save(stored, tmp_path / "a.jpg", exif=block, quality=95))
    np.testing.assert_allclose(pixels(out), np.asarray(smooth()).astype(int), atol=10)


def test_what_is_no_picture_is_told_by_its_reason(tmp_path: Path) -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"  # Pillow would start a program for it
    for content in (b"plain text", b"\x89PNG", postscript, b""):
        (tmp_path / "a.jpg").write_bytes(content)
        assert reason(tmp_path / "a.jpg") == ("not an image" if content else "empty file")
    assert reason(save(noise(), tmp_path / "b.jpg", format="PCX")) == "not an image", "a format outside the list"
    (tmp_path / "link.png").symlink_to(tmp_path / "nowhere")
    assert reason(tmp_path / "none.png") == reason(tmp_path / "link.png") == "no such file"
    assert reason(tmp_path) == "a folder, not a file"


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "bmp"])
def test_half_a_file_is_unreadable_rather_than_half_grey(tmp_path: Path, ending: str) -> None:
    path = save(noise(64, 64), tmp_path / f"a.{ending}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    told = reason(path)
    assert told == "truncated" or ending == "tif", told
    if ending == "jpg":  # at any scale
        path = save(noise(256, 256), tmp_path / "a.jpg")
        path.write_bytes(path.read_bytes()[:-4000])
        for short_side in (None, 8):
            with pytest.raises(UnreadableImageError, match=r"^truncated$"):
                decode(path, short_side)


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def spoiled(chunk: bytes) -> bytes:
    """Return a chunk whose checksum is wrong."""
    return chunk[:-1] + bytes([chunk[-1] ^ 1])


LONG = zlib.compress(b"a" * 2**21, 9)  # more than Pillow reads by itself


@pytest.mark.parametrize("place", [b"PLTE", b"IDAT", b"IEND"])
@pytest.mark.parametrize("chunk", [png_chunk(b"zTXt", b"Comment\0\0" + LONG), png_chunk(b"iCCP", b"p\0\0" + LONG)])
def test_long_metadata_of_a_png_do_not_matter(tmp_path: Path, chunk: bytes, place: bytes) -> None:
    path = save(noise().quantize(40), tmp_path / "a.png", transparency=7, exif=rotated_exif(6))
    expected = pixels(decode(path))
    np.testing.assert_array_equal(pixels(decode(before(path, place, chunk))), expected)


def before(path: Path, name: bytes, chunk: bytes) -> Path:
    """The PNG with another chunk before the one of this name."""
    content = path.read_bytes()
    place = content.index(name) - 4
    path.write_bytes(content[:place] + chunk + content[place:])
    return path


def test_a_png_whose_pixels_or_transparency_are_damaged_is_damaged(tmp_path: Path) -> None:
    path = save(noise().quantize(40), tmp_path / "a.png")
    assert reason(before(path, b"IDAT", spoiled(png_chunk(b"tRNS", bytes(40))))) == "damaged PNG"
    content = bytearray(save(noise(64, 64), path).read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    assert reason(path).startswith(("damaged", "truncated"))


@pytest.mark.parametrize("ending", ["png", "jpg", "tif"])
def test_the_pixel_limit_is_checked_on_the_header(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(noise(20, 14), tmp_path / f"a.{ending}")
    with monkeypatch.context() as patch:
        patch.setattr(module, "MAX_PIXELS", 20 * 14 - 1)
        patch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))
        patch.setattr(Image.Image, "load", lambda *_: pytest.fail("decoded"))
        told = reason(path)
    assert "20x14" in told and "279" in told
    monkeypatch.setattr(module, "MAX_PIXELS", 20 * 14)
    assert decode(path).size == (20, 14), "the limit itself is allowed"


@given(width=st.integers(1, 700), height=st.integers(1, 700), short_side=st.integers(1, 200))
@settings(max_examples=25)
def test_scaled_decoding_keeps_twice_the_short_side(scratch: Path, width: int, height: int, short_side: int) -> None:
    Image.new("RGB", (width, height)).save(scratch, "JPEG")
    out = decode(scratch, short_side)
    assert min(out.size) >= min(2 * short_side, width, height)
    assert max(out.size) <= max(width, height)


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    buffer = io.BytesIO()
    noise(12, 9).save(buffer, draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "HEIF"])))
    content = bytearray(buffer.getvalue())
    for _ in range(draw(st.integers(1, 6))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(1, len(content)))])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("fuzz") / "a.jpg"


@given(content=st.one_of(st.binary(max_size=200), damaged_files()), short_side=st.sampled_from([None, 4]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_are_a_picture_or_unreadable(scratch: Path, content: bytes, short_side: int | None) -> None:
    scratch.write_bytes(content)
    with mock.patch.object(module, "MAX_PIXELS", 1_000_000):  # a damaged header must not fill the memory here
        try:
            picture = decode(scratch, short_side)
        except UnreadableImageError as error:
            assert str(error)
        else:
            assert picture.mode == "RGB"


@pytest.mark.parametrize("strip", [1, 100])
def test_a_picture_is_the_same_for_rows_at_a_time(strip: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    paletted = Image.fromarray(rng.integers(0, 9, (31, 7), dtype=np.uint8), "P")
    paletted.putpalette(rng.integers(0, 256, 27).tolist())
    save(paletted, tmp_path / "a.png", transparency=bytes(range(0, 225, 25)))
    save(Image.fromarray(rng.integers(0, 2**16, (31, 7), dtype=np.uint16)), tmp_path / "b.png")
    whole = [pixels(decode(tmp_path / name)) for name in ("a.png", "b.png")]
    monkeypatch.setattr("vitkit.data.picture.STRIP", strip)
    for name, expected in zip(("a.png", "b.png"), whole, strict=True):
        np.testing.assert_array_equal(pixels(decode(tmp_path / name)), expected)


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


NO_MEMORY = MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), OSError("out of memory error when reading")
IN_LITTLE = """
import json, resource, sys
from PIL import Image
from vitkit.data.decode import read_picture
Image.init()
pages = int(open("/proc/self/statm").read().split()[0])
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
said = {}
for free in (80, 2000):
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + free * 2**20, hard))
    for path in sys.argv[1:]:
        try:
            found = str(read_picture(path).image.size)
        except ValueError as error:
            found = f"{type(error).__name__}: {error}"
        said[f"{path} {free}"] = found
print(json.dumps(said))
"""


def test_a_large_picture_and_little_memory(tmp_path: Path) -> None:
    large = save(Image.new("L", (6000, 5000), 9), tmp_path / "large.png")
    small = save(noise(), tmp_path / "small.png")
    (tmp_path / "cut.png").write_bytes(large.read_bytes()[:-100])
    command = [sys.executable, "-c", IN_LITTLE, large, small, tmp_path / "cut.png"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert said[f"{large} 80"].startswith(f"ShortageError: {large}: ")
    assert said[f"{large} 2000"] == "(6000, 5000)"
    assert said[f"{small} 80"] == said[f"{small} 2000"] == "(20, 14)"
    assert said[f"{tmp_path / 'cut.png'} 2000"] == "UnreadableImageError: truncated"


def tiff_of_tiles(width: int, height: int) -> bytes:
    """20x14 grey pixels, said to lie in one packed tile of such a size."""
    data = zlib.compress(bytes(32 * 16))
    longs = {256: 20, 257: 14, 322: width, 323: height, 324: 8, 325: len(data)}
    tags = longs | {258: 8, 259: 8, 262: 1, 277: 1}
    entries = [struct.pack("<HHII", tag, 4 if tag in longs else 3, 1, tags[tag]) for tag in sorted(tags)]
    head = b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags))
    return head + b"".join(entries) + bytes(4)


def test_a_file_that_asks_for_more_than_its_pixels_need_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.tiff"
    path.write_bytes(tiff_of_tiles(32, 16))
    assert decode(path).size == (20, 14)
    for width, height in ((2**30, 2**30), (2**24, 2**8)):
        path.write_bytes(tiff_of_tiles(width, height))
        with pytest.raises(UnreadableImageError, match="more memory than its pixels"):
            decode(path)


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
def test_whose_fault_a_lack_of_memory_is(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(noise(), tmp_path / "a.png")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image.Image, "convert", fail)
    with pytest.raises(UnreadableImageError, match="more memory than its pixels"):
        decode(path)
    monkeypatch.setattr("vitkit.data.decode._is_free", lambda _: False)
    with pytest.raises(ShortageError, match=r"a\.png: .*memory"):
        decode(path)


def test_too_many_open_files_are_not_the_pictures_fault(tmp_path: Path) -> None:
    path = save(noise(), tmp_path / "a.png")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(ShortageError, match=r"a\.png"):
            decode(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_picture_short_of_memory_is_not_left_out_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_source(str(runs.photos(tmp_path / "photos", images=4)))

    def fail(image: Image.Image, *_: object) -> None:
        raise MemoryError

    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))  # another test may have looked at the same pictures
    monkeypatch.setattr(Image.Image, "convert", fail)
    monkeypatch.setattr("vitkit.data.decode._is_free", lambda _: False)
    with pytest.raises(ShortageError, match="too little memory"):
        examine(table)
    with pytest.raises(VitkitError, match="too little memory"):
        EvaluationImages(table, Preprocess(size=(16, 16)))[0]
    monkeypatch.undo()
    assert {fact.error for fact in examine(table).facts} == {None}
