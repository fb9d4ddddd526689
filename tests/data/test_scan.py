"""Files that were seen before are known again, whatever became of their names and of the memory itself."""

import contextlib
import errno
import os
import resource
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from once import once
from photos import fingerprint, folder, noise, save, smooth
from vitkit.data import (
    BYTES,
    MOST,
    ROLES,
    THUMBNAIL,
    FactDatabase,
    Facts,
    FactTable,
    examine,
    make_record,
    read_source,
    scan,
)
from vitkit.data import file_facts as module
from vitkit.errors import ShortageError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return folder(tmp_path / "photos", {"cat": 12, "dog": 8})


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files that are decoded, as they are."""
    names: list[str] = []
    original = module.picture_of

    def spy(file: Path, **options: Any) -> Any:
        names.append(file.name)
        return original(file, **options)

    monkeypatch.setattr(module, "picture_of", spy)
    return names


def look(files: list[Path], **options: Any) -> list[Facts]:
    with FactDatabase() as database:
        return list(scan(files, database, **options))


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def database(cache: Path) -> Path:
    (file,) = cache.glob("*.sqlite3")
    return file


def age(root: Path) -> None:
    """As if all that is there had been there for long."""
    for path in files_of(root):
        os.utime(path, (1_000_000_000, 1_000_000_000))


def test_facts_say_what_is_in_each_file_in_order(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [noise(20, 14, seed) for seed in range(3)]
    files = [
        save(smooth(300, 200), tmp_path / "z.jpg"),
        save(noise(20, 14).convert("L"), tmp_path / "y.png"),
        save(noise(20, 14), tmp_path / "turned.png", exif=exif),
        save(frames[0], tmp_path / "moving.gif", save_all=True, append_images=frames[1:]),
        save(noise(20, 14).convert("RGBA"), tmp_path / "really.png.jpg", format="PNG"),
        tmp_path / "gone.png",
    ]
    (tmp_path / "text.jpg").write_text("text")
    told = look([*files, tmp_path / "text.jpg"])
    assert [(f.format, f.mode, f.width, f.height, f.is_animated) for f in told[:5]] == [
        ("JPEG", "RGB", 300, 200, False),
        ("PNG", "L", 20, 14, False),
        ("PNG", "RGB", 14, 20, False),
        ("GIF", told[3].mode, 20, 14, True),
        ("PNG", "RGBA", 20, 14, False),
    ]
    assert [f.error for f in told] == [None] * 5 + ["no such file", "not an image"]
    assert all(len(f.thumbnail) == 3 * THUMBNAIL**2 for f in told[:5])
    (square,) = look([save(smooth(160, 160), tmp_path / "square.png")])
    seen = np.frombuffer(square.thumbnail, np.uint8).reshape(THUMBNAIL, THUMBNAIL, 3).astype(float)
    blocks = np.asarray(smooth(160, 160)).astype(float).reshape(16, 10, 16, 10, 3).mean(axis=(1, 3))
    assert np.abs(seen - blocks).max() <= 1
    small, large = look([save(noise(60, height), tmp_path / f"{height}.png") for height in (47, 48)])
    assert not small.keypoints and large.keypoints
    assert told[5].digest == b""
    assert len({f.digest for f in told}) == 7
    assert look([*files, tmp_path / "text.jpg"]) == told


def test_more_files_than_are_written_at_a_time(tmp_path: Path, decoded: list[str]) -> None:
    files = [tmp_path / f"{i:03}.bmp" for i in range(700)]
    for i, file in enumerate(files):
        Image.new("RGB", (2, 2), (i % 256, i // 256, 7)).save(file)
    told: list[tuple[int, int]] = []
    first = look(files, progress=lambda *step: told.append(step))
    assert [fact.thumbnail[:3] for fact in first] == [bytes((i % 256, i // 256, 7)) for i in range(700)]
    assert told[-1] == (700, 700) and told == sorted(told)
    assert look(files) == first and len(decoded) == 700


def test_a_file_under_another_name_is_known_and_one_that_a_list_names_often_read_once(
    photos: Path, decoded: list[str], tmp_path: Path
) -> None:
    (photos / "cat" / "text.jpg").write_text("not a picture")
    (photos / "dog" / "empty.png").touch()
    files = files_of(photos)
    often = look(files * 10)
    before = often[: len(files)]
    assert often == before * 10 and len(decoded) == len(files) == 22
    assert {fact.error for fact in before} == {None, "not an image", "empty file"}
    moved = photos.rename(tmp_path / "moved")
    (moved / "cat" / "cat_3.png").rename(moved / "cat" / "0.jpg")
    shutil.copy(moved / "dog" / "dog_1.png", moved / "dog" / "copy.png")
    decoded.clear()
    after = look(files_of(moved))
    assert decoded == []
    assert {fact.digest for fact in after} == {fact.digest for fact in before}


@pytest.mark.parametrize("is_old", [True, False], ids=["old files", "new files"])
def test_changed_content_is_noticed(photos: Path, is_old: bool) -> None:
    """Of the same size, and with the same time of change, as a careful tool would leave it."""
    file = photos / "cat" / "cat_0.png"
    bitmap, other = noise(20, 14, 900), noise(20, 14, 901)
    bitmap.save(file, "BMP")
    if is_old:
        age(photos)
    times, size = (file.stat().st_atime_ns, file.stat().st_mtime_ns), file.stat().st_size
    (first,) = look([file])
    time.sleep(0.02)
    other.save(file, "BMP")
    os.utime(file, ns=times)
    assert file.stat().st_size == size
    (second,) = look([file])
    assert second.digest != first.digest
    assert second.thumbnail != first.thumbnail


def test_a_file_that_becomes_readable_or_changes_its_place_is_read_anew(photos: Path) -> None:
    one, two = photos / "cat" / "cat_0.png", photos / "dog" / "dog_0.png"
    whole = one.read_bytes()
    one.write_bytes(whole[:100])
    age(photos)
    assert look([one])[0].error == "truncated"
    one.write_bytes(whole)
    assert look([one])[0].error is None
    age(photos)
    first = look([one, two])
    one.rename(photos / "x")
    two.rename(one)
    (photos / "x").rename(two)
    assert look([one, two]) == first[::-1]


def test_momentary_faults_are_not_remembered(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = OSError(errno.EMFILE, "Too many open files"), OSError(errno.EIO, "Input/output error"), MemoryError()
    for first, trouble in enumerate(faults):
        files = files_of(photos)[3 * first : 3 * first + 3]
        with monkeypatch.context() as patch, contextlib.suppress(ShortageError):
            patch.setattr(Image, "open", mock.Mock(side_effect=trouble))
            look(files)
        assert [fact.error for fact in look(files)] == [None] * 3, trouble


def test_the_memory_lies_in_the_cache_and_nothing_beside_the_photographs(photos: Path, cache: Path) -> None:
    before = fingerprint(photos)
    look(files_of(photos))
    assert fingerprint(photos) == before
    assert [path.name for path in cache.iterdir()] == [database(cache).name], "no journal is left"
    assert str(photos).encode() not in database(cache).read_bytes(), "names are nobody's business"


@pytest.mark.parametrize(
    "damage",
    [
        slice(0, None),
        slice(0, 3000),
        slice(4096, None),
    ],
    ids=str,
)
def test_a_damaged_memory_changes_nothing_and_is_made_anew(
    photos: Path, cache: Path, decoded: list[str], damage: slice
) -> None:
    age(photos)
    expected, findings = look(files_of(photos)), examine(read_source(photos)).findings
    content = bytearray(database(cache).read_bytes())
    content[damage] = np.random.default_rng(0).bytes(len(content[damage]))
    database(cache).write_bytes(content)
    assert look(files_of(photos)) == expected
    look(files_of(photos))
    decoded.clear()
    assert look(files_of(photos)) == expected
    assert decoded == []
    assert examine(read_source(photos)).findings == findings
    assert {path.suffix for path in cache.iterdir()} == {".sqlite3"}


def test_a_memory_that_is_locked_or_cannot_be_changes_nothing(
    photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    expected = look(files_of(photos))
    with monkeypatch.context() as patch:
        patch.setenv("VITKIT_CACHE", str(photos / "cat" / "cat_0.png"))  # where there can be none
        assert look(files_of(photos)) == expected
    with contextlib.closing(sqlite3.connect(database(cache))) as holder, monkeypatch.context() as patch:
        connect = sqlite3.connect
        patch.setattr(module.sqlite3, "connect", lambda *args, **own: connect(*args, **own | {"timeout": 0.05}))
        for lock in ("IMMEDIATE", "EXCLUSIVE"):
            holder.execute(f"BEGIN {lock}")
            assert look(files_of(photos)) == expected
            holder.rollback()
    decoded.clear()
    assert look(files_of(photos)) == expected and decoded == [], "what passes costs no memory"


@pytest.mark.parametrize("most", [12_000, resource.RLIM_INFINITY])
def test_processes_at_once_and_on_a_full_disk_find_the_same(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    expected = look(files_of(photos))
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "another"))

    def scan_often() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        assert [look(files_of(photos)) for _ in range(5)] == [expected] * 5

    workers = [get_context("fork").Process(target=scan_often) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0] * 3


def test_a_comparison_is_made_once_for_the_same_files(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitkit.data.doctor import examine as doctor

    save(Image.open(photos / "cat" / "cat_0.png").resize((40, 28)), photos / "dog" / "larger.png")
    calls: list[int] = []
    original = doctor.compare
    monkeypatch.setattr(doctor, "compare", lambda *args: (calls.append(len(args[0])), original(*args))[1])
    first = examine(read_source(photos))
    assert examine(read_source(photos)) == first
    assert calls in ([21], [21, 21])
    (photos / "dog" / "larger.png").unlink()
    (photos / "cat" / "cat_0.png").rename(photos / "cat" / "zzz.png")  # the same contents in another order
    save(Image.open(photos / "cat" / "cat_1.png"), photos / "cat" / "again.png")
    (copies,) = examine(read_source(photos)).copies
    table = read_source(photos)
    assert {table.paths[i] for i in copies.images} == {"cat/again.png", "cat/cat_1.png"}


READABLE = st.builds(
    Facts,
    *(st.binary(min_size=32, max_size=32), st.none(), st.sampled_from(["PNG", "JPEG"]), st.sampled_from(["RGB", "L"])),
    *(st.integers(1, 70_000), st.integers(1, 70_000), st.booleans()),
    st.integers(0, 255).map(lambda value: bytes([value]) * 3 * THUMBNAIL**2),
    st.sampled_from([None, "two gammas"]),
    st.integers(0, MOST).map(lambda count: bytes(range(BYTES)) * count),
)
UNREADABLE = st.builds(Facts, st.sampled_from([b"", b"\0" * 32, b"1" * 32]), st.text(min_size=1))
FACTS = st.lists(READABLE | UNREADABLE, max_size=12)


@settings(max_examples=30)
@given(FACTS, st.data())
def test_a_table_is_a_list_of_facts(facts: list[Facts], data: st.DataObject) -> None:
    most = data.draw(st.sampled_from([500, 10**9]))
    with mock.patch("vitkit.system.files._MAX_IN_MEMORY", most):  # in files, or not
        table = FactTable.of(facts)
    assert list(table) == facts and len(table) == len(facts)
    assert FactTable.of(table) is table == FactTable.of(facts)
    indices = data.draw(st.lists(st.integers(0, len(facts) - 1) if facts else st.nothing()))
    part, chosen = table.take(indices), [facts[i] for i in indices]
    assert list(part) == chosen and list(part[1:3]) == chosen[1:3]
    for name in Facts.__slots__:
        assert part.column(name) == [getattr(fact, name) for fact in chosen]
    if all(fact.thumbnail for fact in chosen):
        assert part.thumbnails().tobytes() == b"".join(fact.thumbnail for fact in chosen)
    filled, order = FactTable(len(facts)), data.draw(st.permutations(range(len(facts))))
    assert all(fact.error is not None for fact in filled)
    for some in (order[:5], order[5:]):  # in any order and in parts
        filled.fill(some, [facts[i] for i in some])
    assert list(filled) == facts


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from(ROLES)), max_size=12))
def test_a_record_has_an_entry_for_each_label_and_the_highest_role(rows: list[tuple[int, str, str]]) -> None:
    """The rule as a dictionary would follow it."""
    thumbnail = bytes(3 * THUMBNAIL**2)
    facts = [Facts(bytes([number]) * 32, None, "PNG", "RGB", 9, 9, thumbnail=thumbnail) for number, _, _ in rows]
    record = make_record(facts, [label for _, label, _ in rows], [role for _, _, role in rows], is_whole=True)
    entries = dict.fromkeys((number, label) for number, label, _ in rows)
    highest = {number: max(ROLES.index(role) for other, _, role in rows if other == number) for number, _ in entries}
    assert [(int(digest[0]), record.label_of(i)) for i, digest in enumerate(record.digests)] == list(entries)
    assert record.roles.tolist() == [highest[number] for number, _ in entries]


def photographs(root: Path) -> None:
    folder(root, {"cat": 70})
    for ending in ("jpg", "gif", "bmp", "tif", "webp", "ppm"):
        save(noise(40, 30), root / f"a.{ending}")
    Image.effect_noise((2000, 1500), 60).save(root / "large.png", compress_level=1)
    (root / "cut.png").write_bytes((root / "cat" / "cat_0.png").read_bytes()[:100])
    (root / "text.jpg").write_text("no picture")
    (root / "empty.png").touch()
    os.mkfifo(root / "pipe.png")


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """Of every kind: pictures, damaged ones, none at all."""
    root = once("files of every kind", photographs)
    return [*sorted(file for file in root.rglob("*.*") if file.suffix), root / "missing.png"]


@pytest.fixture(scope="module")
def truth(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    """What this process finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_CACHE", str(tmp_path_factory.mktemp("another")))
        return look(files)


