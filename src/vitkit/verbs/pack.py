"""`vitkit.pack`: gather everything that computers without a network need, for a lesson or a workshop."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import vitkit
from vitkit.data.file_names import why_ignored
from vitkit.data.storage import STORAGES, Overlooked, walk
from vitkit.errors import VitkitError
from vitkit.system.environment import offline
from vitkit.system.files import exclusive_in, from_json, replacing, write_bytes, write_json, write_text
from vitkit.system.progress import Progress, Say, ignore, reporting_within, silent
from vitkit.system.progress import progress as report
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import listed, one_of, plural
from vitkit.verbs.result import Result

_CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # has PyTorch for Linux without CUDA
_PYTHONS = ("3.11", "3.12", "3.13")
_STATIC = Path(__file__).parent / "classroom"
_MARK, _SUMS = "packing.json", "SHA256SUMS"  # the first and the last file that is written
_PICTURES = ("three", "seven", "nine")
_WEIGHTS = "deit_tiny_patch16_224.pth"  # the file that the lesson names
_RESERVE = 100_000_000  # bytes that must stay free
_UNPACKED = 2.5  # size of an installation relative to its wheels, roughly
_SAME_TIME = 2.0  # seconds; file systems of USB sticks round times


@dataclass(frozen=True)
class PackPlan:
    """The download that `pack` is going to start.

    Attributes:
        lines: a line for each kind of computer, and a line on the download.
        missing: the number of bytes to download, without the files whose size is not known.
        unknown: the number of files to download whose size is not known.
    """

    lines: tuple[str, ...]
    missing: int
    unknown: int

    @property
    def download(self) -> str:
        """The size of the download, as text."""
        more = f" and {plural(self.unknown, 'file', 'files')} of unknown size" if self.unknown else ""
        return f"{_in_megabytes(self.missing)}{more}"


@dataclass(frozen=True, repr=False)
class Pack(Result):
    """A folder from which vitkit can be installed without a network.

        import vitkit

        pack = vitkit.pack("stick", system=["windows"], python=["3.12"])
        print(pack.folder, pack.wheels, pack.size)  # bytes

    Attributes:
        folder: the path of the folder.
        targets: the kinds of computers, such as `windows-3.12`.
        wheels: the number of wheels, including that of vitkit.
        size: the size of all files in bytes.
        downloaded: the number of bytes that this call downloaded.
    """

    folder: Path
    targets: tuple[str, ...]
    wheels: int
    size: int
    downloaded: int

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types."""
        return {**vars(self), "folder": str(self.folder), "targets": list(self.targets)}

    def lines(self) -> list[str]:
        """Return the contents of the folder, and what to do with it next."""
        contents = f"{plural(self.wheels, 'wheel', 'wheels')} for {', '.join(self.targets)}"
        return [
            f"{self.folder}: {contents}; {_in_megabytes(self.size)}, {_in_megabytes(self.downloaded)} downloaded now",
            "copy the folder to each computer or a USB stick, and start install.bat (Windows) or sh install.sh",
        ]


