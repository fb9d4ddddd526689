"""Files are written whole or not at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

import runs
from refusals import refused
from vitkit.system import exclusive, exclusive_in, files, is_empty, is_locked, replacing, write_json, write_text
from vitkit.system.files import LOCK


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for before, now in ((None, b"first"), (b"first", b"second")):
        with replacing(path) as temporary:
            assert temporary.parent == tmp_path, "another disk could not be renamed from"
            temporary.write_bytes(now)
            assert (path.read_bytes() if path.exists() else None) == before
        assert path.read_bytes() == now
        assert names(tmp_path) == ["a.bin"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise error
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # nothing is written
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_failure_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "a.svg")
    with pytest.raises(FileNotFoundError) as raised, replacing(Path(path)) as temporary:
        temporary.write_bytes(b"")
    assert raised.value.filename == path and str(raised.value).endswith(f"{path!r}")
    (tmp_path / "a.bin" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError):
        write_text(tmp_path / "a.bin", "new")
    assert names(tmp_path) == ["a.bin"], "a failing rename leaves no temporary file"


def test_a_full_disk_is_an_error_that_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    for write, content in ((write_text, "x" * 100_000), (write_json, ["x"] * 100_000)):
        with runs.files_of_at_most(1000), pytest.raises(OSError) as raised:
            write(path, content)  # type: ignore[arg-type]
        assert raised.value.filename == str(path), "the system's own error names no file"
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_json_keeps_unicode_readable_and_comes_back(tmp_path: Path) -> None:
    value = {"猫": ["🐈", "Ärger", 'quo"te'], "n": [1, 2.5, None, True]}
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "🐈" in text and text.endswith("}\n")
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == text
    write_text(tmp_path / "a.txt", '\ufeff{"a": "\ufeff"}')  # as some editors begin a file
    assert files.read_json(tmp_path / "a.txt") == {"a": "\ufeff"}
    assert files.from_json((tmp_path / "a.txt").read_bytes()) == {"a": "\ufeff"}
    assert names(tmp_path) == ["a.json", "a.txt"]


def test_only_one_works_on_a_file_and_the_other_is_told_who(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with exclusive(path), exclusive(tmp_path / "b.csv"), refused("system.path-locked", "a.csv", f" {os.getpid()} "):
        exclusive(path).__enter__()
    longest = tmp_path / ("x" * 251 + ".npz")
    for own in (path, longest):
        with exclusive(own):
            assert len(names(tmp_path)) == 1
    assert names(tmp_path) == []


def test_a_folder_is_made_to_be_held_and_goes_again_where_nothing_came_into_it(tmp_path: Path) -> None:
    place, own = tmp_path / "a" / "b", tmp_path / "own"
    own.mkdir()
    for folder in (place, own):
        with exclusive_in(folder):
            assert is_empty(folder)
            with refused("system.path-locked"), exclusive_in(folder):
                pass
            assert names(folder) == [".lock"]
    assert names(tmp_path) == ["own"]
    with exclusive_in(place):
        (place / "file").touch()
        assert not is_empty(place)
    assert names(place) == ["file"]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from vitkit.system.files import exclusive\n"
        "with exclusive(Path(sys.argv[1])): print('held', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "a.csv"
    ended = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (-9, b"held\n")
    assert names(tmp_path) == [".a.csv.lock"]
    with exclusive(path):
        pass
    assert names(tmp_path) == []


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(tmp_path: Path) -> None:
    path, others = tmp_path / "a.npz", [".b.npz.77.tmp", ".a.npz.tmp", ".a.npz.7x.tmp", "a.npz.77.tmp"]
    for name in (*others, ".a.npz.77.tmp", f".a.npz.{os.getpid()}.tmp"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".a.npz.78.tmp").mkdir()
    (tmp_path / ".a.npz.78.tmp" / "a.npz").touch()
    with refused("system.path-locked"), exclusive(tmp_path / "c"), exclusive(tmp_path / "c"):
        pass
    assert len(names(tmp_path)) == len(others) + 3
    with exclusive(path):
        assert names(tmp_path) == sorted([*others, ".a.npz.lock"])


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
def test_a_lock_taken_during_the_release_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, unlink = tmp_path / ".a.lock", Path.unlink
    other = FileLock(place, timeout=0)

    def unlink_and_wait(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        if path == place and not other.is_locked:
            other.acquire()

    with monkeypatch.context() as patched, exclusive(tmp_path / "a"):
        patched.setattr(Path, "unlink", unlink_and_wait)
    assert other.is_locked and place.exists()
    with refused("system.path-locked"), exclusive(tmp_path / "a"):
        pass
    other.release()


def test_asking_whether_a_lock_is_held_makes_none(tmp_path: Path) -> None:
    folder, place = tmp_path / "run", tmp_path / "run" / LOCK
    folder.mkdir()
    assert not is_locked(folder)
    with exclusive(folder, place):
        assert is_locked(folder)
    assert not is_locked(folder) and is_empty(folder) and not place.exists()


def test_an_empty_lock_that_a_killed_process_left_is_not_held(tmp_path: Path) -> None:
    place = tmp_path / LOCK
    place.touch()
    assert not is_locked(tmp_path)
    with FileLock(place):
        assert is_locked(tmp_path)


def test_of_many_at_once_one_works(tmp_path: Path) -> None:
    """Each adds a line to the file and takes it away again; two at once would see the other's."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from vitkit.errors import VitkitError; from vitkit.system.files import exclusive\n"
        "path, done = Path(sys.argv[1]), 0\n"
        "while done < 5:\n"
        "    try:\n"
        "        with exclusive(path):\n"
        "            path.touch(exist_ok=False); time.sleep(0.001); path.unlink(); done += 1\n"
        "    except VitkitError:\n"
        "        time.sleep(0.0005)\n"
        "print(done)"
    )
    command = [sys.executable, "-c", code, tmp_path / "a"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate() for process in running] == [(b"5\n", b"")] * 3
    assert names(tmp_path) == []