@pytest.fixture
def here(decoded: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that this process decodes; two others take what they can."""
    monkeypatch.setattr(module, "_MANY", 1)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    return decoded


def test_other_processes_find_and_remember_the_same(
    files: list[Path], truth: list[Facts], here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    assert look(files, progress=lambda *own: told.append(own)) == truth
    assert here == [], "others did it"
    assert told[-1] == (len(files), len(files)) and told == sorted(told)
    monkeypatch.setattr(module, "_MANY", 10**9)
    assert look(files) == truth
    assert here == [], "what they found is remembered"


def test_a_picture_that_is_too_large_for_one_of_several_is_looked_at_here(
    files: list[Path], truth: list[Facts], here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_BUDGET", 4 * 2**20)
    assert look(files) == truth
    assert here == ["large.png"]


def test_a_process_that_is_killed_costs_time_alone(
    files: list[Path], truth: list[Facts], here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[module.Worker] = []
    original = module.Worker.call

    def kill(worker: module.Worker, question: Any) -> Any:
        facts = original(worker, question)
        started.append(worker)
        worker._process.send_signal(signal.SIGKILL)
        return facts

    monkeypatch.setattr(module.Worker, "call", kill)
    assert look(files) == truth
    assert started and here, "the rest was looked at here"
    assert all(worker._process.returncode is not None for worker in started), "none is left behind"


def test_where_no_process_can_be_had_this_one_looks(
    files: list[Path], truth: list[Facts], here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.system.processes.python_command", lambda _: [sys.executable, "-c", "1 / 0"])
    assert look(files) == truth and here