@check_arguments
def pack(
    for_offline: Path | str,
    *,
    data: Sequence[str] = (),
    weights: Sequence[str] = (),
    system: Sequence[str] = (),
    python: Sequence[str] = (),
    extra: Sequence[str] = (),
    cpu_index: str = _CPU_INDEX,
    confirm: Callable[[PackPlan], bool] | None = None,
    note: Say = ignore,
    progress: Progress = silent,
) -> Pack:
    """Gather what computers without a network need: packages, vitkit itself, weights, photographs and a lesson.

    The folder also contains programs that install vitkit, a README and the checksums of all files. An interrupted call
    continues when it is repeated. Files that are already in the folder are not downloaded again.

        import vitkit

        print(vitkit.pack("stick", system=["windows"], python=["3.12"]).wheels)

    On the command line: `vitkit pack --for-offline STICK --system windows --python 3.12 --data PHOTOS`.

    Args:
        for_offline: the folder to write, which must be new, empty, or the result of an earlier call.
        data: a folder of photographs, or an archive, to include. There may be several.
        weights: a file of weights, or the name of published weights, to include. There may be several; make sure that
            you may pass them on.
        system: the system of the computers: windows, macos or linux; by default `this`, the system of this machine.
            There may be several.
        python: the version of Python on the computers: 3.11, 3.12 or 3.13; by default the version that runs vitkit.
            There may be several.
        extra: another optional part of vitkit to include, such as export; the studio is always included. There may be
            several.
        cpu_index: the package index with PyTorch for Linux without CUDA, or `none` to use only the indexes that pip is
            configured for.
        confirm: called with the plan before the download; if it returns False, nothing is downloaded.
        note: called with each line of the plan, and with a line about anything unexpected.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: a value is not allowed, the folder contains something else, downloads are forbidden, the packages
            cannot be found or downloaded, the disk is too small, or `confirm` returned False.
    """
    if switch := offline():
        raise VitkitError(f"{switch} forbids downloading the packages: unset it for this command")
    folder, targets = Path(for_offline), _targets(system, python)
    for part in extra:
        if part not in _parts_of_vitkit():
            raise VitkitError(f"--extra {part}: expected {one_of(_parts_of_vitkit())}")
    sources = _sources(data, folder)
    with exclusive_in(folder):
        _check_folder(folder)
        name, content = own_wheel()
        locks = _resolve_all(name, content, targets, ("studio", *extra), _indexes(cpu_index, targets, note))
        wheels = {wheel.name: wheel for lock in locks.values() for wheel in lock}
        missing = [wheel for wheel in wheels.values() if not _is_there(folder / "wheels" / wheel.name, wheel)]
        plan = _plan(locks, missing, folder)
        for line in plan.lines:
            note(line)
        if confirm is not None and missing and not confirm(plan):
            raise VitkitError("nothing was downloaded")
        _check_space(folder, plan.missing)
        _begin(folder, targets)
        downloaded = _download_all(missing, folder / "wheels")
        write_bytes(folder / "wheels" / name, content)
        _write_locks(folder, name, targets, locks)
        _remove_others(folder / "wheels", {name, *wheels})
        copied = _copy_weights(weights, folder / "weights")
        for source in sources:
            _copy_data(source, folder / "data" / source.name)
        _remove_others(folder / "data", {source.name for source in sources})
        if not copied:
            note("no weights are included: the second half of the lesson needs some, such as --weights FILE")
        largest = max(sum((folder / "wheels" / wheel.name).stat().st_size for wheel in lock) for lock in locks.values())
        _write_static(folder, _readme(targets, largest), _lesson(sources, copied))
        size = _finish(folder)
    return Pack(folder, tuple(target.name for target in targets), len(wheels) + 1, size, downloaded)


