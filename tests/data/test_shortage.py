"""A machine that is short of memory, or of files to open, is not said to have damaged pictures."""

import errno
import json
import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from PIL import Image

import runs
from photos import noise, save
from vitkit.data import EvaluationImages, Preprocess, decode, examine, read_source
from vitkit.errors import ShortageError, VitkitError

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
    assert decode.decode(path).size == (20, 14)
    for width, height in ((2**30, 2**30), (2**24, 2**8)):
        path.write_bytes(tiff_of_tiles(width, height))
        with pytest.raises(decode.UnreadableImageError, match="more memory than its pixels"):
            decode.decode(path)


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
def test_whose_fault_a_lack_of_memory_is(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(noise(), tmp_path / "a.png")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image.Image, "convert", fail)
    with pytest.raises(decode.UnreadableImageError, match="more memory than its pixels"):
        decode.decode(path)
    monkeypatch.setattr(decode, "_is_free", lambda _: False)
    with pytest.raises(ShortageError, match=r"a\.png: .*memory"):
        decode.decode(path)


def test_too_many_open_files_are_not_the_pictures_fault(tmp_path: Path) -> None:
    path = save(noise(), tmp_path / "a.png")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(ShortageError, match=r"a\.png"):
            decode.decode(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_picture_short_of_memory_is_not_left_out_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_source(str(runs.photos(tmp_path / "photos", images=4)))

    def fail(image: Image.Image, *_: object) -> None:
        raise MemoryError

    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))  # another test may have looked at the same pictures
    monkeypatch.setattr(Image.Image, "convert", fail)
    monkeypatch.setattr(decode, "_is_free", lambda _: False)
    with pytest.raises(ShortageError, match="too little memory"):
        examine(table)
    with pytest.raises(VitkitError, match="too little memory"):
        EvaluationImages(table, Preprocess(size=(16, 16)))[0]
    monkeypatch.undo()
    assert {fact.error for fact in examine(table).facts} == {None}
