"""`vitkit.pack`: a folder from which vitkit can be installed without a network, on other systems too."""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitkit as package
from cli.conftest import Command
from vitkit.errors import VitkitError
from vitkit.verbs import pack as packing
from vitkit.verbs.pack import Target, here, own_wheel, resolve, this_python

MAIN = "import sys\nprint('vitkit 0 was installed in', sys.prefix)\n"


def wheel(name: str, version: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any", code: str = "") -> bytes:
    """The content of a wheel with one module."""
    about = f"{name}-{version}.dist-info"
    extras = [f"Provides-Extra: {extra}" for extra in ("studio", "export")]
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *extras]
    files = {
        f"{name}/__init__.py": "",
        f"{name}/__main__.py": code,
        f"{about}/METADATA": "\n".join([*metadata, *(f"Requires-Dist: {text}" for text in requires), "", ""]),
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return content.getvalue()


class Index:
    """A package index in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, version: str = "1.0", requires: tuple[str, ...] = (), tag: str = "py3-none-any") -> Path:
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"{name}-{version}-{tag}.whl"
        file.write_bytes(wheel(name, version, requires, tag))
        links = [
            f'<a href="{own.name}#sha256={hashlib.sha256(own.read_bytes()).hexdigest()}">{own.name}</a>'
            for own in sorted(place.glob("*.whl"))
        ]
        (place / "index.html").write_text("<!doctype html><html><body>" + "\n".join(links) + "</body></html>")
        return file


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index that pip is configured for, and no other."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    return Index(tmp_path / "index")


@pytest.fixture
def small(index: Index, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index for a vitkit that needs two packages: one for its studio, and one that differs by system."""
    requires = ("fast>=1", 'colours; sys_platform == "win32"', 'web; extra == "studio"', 'graph; extra == "export"')
    content = wheel("vitkit", package.__version__, requires, code=MAIN)
    monkeypatch.setattr(packing, "own_wheel", lambda: (f"vitkit-{package.__version__}-py3-none-any.whl", content))
    for name in ("colours", "web", "graph"):
        index.add(name)
    index.add("fast", tag=f"cp{this_python().replace('.', '')}-none-any")
    for python in ("311", "312", "313"):
        for system in ("win_amd64", "macosx_11_0_arm64", "manylinux_2_17_x86_64"):
            index.add("fast", "1.5", ("late; python_version >= '3.13'",), f"cp{python}-cp{python}-{system}")
    index.add("late")
    return index


@pytest.fixture
def quick(small: Index, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The same index, without asking pip."""

    def resolve(requirement: str, target: Target, indexes: Sequence[str] = ()) -> list[packing.Wheel]:
        names = ["fast-1.0", "web-1.0", *(["graph-1.0"] if "export" in requirement else [])]
        files = [next((small.folder / name.partition("-")[0]).glob(f"{name}-*.whl")) for name in names]
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        return [
            packing.Wheel(file.name, name.replace("-", "=="), file.as_uri(), digest)
            for name, file, digest in zip(names, files, digests, strict=True)
        ]

    monkeypatch.setattr(packing, "resolve", resolve)
    return small


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a web server for a folder."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # its name in the base class
        pass


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        Image.new("RGB", (8, 8), (kind == "cat" and "red") or "blue").save(tmp_path / "pets" / kind / "1.png")
    (tmp_path / "pets" / "diary.txt").write_text("private")
    return tmp_path / "pets"


def names(found: list[packing.Wheel]) -> set[str]:
    return {own.name for own in found}


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- Which wheels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "python", "expected"),
    [
        ("windows", "3.12", {"fast-1.5-cp312-cp312-win_amd64.whl", "colours-1.0-py3-none-any.whl"}),
        ("macos", "3.11", {"fast-1.5-cp311-cp311-macosx_11_0_arm64.whl"}),
        ("linux", "3.13", {"fast-1.5-cp313-cp313-manylinux_2_17_x86_64.whl", "late-1.0-py3-none-any.whl"}),
    ],
)
def test_requirements_are_those_of_the_other_system(
    small: Index, tmp_path: Path, system: str, python: str, expected: set[str]
) -> None:
    name, content = packing.own_wheel()
    (tmp_path / name).write_bytes(content)
    found = resolve(f"vitkit[studio] @ {(tmp_path / name).as_uri()}", Target(system, python))
    assert names(found) == expected | {name, "web-1.0-py3-none-any.whl"}
    (fast,) = [own for own in found if own.requirement == "fast==1.5"]
    assert fast.sha256 == hashlib.sha256((small.folder / "fast" / fast.name).read_bytes()).hexdigest()
    assert packing.with_sizes([fast])[0].size == (small.folder / "fast" / fast.name).stat().st_size


def test_conditions_of_another_system_are_complete(small: Index) -> None:
    """Every marker that the running pip knows is replaced: none is left to this machine."""
    program = (
        "from pip._vendor.packaging.markers import default_environment as d; print(*d())"  # it changes sys.modules
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert packing._conditions(Target("windows", "3.12")).keys() == set(done.stdout.split())
    assert packing._conditions(Target("this", this_python())) == {}


def test_a_package_that_is_nowhere_is_named(index: Index) -> None:
    with pytest.raises(VitkitError, match=r"pip finds no complete set of wheels: .*nowhere"):
        resolve("nowhere", Target("this", this_python()))


def test_pip_is_taken_from_where_python_keeps_it_for_new_environments(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("alone")
    monkeypatch.setattr(
        packing, "_find_spec", lambda name: None if name == "pip" else __import__("importlib").util.find_spec(name)
    )
    (brought,) = packing._pip_path()
    assert Path(brought).name.startswith("pip-")
    assert names(resolve("alone", Target("this", this_python()))) == {"alone-1.0-py3-none-any.whl"}


def test_wheels_are_downloaded_from_a_server_and_their_sizes_are_known(
    quick: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = packing.resolve
    with serving(quick.folder) as address:

        def served(*arguments: Any) -> list[packing.Wheel]:
            return [replace(own, url=own.url.replace(quick.folder.as_uri(), address)) for own in found(*arguments)]

        monkeypatch.setattr(packing, "resolve", served)
        plans: list[packing.PackPlan] = []
        result = package.pack(tmp_path / "stick", cpu_index="none", confirm=lambda plan: not plans.append(plan))
    assert (plans[0].missing, plans[0].unknown) == (result.downloaded, 0)
    assert not list((tmp_path / "stick").rglob("*.part*"))


# --- vitkit's own wheel -------------------------------------------------------------------------------------


def test_the_own_wheel_has_every_file_with_its_checksum_and_is_always_the_same() -> None:
    name, content = own_wheel()
    assert (name, content) == own_wheel()
    home = Path(package.__file__).parent
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    code = {f"vitkit/{path.relative_to(home).as_posix()}": path.read_bytes() for path in home.rglob("*.py")}
    assert code.items() <= files.items()
    assert not any("__pycache__" in entry for entry in files)
    about = f"vitkit-{package.__version__}.dist-info"
    rows = list(csv.reader(files[f"{about}/RECORD"].decode().splitlines()))
    assert {row[0] for row in rows} == files.keys()
    for entry, digest, size in rows[:-1]:
        kept = base64.urlsafe_b64encode(hashlib.sha256(files[entry]).digest()).decode().rstrip("=")
        assert (digest, int(size)) == (f"sha256={kept}", len(files[entry]))
    assert f"\nVersion: {package.__version__}\n" in files[f"{about}/METADATA"].decode()
    assert b"vitkit.__main__:main" in files[f"{about}/entry_points.txt"]


def test_pip_installs_the_own_wheel(tmp_path: Path) -> None:
    name, content = own_wheel()
    (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*command, str(tmp_path / "site"), str(tmp_path / name)], check=True, capture_output=True)
    installed = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.py")}
    assert "vitkit/verbs/classroom/install.py" in installed
    assert (tmp_path / "site" / "vitkit" / "verbs" / "classroom" / "lesson.md").is_file()


# --- The folder ---------------------------------------------------------------------------------------------


def test_a_folder_has_everything_and_its_checksums(small: Index, photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.pth").write_bytes(b"weights")
    notes: list[str] = []
    folder = tmp_path / "stick"
    result = package.pack(
        folder,
        data=[str(photographs)],
        weights=[str(tmp_path / "tiny.pth")],
        system=["this", "windows", "macos"],
        python=["3.12"],
        cpu_index="none",
        note=notes.append,
    )
    files = content_of(folder)
    sums = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "SHA256SUMS"}
    assert {
        "install.bat",
        "install.sh",
        "install.py",
        "README.txt",
        "lesson.html",
        "pictures/seven.png",
    } <= files.keys()
    assert files["data/pets/cat/1.png"] == (photographs / "cat" / "1.png").read_bytes()
    assert files["weights/tiny.pth"] == b"weights"
    assert "data/pets/diary.txt" not in files
    assert b"\n" not in files["install.bat"].replace(b"\r\n", b"")
    assert result.targets == (f"{here()}-3.12", "windows-3.12", "macos-3.12")
    assert result.size == sum(len(data) for name, data in files.items() if name != "SHA256SUMS")
    assert b"vitkit train data/pets --weights tiny.pth" in files["lesson.html"]
    assert "Python 3.12 on Windows" in files["README.txt"].decode()
    windows = files["requirements/windows-3.12.txt"].decode().splitlines()
    assert [line.split(" ")[0] for line in windows] == [
        "colours==1.0",
        "fast==1.5",
        f"vitkit=={package.__version__}",
        "web==1.0",
    ]
    assert any("windows-3.12: 3 wheels" in line for line in notes)
    assert not [name for name in files if Path(name).name.startswith(".")]


def test_it_installs_without_a_network_and_refuses_what_is_damaged(
    small: Index, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "stick", tmp_path / "a pupil's folder"
    package.pack(folder, data=[str(photographs)], cpu_index="none")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")  # where nobody answers

    def install(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, folder / "install.py", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert install("--check").returncode == 0
    done = install(str(home))
    assert done.returncode == 0, done.stderr
    assert f"installed in {home / '.venv'}" in done.stdout
    assert (home / "data" / "pets" / "cat" / "1.png").is_file()
    assert (home / "lesson.html").is_file()
    starter = home / {"win32": "studio.bat", "darwin": "studio.command"}.get(sys.platform, "studio.sh")
    assert "vitkit studio" in starter.read_text()
    assert "outside of" in install(str(folder / "here")).stderr
    (web,) = (folder / "wheels").glob("web-*")
    web.write_bytes(web.read_bytes()[:-1])
    damaged = install(str(tmp_path / "other"))
    assert (damaged.returncode, f"wheels/{web.name}" in damaged.stderr) == (2, True)
    assert not (tmp_path / "other").exists()
    (folder / "SHA256SUMS").unlink()
    assert "not complete" in install("--check").stderr


def test_a_call_that_was_interrupted_continues_and_nothing_looks_finished(
    quick: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copies = tmp_path / "stick", []
    copy = packing._copy_file

    def interrupted(source: Path, target: Path) -> None:
        if len(copies) == 1:
            raise KeyboardInterrupt
        copies.append(target)
        copy(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(packing, "_copy_file", interrupted)
        package.pack(folder, cpu_index="none")
    assert not (folder / "SHA256SUMS").exists()
    first = copies[0].stat()
    result = package.pack(folder, cpu_index="none")
    assert (copies[0].stat().st_ino, copies[0].stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    others = [path for path in (folder / "wheels").iterdir() if path != copies[0] and "vitkit" not in path.name]
    assert result.downloaded == sum(path.stat().st_size for path in others) > 0
    assert package.pack(folder, cpu_index="none").downloaded == 0


def test_a_damaged_wheel_is_fetched_again_and_what_is_not_needed_goes(
    quick: Index, photographs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stick"
    package.pack(folder, data=[str(photographs)], extra=["export"], cpu_index="none")
    assert list((folder / "wheels").glob("graph-*"))
    (web,) = (folder / "wheels").glob("web-*")
    web.write_bytes(b"damaged")
    package.pack(folder, cpu_index="none")
    assert web.read_bytes() == (quick.folder / "web" / web.name).read_bytes()
    assert not list((folder / "wheels").glob("graph-*"))
    assert not (folder / "data" / "pets").exists()


def test_a_wheel_that_changed_since_it_was_found_is_not_kept(
    quick: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = packing.with_sizes

    def change(resolved: list[packing.Wheel]) -> list[packing.Wheel]:
        (quick.folder / "web" / "web-1.0-py3-none-any.whl").write_bytes(b"something else")
        return found(resolved)

    monkeypatch.setattr(packing, "with_sizes", change)
    with pytest.raises(VitkitError, match=r"web-1\.0-py3-none-any\.whl is damaged"):
        package.pack(tmp_path / "stick", cpu_index="none")
    assert not list((tmp_path / "stick" / "wheels").glob("web-*"))
    assert not (tmp_path / "stick" / "SHA256SUMS").exists()


# --- What is refused ----------------------------------------------------------------------------------------


def _use_a_folder_of_something_else(folder: Path, photographs: Path) -> None:
    folder.mkdir()
    (folder / "letter.txt").write_text("Dear")
    package.pack(folder)


REFUSED: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "system": (lambda folder, _: package.pack(folder, system=["os2"]), "--system os2: expected this, windows"),
    "python": (lambda folder, _: package.pack(folder, python=["3.7"]), "--python 3.7: expected 3.11"),
    "extra": (lambda folder, _: package.pack(folder, extra=["stduio"]), "--extra stduio: expected all, bench, dev"),
    "data": (lambda folder, _: package.pack(folder, data=["nowhere"]), "nowhere is neither a folder of photographs"),
    "twice": (lambda folder, own: package.pack(folder, data=[str(own), str(own)]), "a name of its own"),
    "inside": (lambda _, own: package.pack(own / "stick", data=[str(own)]), "would lie among the photographs"),
    "other": (_use_a_folder_of_something_else, r"contains something other than an earlier pack \(letter.txt\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_packed_is_refused_in_a_line_and_writes_nothing(
    case: str, photographs: Path, tmp_path: Path
) -> None:
    call, message = REFUSED[case]
    before = content_of(photographs)
    with pytest.raises(VitkitError, match=message):
        call(tmp_path / "stick", photographs)
    assert content_of(photographs) == before
    assert case == "other" or not (tmp_path / "stick").exists()


def test_weights_that_are_nowhere_leave_no_finished_folder(quick: Index, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="no such file"):
        package.pack(tmp_path / "stick", weights=["models/nowhere.pth"], cpu_index="none")
    assert not (tmp_path / "stick" / "SHA256SUMS").exists()


def test_nothing_is_packed_where_downloads_are_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    with pytest.raises(VitkitError, match=r"^VITKIT_OFFLINE=1 forbids downloading the packages"):
        package.pack(tmp_path / "stick")
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_does_not_answer_is_not_asked_by_pip(
    small: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(packing, "resolve", lambda requirement, target, indexes: notes.append(f"asked {indexes}") or [])
    monkeypatch.setattr(packing, "_readme", lambda targets, size: "")
    package.pack(tmp_path / "stick", system=["linux", "windows"], cpu_index="http://127.0.0.1:9", note=notes.append)
    assert "http://127.0.0.1:9 does not answer" in notes[0]
    with serving(tmp_path) as reachable:
        (tmp_path / "torch").mkdir()
        package.pack(tmp_path / "stick", system=["linux", "windows"], cpu_index=reachable, note=notes.append)
    assert [line for line in notes if line.startswith("asked")] == [
        *("asked []", "asked ()"),
        *(f"asked ['{reachable}']", "asked ()"),
    ]


# --- The command --------------------------------------------------------------------------------------------


def test_the_command_states_the_size_and_asks(quick: Index, tmp_path: Path, vitkit: Command) -> None:
    folder = tmp_path / "stick"
    asked = vitkit("pack", "--for-offline", folder, "--cpu-index", "none")
    assert (asked.code, "would be downloaded: add --yes" in asked.err) == (2, True)
    assert "to download into" in asked.err
    assert not folder.exists()
    done = vitkit("pack", "--for-offline", folder, "--cpu-index", "none", "--yes")
    assert (done.code, f"{folder}: 3 wheels for {here()}-{this_python()}" in done.out) == (0, True)
    again = vitkit("pack", "--for-offline", folder, "--cpu-index", "none")  # nothing is to be downloaded
    assert again.code == 0


def test_a_plan_that_is_not_confirmed_writes_nothing(quick: Index, tmp_path: Path) -> None:
    plans: list[packing.PackPlan] = []
    with pytest.raises(VitkitError, match="nothing was downloaded"):
        package.pack(tmp_path / "stick", cpu_index="none", confirm=lambda plan: bool(plans.append(plan)))
    assert (plans[0].unknown, plans[0].missing > 0) == (0, True)
    assert not (tmp_path / "stick").exists()


def test_a_result_can_be_written_as_json(quick: Index, tmp_path: Path) -> None:
    result = package.pack(tmp_path / "stick", cpu_index="none")
    assert json.loads(json.dumps(result.to_dict()))["targets"] == [f"{here()}-{this_python()}"]