def _in_megabytes(size: float) -> str:
    """Return a number of bytes as text in MB or kB."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"


# --- What is requested --------------------------------------------------------------------------------------


def _targets(system: Sequence[str], python: Sequence[str]) -> list[Target]:
    for name in system:
        if name not in ("this", *_SYSTEMS):
            raise VitkitError(f"--system {name}: expected {one_of(('this', *_SYSTEMS))}")
    for version in python:
        if version not in (*_PYTHONS, this_python()):
            raise VitkitError(f"--python {version}: expected {one_of(_PYTHONS)}")
    targets = [Target(name, version) for name in system or ("this",) for version in python or (this_python(),)]
    return list({target.name: target for target in targets}.values())


def _sources(data: Sequence[str], folder: Path) -> list[Path]:
    sources = [Path(name) for name in data]
    for source in sources:
        if not source.is_dir() and not (source.is_file() and source.suffix.lower() in STORAGES):
            raise VitkitError(f"{source} is neither a folder of photographs nor an archive ({one_of(tuple(STORAGES))})")
        if folder.resolve().is_relative_to(source.resolve()):
            raise VitkitError(f"{folder} would lie among the photographs of {source}: choose another folder")
    names = [source.name for source in sources]
    if len(set(names)) < len(names) or "" in names:
        raise VitkitError(f"each --data must have a name of its own, not {', '.join(names)}")
    return sources


def _check_folder(folder: Path) -> None:
    others = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if others and not (folder / _MARK).is_file():
        raise VitkitError(
            f"{folder} contains something other than an earlier pack ({others[0].name}): choose a new folder"
        )


def _indexes(cpu_index: str, targets: Sequence[Target], note: Say) -> list[str]:
    """Return a list with the package index of PyTorch without CUDA.

    The list is empty if no target needs the index, or if the index does not answer, which is noted.
    """
    if cpu_index == "none" or not any(target.name.startswith("linux-") for target in targets):
        return []  # for Windows and macOS, PyTorch's usual packages are those for the CPU
    if _is_reachable(cpu_index):
        return [cpu_index]
    note(
        f"{cpu_index} does not answer: PyTorch for Linux is taken from the indexes that pip is configured for, usually "
        "with CUDA, which is several GB"
    )
    return []


def _resolve_all(
    name: str, content: bytes, targets: Sequence[Target], extras: Sequence[str], indexes: Sequence[str]
) -> dict[str, list[Wheel]]:
    """Return the wheels of each target by the target's name, except vitkit's own wheel."""
    locks: dict[str, list[Wheel]] = {}
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / name).write_bytes(content)
        requirement = f"vitkit[{','.join(dict.fromkeys(extras))}] @ {(Path(place) / name).as_uri()}"
        for number, target in enumerate(targets):
            report("finding packages", number, len(targets))
            wheels = resolve(requirement, target, indexes if target.name.startswith("linux-") else ())
            locks[target.name] = [wheel for wheel in wheels if wheel.name != name]
    known: dict[str, Wheel] = {wheel.name: wheel for lock in locks.values() for wheel in lock}
    sized = {wheel.name: wheel for wheel in with_sizes(list(known.values()))}
    return {target: [sized[wheel.name] for wheel in lock] for target, lock in locks.items()}


def _plan(locks: Mapping[str, Sequence[Wheel]], missing: Sequence[Wheel], folder: Path) -> PackPlan:
    lines = [
        f"{target}: {plural(len(lock), 'wheel', 'wheels')}, {_in_megabytes(sum(wheel.size or 0 for wheel in lock))}"
        for target, lock in locks.items()
    ]
    size = sum(wheel.size or 0 for wheel in missing)
    lines.append(f"to download into {folder}: {plural(len(missing), 'file', 'files')}, {_in_megabytes(size)}")
    return PackPlan(tuple(lines), size, sum(wheel.size is None for wheel in missing))


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + _RESERVE:
        raise VitkitError(
            f"{folder} has only {_in_megabytes(free)} free for a download of {_in_megabytes(needed)}: "
            "free some space, or choose a folder on another disk"
        )


# --- Writing ------------------------------------------------------------------------------------------------


def _begin(folder: Path, targets: Sequence[Target]) -> None:
    """Mark the folder as a pack, which is incomplete until `_finish` writes the checksums."""
    (folder / _SUMS).unlink(missing_ok=True)
    (folder / "wheels").mkdir(exist_ok=True)
    write_json(folder / _MARK, {"vitkit": vitkit.__version__, "targets": [target.name for target in targets]})


def _is_there(path: Path, wheel: Wheel) -> bool:
    return path.is_file() and (not wheel.sha256 or _digest(path) == wheel.sha256)


def _download_all(wheels: Sequence[Wheel], folder: Path) -> int:
    from vitkit.weights.download import fetch_to

    size = 0
    for number, wheel in enumerate(wheels, start=1):
        with reporting_within(f"file {number} of {len(wheels)}"):
            if wheel.url.startswith("file:"):
                _copy_file(Path(url2pathname(urlsplit(wheel.url).path)), folder / wheel.name)
                if wheel.sha256 and _digest(folder / wheel.name) != wheel.sha256:
                    (folder / wheel.name).unlink()
                    raise VitkitError(
                        f"{wheel.url} is damaged: its SHA-256 is not the one that the index states; replace the file"
                    )
            else:
                fetch_to(wheel.url, folder / wheel.name, wheel.sha256 or None)
        size += (folder / wheel.name).stat().st_size
    return size


def _write_locks(
    folder: Path, wheel_of_vitkit: str, targets: Sequence[Target], locks: Mapping[str, Sequence[Wheel]]
) -> None:
    shutil.rmtree(folder / "requirements", ignore_errors=True)
    (folder / "requirements").mkdir()
    for target in targets:
        wheels = [Wheel(wheel_of_vitkit, f"vitkit=={vitkit.__version__}", "", ""), *locks[target.name]]
        lines = [f"{wheel.requirement} --hash=sha256:{_digest(folder / 'wheels' / wheel.name)}" for wheel in wheels]
        write_text(folder / "requirements" / f"{target.name}.txt", "\n".join([*sorted(lines), ""]))


def _remove_others(folder: Path, kept: set[str]) -> None:
    """Remove all files except `kept` from a folder, such as files of an earlier call and incomplete downloads."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _copy_weights(weights: Sequence[str], folder: Path) -> list[str]:
    """Copy weights, with a text about the licence if the catalog knows it, and return the names of the copies."""
    from vitkit.weights.loading import locate

    copied: dict[str, str] = {}
    for name in weights:
        path, entry = locate(name)
        folder.mkdir(exist_ok=True)
        copied[path.name] = ""
        if path.is_dir():
            _copy_tree(path, folder / path.name, walk(path))
        else:
            _copy_file(path, folder / path.name)
        if entry is not None:
            copied[path.name] = f"{path.name}.txt"
            about = f"{entry.name}: licence {entry.licence or 'not stated'}; paper arXiv {entry.paper or 'not stated'}"
            write_text(folder / f"{path.name}.txt", about + "\n")
    _remove_others(folder, {*copied, *copied.values()})
    return list(copied)


