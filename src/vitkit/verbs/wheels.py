"""Find the wheels for an installation on machines without a network, and build the wheel of vitkit.

pip resolves the requirements, in a separate process and with the user's configuration, and reports addresses and
checksums. For another system or Python, pip chooses the right files. However, it evaluates the conditions of
requirements, such as `sys_platform == "win32"`, for the machine that it runs on. `resolve` therefore replaces the
values that pip uses for these conditions.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import vitkit
from vitkit.errors import VitkitError
from vitkit.system.files import from_json

find_spec = PathFinder.find_spec  # importlib.util.find_spec would import setuptools' replacement of distutils
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # has PyTorch for Linux without CUDA
PYTHONS = ("3.11", "3.12", "3.13")
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


SYSTEMS = {
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
        system: a key of `SYSTEMS`, or `this` for the system of this machine.
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
        return f"Python {self.python} on {SYSTEMS[self.system].title if self.system in SYSTEMS else 'this machine'}"

    @property
    def is_here(self) -> bool:
        """Whether this is the interpreter that runs vitkit. For this target, pip needs no platform flags."""
        return self.system == "this" and self.python == this_python()


@dataclass(frozen=True)
class Wheel:
    """A wheel that an installation needs.

    Attributes:
        name: the name of the file.
        requirement: the requirement of exactly this version, such as `torch==2.13.0`.
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
    return name if machine == SYSTEMS[name].conditions[3] else f"{name}-{machine}"


def resolve(requirement: str, target: Target, indexes: Sequence[str] = ()) -> list[Wheel]:
    """Return the wheels that a requirement needs on a kind of machine, without their sizes (`with_sizes`).

    The wheel of the required package itself is included.

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
        platforms = SYSTEMS[target.system].platforms if target.system in SYSTEMS else ()
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
    if target.system in SYSTEMS:
        os_name, sys_platform, system, machine = SYSTEMS[target.system].conditions
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
    if find_spec("pip") is not None:
        return []
    if (bundle := find_spec("ensurepip")) is not None and bundle.origin is not None:
        brought = sorted((Path(bundle.origin).parent / "_bundled").glob("pip-*.whl"))
        if brought:
            return [str(brought[-1])]
    raise VitkitError("pip is not installed for this Python: python -m ensurepip")


def _wheel(install: dict[str, Any]) -> Wheel:
    url = install["download_info"]["url"]
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    about = install["metadata"]
    if not name.endswith(".whl"):
        raise VitkitError(f"{about['name']} has no wheel, only {name}, which must be built: pip wheel {about['name']}")
    digests = install["download_info"].get("archive_info", {}).get("hashes", {})
    return Wheel(name, f"{about['name']}=={about['version']}", url, digests.get("sha256", ""))


def with_sizes(wheels: Sequence[Wheel]) -> list[Wheel]:
    """Return the wheels with their sizes, as far as the servers state them."""
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


def is_reachable(index: str) -> bool:
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
        raise VitkitError("vitkit is not installed, only on the import path: pip install .") from error
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


def parts_of_vitkit() -> tuple[str, ...]:
    """Return the names of vitkit's optional parts (extras), such as `studio`."""
    return tuple(sorted(metadata.metadata("vitkit").get_all("Provides-Extra") or ()))


def _package_files() -> Iterator[tuple[str, bytes]]:
    home = Path(vitkit.__file__).parent
    for path in sorted(home.rglob("*")):
        parts = path.relative_to(home.parent).parts
        if path.is_file() and "__pycache__" not in parts and path.suffix != ".pyc":
            yield "/".join(parts), path.read_bytes()


def _with_version(text: str) -> str:
    """Return METADATA with the version of the code, because that of an editable installation may be outdated."""
    lines = text.split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("Version: "))
    return "\n".join([*lines[:at], f"Version: {vitkit.__version__}", *lines[at + 1 :]])


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
