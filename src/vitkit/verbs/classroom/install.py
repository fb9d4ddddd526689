"""Install vitkit from this folder, without a network: python install.py [FOLDER]

The installation, a copy of the lesson, the weights and the photographs go to FOLDER, which is vitkit-lesson in your
home folder by default. With `--check`, the program only checks whether this Python can be used. It needs only Python's
standard library.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
COPIED = {"lesson.html": "lesson.html", "pictures": "pictures", "data": "data", "weights": "."}  # with their targets


def main(arguments: list[str]) -> int:
    """Install vitkit, or with `--check` only check whether this is possible, and return the exit code."""
    target = this_target()
    lock = HERE / "requirements" / f"{target}.txt"
    if not (HERE / "SHA256SUMS").is_file():
        return fail("this folder is not complete: run `vitkit pack` on it again, or copy it again")
    if not lock.is_file():
        packed = ", ".join(sorted(path.stem for path in lock.parent.iterdir()))
        return fail(f"this folder has no packages for {target}, only for {packed}")
    if "--check" in arguments:
        return 0
    begun = time.monotonic()
    home = Path(arguments[0] if arguments else Path.home() / "vitkit-lesson").absolute()
    if home == HERE or HERE in home.parents:
        return fail(f"choose a folder outside of {HERE}, from which other computers are installed")
    print(f"checking the files of {HERE}", flush=True)
    damaged = [name for name, digest in checksums() if digest_of(HERE / name) != digest]
    if damaged:
        return fail(f"{len(damaged)} files are damaged or missing, such as {damaged[0]}: copy the folder again")
    print(f"installing into {home} (some minutes)", flush=True)
    if not make_environment(home / ".venv") or not install(home / ".venv", lock):
        return 2
    for name, place in COPIED.items():
        copy(HERE / name, home / place)
    for name in ("studio", "terminal"):
        write_starter(home / starter(name), name)
    print(f"installed in {(time.monotonic() - begun) / 60:.1f} minutes")
    print(f"open {home / 'lesson.html'}, and start {home / starter('studio')}")
    return 0


def this_target() -> str:
    """Return the name of this kind of computer, such as `windows-3.12`, as `vitkit pack` writes it."""
    system = {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")
    usual = {"windows": "AMD64", "macos": "arm64", "linux": "x86_64"}[system]
    machine = "" if platform.machine() == usual else f"-{platform.machine()}"
    return f"{system}{machine}-{sys.version_info[0]}.{sys.version_info[1]}"


def checksums() -> Iterator[tuple[str, str]]:
    """Yield the name of each file in this folder and the SHA-256 digest that the file should have."""
    for line in (HERE / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        yield name, digest


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file; an empty string if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def make_environment(environment: Path) -> bool:
    """Create a virtual environment, replacing an earlier one if it exists, and return whether this succeeded."""
    environment.parent.mkdir(parents=True, exist_ok=True)
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=False)
    if made.returncode:
        fail("this Python cannot make environments (on Debian and Ubuntu, the package python3-venv is missing)")
    return made.returncode == 0


def install(environment: Path, lock: Path) -> bool:
    """Install the packages next to this program, verified by the checksums in `lock`. Return whether it succeeded."""
    python = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    options = ["--no-index", "--find-links", str(HERE / "wheels"), "--require-hashes", "-r", str(lock)]
    pip = [str(python), "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run([*pip, *options], check=False)
    if done.returncode == 0:
        done = subprocess.run([str(python), "-m", "vitkit", "--version"], check=False)
    if done.returncode:
        fail("the installation failed; the messages above say why")
    return done.returncode == 0


def copy(source: Path, target: Path) -> None:
    """Copy a file or the contents of a folder; do nothing if `source` does not exist."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.is_file():
        shutil.copyfile(source, target)


def starter(name: str) -> str:
    """Return the name with the suffix of files that this system runs after a double click."""
    return name + {"win32": ".bat", "darwin": ".command"}.get(sys.platform, ".sh")


def write_starter(path: Path, name: str) -> None:
    """Write a file that starts the studio, or a terminal in which the command `vitkit` is available."""
    if sys.platform == "win32":
        run = "vitkit studio & pause" if name == "studio" else "cmd /k"
        lines = ["@echo off", 'cd /d "%~dp0"', "set VITKIT_OFFLINE=1", "set PATH=%~dp0.venv\\Scripts;%PATH%", run]
        path.write_bytes("\r\n".join([*lines, ""]).encode())
        return
    run = "exec vitkit studio" if name == "studio" else 'exec "${SHELL:-sh}"'
    lines = ["#!/bin/sh", 'cd "$(dirname "$0")" || exit 2', "export VITKIT_OFFLINE=1"]
    path.write_bytes("\n".join([*lines, 'export PATH="$PWD/.venv/bin:$PATH"', run, ""]).encode())
    path.chmod(0o755)


def fail(reason: str) -> int:
    """Print an error and return the exit code of a failure."""
    print(f"error: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