def _copy_data(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    if source.is_dir():
        overlooked = Overlooked()
        images = [path for path in walk(source, overlooked) if why_ignored(path.name) is None]
        if overlooked.links:
            raise VitkitError(
                f"links lead out of {source} ({listed(sorted(overlooked.links))}): copy what they lead to"
            )
        if not images:
            raise VitkitError(f"{source} contains no photographs")
        _copy_tree(source, target, iter(images))
    else:
        _copy_file(source, target)


def _copy_tree(source: Path, target: Path, files: Iterator[Path]) -> None:
    for number, path in enumerate(files):
        report(f"copying {source.name}", number, None)
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(path, place)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file atomically, unless the target has the same size and modification time."""
    about = source.stat()
    if target.is_file():
        there = target.stat()
        if there.st_size == about.st_size and abs(there.st_mtime - about.st_mtime) <= _SAME_TIME:
            return
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        os.utime(temporary, (about.st_atime, about.st_mtime))


def _write_static(folder: Path, readme: str, lesson: str) -> None:
    """Write the installation programs, the README, the lesson and its pictures."""
    from markdown_it import MarkdownIt

    from vitkit.text.pages import write_page

    (folder / "pictures").mkdir(exist_ok=True)
    for name in ("install.py", "install.sh", *(f"pictures/{name}.png" for name in _PICTURES)):
        write_bytes(folder / name, (_STATIC / name).read_bytes())
    write_text(folder / "install.bat", _for_windows((_STATIC / "install.bat").read_text(encoding="utf-8")))
    write_text(folder / "README.txt", _for_windows(readme))
    title, _, body = lesson.partition("\n")
    title = title.removeprefix("# ")
    write_page(
        folder / "lesson.html", title, [f"<h1>{title}</h1>", MarkdownIt("commonmark").enable("table").render(body)]
    )


def _for_windows(text: str) -> str:
    """Return text with CRLF line ends, which Windows' command interpreter and older editors expect."""
    return text.replace("\n", "\r\n")


def _readme(targets: Sequence[Target], size: int) -> str:
    named = "".join(f"  {target.title}\n" for target in targets)
    text = (_STATIC / "README.txt").read_text(encoding="utf-8")
    return text.format(version=vitkit.__version__, targets=named, installed=_in_megabytes(_UNPACKED * size))


def _lesson(sources: Sequence[Path], weights: Sequence[str]) -> str:
    """Return the lesson, with the names of the photographs and weights that are included."""
    text = (_STATIC / "lesson.md").read_text(encoding="utf-8")
    if sources:
        name = Path(sources[0].name).stem if sources[0].is_file() else sources[0].name
        text = text.replace("data/flowers", f"data/{sources[0].name}").replace("runs/flowers", f"runs/{name}")
    return text.replace(_WEIGHTS, weights[0]) if weights else text


def _finish(folder: Path) -> int:
    """Write the checksums, which mark the folder as complete, and return the total size of all files."""
    files = sorted(path for path in walk(folder) if not path.name.startswith(".") and path.name != _SUMS)
    lines = []
    for number, path in enumerate(files):
        report("computing checksums", number, len(files))
        lines.append(f"{_digest(path)}  {path.relative_to(folder).as_posix()}")
    write_text(folder / _SUMS, "\n".join([*lines, ""]))
    return sum(path.stat().st_size for path in files)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- Wheels ---------------------------------------------------------------------------------------------------

# pip resolves the requirements, in a separate process and with the user's configuration, and reports addresses and
# checksums. For another system or Python, pip chooses the right files. However, it evaluates the conditions of
# requirements, such as `sys_platform == "win32"`, for the machine that it runs on. `resolve` therefore replaces the
# values that pip uses for these conditions.

_find_spec = PathFinder.find_spec  # importlib.util.find_spec would import setuptools' replacement of distutils
_TIMEOUT = 20.0  # seconds to wait for the answer of a server
_ASKED_AT_ONCE = 8
_RUNNER = """
import json, os, sys
sys.path[:0] = json.loads(os.environ.pop("VITKIT_PIP_PATH"))
conditions = json.loads(os.environ.pop("VITKIT_PIP_CONDITIONS"))
if conditions:
    from pip._vendor.packaging import markers
    markers.default_environment = lambda: {**conditions}
from pip._internal.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
_DATE = (1980, 1, 1, 0, 0, 0)  # of files in vitkit's wheel, so that its checksum depends on their content alone


@dataclass(frozen=True)
class _System:
    """An operating system that wheels are made for.

    Attributes:
        title: the name in texts for users.
        platforms: the platform tags of compatible wheels, for pip's option --platform.
        conditions: the values of the environment markers os_name, sys_platform, platform_system and platform_machine.
    """

    title: str
    platforms: tuple[str, ...]
    conditions: tuple[str, str, str, str]


_SYSTEMS = {
    "windows": _System("Windows", ("win_amd64",), ("nt", "win32", "Windows", "AMD64")),
    "macos": _System("macOS on Apple silicon", ("macosx_14_0_arm64",), ("posix", "darwin", "Darwin", "arm64")),
    "linux": _System(
        "Linux",
        (*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64", "linux_x86_64"),
        ("posix", "linux", "Linux", "x86_64"),
    ),
}


@dataclass(frozen=True)
class Target:
    """The kind of machine that wheels are installed on.

    Attributes:
        system: a key of `_SYSTEMS`, or `this` for the system of this machine.
        python: the version of Python, such as `3.12`.
    """

    system: str
    python: str

    @property
    def name(self) -> str:
        """The name in file names, such as `windows-3.12`."""
        return f"{here() if self.system == 'this' else self.system}-{self.python}"

    @property
    def title(self) -> str:
        """The name in texts for users, such as `Python 3.12 on Windows`."""
        return f"Python {self.python} on {_SYSTEMS[self.system].title if self.system in _SYSTEMS else 'this machine'}"

    @property
    def is_here(self) -> bool:
        """Whether this is the interpreter that runs vitkit. For this target, pip needs no platform flags."""
        return self.system == "this" and self.python == this_python()


@dataclass(frozen=True)
class Wheel:
    """A wheel that an installation needs.

    Attributes:
        name: the name of the file.
        requirement: the requirement that only this version meets, such as `torch==2.13.0`.
        url: the address of the wheel, which may be that of a local file.
        sha256: the checksum; empty if the index does not state it.
        size: the size in bytes; None if the server does not state it.
    """

    name: str
    requirement: str
    url: str
    sha256: str
    size: int | None = None


def this_python() -> str:
    """Return the version of the running Python, such as `3.12`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def here() -> str:
    """Return the name of this system in file names: windows, macos or linux, with the processor if it is unusual."""
    name = {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")
    machine = platform.machine()
    return name if machine == _SYSTEMS[name].conditions[3] else f"{name}-{machine}"


def resolve(requirement: str, target: Target, indexes: Sequence[str] = ()) -> list[Wheel]:
    """Return the wheels that a requirement needs on a kind of machine.

    The wheel of the required package itself is included. The sizes are None; `with_sizes` adds them.

    Args:
        requirement: a requirement such as `/packages/vitkit-0.1.0-py3-none-any.whl[studio]`.
        target: the kind of machine.
        indexes: package indexes in addition to those of the user's configuration of pip.

    Raises:
        VitkitError: pip is not installed, finds no set of wheels, or a package has no wheel.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        chosen = [] if target.is_here else ["--python-version", target.python, "--implementation", "cp"]
        platforms = _SYSTEMS[target.system].platforms if target.system in _SYSTEMS else ()
        chosen += [word for tag in platforms for word in ("--platform", tag)]
        chosen += ["--only-binary=:all:", "--target", f"{folder}/nothing", "--dry-run", "--ignore-installed"]
        also = [word for index in indexes for word in ("--extra-index-url", index)]
        _pip(["install", "--quiet", *chosen, *also, "--report", str(report), requirement], _conditions(target))
        installs = from_json(report.read_text(encoding="utf-8"))["install"]
    return [_wheel(install) for install in installs]


def _conditions(target: Target) -> dict[str, str]:
    """Return the values of all environment markers (PEP 508) for a target; empty for the running interpreter."""
    if target.is_here:
        return {}
    if target.system in _SYSTEMS:
        os_name, sys_platform, system, machine = _SYSTEMS[target.system].conditions
    else:
        os_name, sys_platform, system, machine = os.name, sys.platform, platform.system(), platform.machine()
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{target.python}.0",
        "os_name": os_name,
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": system,
        "platform_version": "",
        "python_full_version": f"{target.python}.0",
        "python_version": target.python,
        "sys_platform": sys_platform,
    }


def _pip(arguments: Sequence[str], conditions: dict[str, str]) -> None:
    """Run pip, and convert its error messages to a VitkitError."""
    environment = {
        **os.environ,
        "VITKIT_PIP_PATH": json.dumps(_pip_path()),
        "VITKIT_PIP_CONDITIONS": json.dumps(conditions),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run(  # noqa: S603  # this interpreter
        [sys.executable, "-P", "-c", _RUNNER, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = [line.removeprefix("ERROR: ").strip() for line in done.stderr.splitlines()]
        errors = [line for line in lines if line and not line.startswith(("WARNING", "[notice]"))]
        raise VitkitError(f"pip finds no complete set of wheels: {' '.join(errors[:2]) or done.returncode}"[:600])


def _pip_path() -> list[str]:
    """Return the folders or wheels to add to the import path for pip: none, or the wheel that ensurepip includes."""
    if _find_spec("pip") is not None:
        return []
    if (bundle := _find_spec("ensurepip")) is not None and bundle.origin is not None:
        brought = sorted((Path(bundle.origin).parent / "_bundled").glob("pip-*.whl"))
        if brought:
            return [str(brought[-1])]
    raise VitkitError(
        "pip is not installed for this Python: install it with `python -m ensurepip` or your package manager"
    )


def _wheel(install: dict[str, Any]) -> Wheel:
    url = install["download_info"]["url"]
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    about = install["metadata"]
    if not name.endswith(".whl"):
        raise VitkitError(f"{about['name']} has no wheel, only {name}, which must be built: pip wheel {about['name']}")
    digests = install["download_info"].get("archive_info", {}).get("hashes", {})
    return Wheel(name, f"{about['name']}=={about['version']}", url, digests.get("sha256", ""))


def with_sizes(wheels: Sequence[Wheel]) -> list[Wheel]:
    """Return the wheels with their sizes; a size is None if the server does not state it."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        sizes = pool.map(_size, (wheel.url for wheel in wheels))
        return [
            Wheel(wheel.name, wheel.requirement, wheel.url, wheel.sha256, size)
            for wheel, size in zip(wheels, sizes, strict=True)
        ]


def _size(url: str) -> int | None:
    try:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310  # pip named the address
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
            length = answer.headers.get("Content-Length", "")
    except (OSError, ValueError):
        return None
    return int(length) if length.isdecimal() else None


def _is_reachable(index: str) -> bool:
    """Return whether a package index answers. Without this check, pip retries for minutes."""
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=_TIMEOUT) as answer:  # noqa: S310
            return bool(answer.read(1))
    except (OSError, ValueError):
        return False


# --- The wheel of vitkit itself -----------------------------------------------------------------------------


def own_wheel() -> tuple[str, bytes]:
    """Build a wheel of the running vitkit from its installed files, and return its name and content.

    This needs neither a build tool nor the source. The same files always result in the same wheel.

    Raises:
        VitkitError: vitkit is not installed, so its requirements are not known.
    """
    try:
        installed = metadata.distribution("vitkit")
    except metadata.PackageNotFoundError as error:
        raise VitkitError(
            "vitkit is not installed, only on the import path: run `pip install .` in its source folder"
        ) from error
    about = f"vitkit-{vitkit.__version__}.dist-info"
    files = dict(_package_files())
    for name in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        if (text := installed.read_text(name)) is not None:
            files[f"{about}/{name}"] = _with_version(text).encode() if name == "METADATA" else text.encode()
    files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: vitkit pack\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{name},sha256={_record_hash(content)},{len(content)}" for name, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*rows, f"{about}/RECORD,,", ""]).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return f"vitkit-{vitkit.__version__}-py3-none-any.whl", content.getvalue()


def _parts_of_vitkit() -> tuple[str, ...]:
    """Return the names of vitkit's optional parts (extras), such as `studio`."""
    return tuple(sorted(metadata.metadata("vitkit").get_all("Provides-Extra") or ()))


def _package_files() -> Iterator[tuple[str, bytes]]:
    home = Path(vitkit.__file__).parent
    for path in sorted(home.rglob("*")):
        parts = path.relative_to(home.parent).parts
        if path.is_file() and "__pycache__" not in parts and path.suffix != ".pyc":
            yield "/".join(parts), path.read_bytes()


def _with_version(text: str) -> str:
    """Set the version in METADATA to that of the code. METADATA of an editable installation may be outdated."""
    lines = text.split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("Version: "))
    return "\n".join([*lines[:at], f"Version: {vitkit.__version__}", *lines[at + 1 :]])


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
