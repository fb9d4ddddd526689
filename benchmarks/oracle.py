"""Does vitkit still answer as it did? `python benchmarks/oracle.py record | compare [--only PART] [--folder FOLDER]`.

The oracle runs the commands of `tests/golden/transcripts/commands.txt` and the Python calls of `calls.txt` in order, in
one folder, and describes what each of them returned: exit code, output, and the files that it wrote. Times, speeds,
dates, digests and paths are replaced by a placeholder, and numbers are rounded to four significant digits. The
transcript also has the public signatures, the digests of the golden files, and the figures of the latest result of
some benchmarks. `record` writes the transcripts; `compare` prints how today's differ from them, and exits with 1 if
they do.

Words must be equal, and numbers may differ by 1 %, since processors round differently. Everything is computed in
float32 by one thread. On another processor than that of the recording, a tiny model may still learn something else:
`record --folder OLD` with the source of an earlier commit in PYTHONPATH, and then `compare --folder OLD` with today's,
compares two commits on one machine.

A command or call that is written in another way than at the recording is followed by `# recorded as:` and the old way.
Lines that mention flowers or deit need the photographs and the weights in the folder VITKIT_TEST_DATA; without it, they
are neither recorded nor compared.
"""

from __future__ import annotations

import argparse
import ast
import csv
import difflib
import hashlib
import inspect
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file
from sklearn.datasets import load_digits
from tables import RESULTS, read_table

import vitkit
from vitkit.__main__ import main as run_vitkit

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
TRANSCRIPTS = GOLDEN / "transcripts"
DATA = os.environ.get("VITKIT_TEST_DATA")
SECONDS = 300  # after which a command is stopped
LINES, DEPTH, LENGTH = 60, 4, 6  # of an output, of nested JSON, and of its lists, that are recorded
TOLERANCE = 0.01
BENCHMARKS = ("claims", "coverage", "copies", "comparing", "shuffled", "promises")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
_NEUTRAL = (  # what differs from run to run, in this order
    (re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?)?"), "DATE"),
    (re.compile(r"\b(?=\d*[a-f])[0-9a-f]{12,}\b"), "DIGEST"),
    (re.compile(r"[\d.,]+ ?(?:ms|s|min|h|MB|MiB|GB|GiB|kB|KiB|GFLOPS|TFLOPS)\b"), "SIZE"),
    (re.compile(r"[\d.,]+ (?=images/s|images per second|samples/s|x the|of the ceiling)"), "SPEED "),
    (re.compile(r"\d+\.\d+x\b"), "SPEED"),
    (re.compile(r" +\d+% waiting for images"), ""),
    (re.compile(r"[\d.]+ times (?=slower|faster)"), "SPEED "),
    # The last columns of a comparison: speeds, peak memory and seconds.
    (re.compile(r"(\d+\.\d+  \d+\.\d+)  [\d.]+ {4,}[\d,]+ +\d+( +\S+ +)\S+( +\S+ +)\S+"), r"\1  SPEED\2s\3s"),
    (re.compile(r'("\w*(?:seconds|per_s|memory|bytes|speed)\w*": )[\d.e+-]+'), r"\1CHANGES"),
)
_RECORDED = "  # recorded as: "  # how a command or call was written when its transcript was recorded
_PROGRESS = re.compile(r": \d+ of \d+(?: |$)")
_CHANGING = re.compile(
    r"second|time|date|speed|per_s|memory|bytes|waiting|host|version|platform|python|digest|hash|sha256"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("--only", help="the parts to run, with commas between them: commands, calls, names, figures")
    parser.add_argument("--folder", type=Path, default=TRANSCRIPTS, help="where the transcripts are")
    options = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[str]]] = {"names": names, "figures": figures}
    parts |= {"commands": lambda: answers("commands"), "calls": lambda: answers("calls")}
    differences = 0
    for part in options.only.split(",") if options.only else parts:
        entries = list(parts[part]())
        file = options.folder / f"{part}.transcript"
        if options.action == "record":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(entries), encoding="utf-8")
            print(f"{file}: {len(entries)} entries")
        else:
            differences += compare(file, entries)
    return 1 if differences else 0


def compare(file: Path, entries: list[str]) -> int:
    """Print the entries that differ from those in a file, and return how many they are."""
    recorded = {_title(entry): entry for entry in re.split(r"(?m)^(?=\$ )", file.read_text(encoding="utf-8")) if entry}
    today = {_title(entry): entry for entry in entries}
    wrong = [title for title in today if not are_alike(recorded.get(title, ""), today[title])]
    gone = [title for title in recorded if title not in today and (DATA or not _needs_data(title))]
    for title in (*wrong, *gone):
        old, new = (text.get(title, "").splitlines() for text in (recorded, today))
        print(title, *list(difflib.unified_diff(old, new, lineterm="", n=1))[2:], sep="\n")
    print(f"{file.stem}: {len(today)} entries, {len(wrong) + len(gone)} of them differ")
    return len(wrong) + len(gone)


def are_alike(first: str, second: str) -> bool:
    """Whether two texts have the same words, and numbers that hardly differ."""
    if _NUMBER.sub("0", first) != _NUMBER.sub("0", second):
        return False
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=TOLERANCE, abs_tol=2e-3) for a, b in pairs)


def _title(entry: str) -> str:
    return entry.partition("\n")[0]


def _needs_data(line: str) -> bool:
    return "flowers" in line or "deit" in line


# --- Commands and calls -------------------------------------------------------------------------------------------


def answers(kind: str) -> Iterator[str]:
    """Run the lines of commands.txt or calls.txt, each in a process of its own, and describe what they do."""
    lines = [line for line in (TRANSCRIPTS / f"{kind}.txt").read_text(encoding="utf-8").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("#") and (DATA or not _needs_data(line))]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        place = folder / "work"
        make_material(place)
        asked: Counter[str] = Counter()
        for number, line in enumerate(lines):
            print(f"{number + 1} of {len(lines)}: {line[:100]}", file=sys.stderr, flush=True)
            before = _files(place)
            is_shown = not line.startswith("- ")  # a line with a hyphen prepares others
            line, _, title = line.removeprefix("- ").partition(_RECORDED)
            code = _in_process(place, folder, lambda line=line: _run(kind, line))
            if not is_shown:
                if code:
                    raise SystemExit(f"{line}: exit code {code}\n{(folder / 'stderr').read_text()}")
                continue
            title = title or line
            asked[title] += 1
            entry = [f"$ {title}{f'  # time {asked[title]}' if asked[title] > 1 else ''}", f"exit code {code}"]
            for stream in ("stdout", "stderr"):
                text = neutral((folder / stream).read_text(encoding="utf-8", errors="replace"), place)
                rows = [row for row in text.splitlines() if row.strip() and not _PROGRESS.search(row)]
                entry += [f"{stream}: {row}" for row in rows[:LINES]]
                entry += [f"{stream}: and {len(rows) - LINES} lines"] * (len(rows) > LINES)
            changed = [path for path, stamp in _files(place).items() if before.get(path) != stamp]
            entry += [f"file {path}: {neutral(content_of(place / path), place)}" for path in changed]
            entry += [f"deleted {path}" for path in before if not (place / path).exists()]
            yield "\n".join(entry) + "\n\n"


def make_material(place: Path) -> None:
    """Digits as photographs in class folders, lists and archives of them, damaged files, and flowers if there are."""
    digits = load_digits()
    for label, name in enumerate(("zero", "one", "two")):
        for number, pixels in enumerate(digits.images[digits.target == label][:24]):
            _save(place / "photos" / name / f"{number:02}.png", pixels)
        for split, own in (("train", slice(24, 40)), ("val", slice(40, 46)), ("test", slice(46, 56))):
            for number, pixels in enumerate(digits.images[digits.target == label][own]):
                _save(place / "splits" / split / name / f"{number:02}.png", pixels)
    _save(place / "one.png", digits.images[digits.target == 1][60])
    rows = [f"photos/{path.parent.name}/{path.name},{path.parent.name}" for path in sorted(place.glob("photos/*/*"))]
    (place / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n", encoding="utf-8")
    rows = ["path,label,camera", "photos/one/00.png,one,x", "nowhere.png,two,y"]
    (place / "unknown.csv").write_text("\n".join(rows), encoding="utf-8")
    (place / "paths.txt").write_text("photos/one/00.png\nphotos/two/01.png\n", encoding="utf-8")
    shutil.make_archive(str(place / "photos"), "zip", place, "photos")
    shutil.make_archive(str(place / "photos"), "tar", place, "photos")
    shutil.copytree(place / "photos", place / "damaged")
    (place / "damaged" / "one" / "text.png").write_text("no picture", encoding="utf-8")
    whole = (place / "damaged" / "two" / "03.png").read_bytes()
    (place / "damaged" / "two" / "03.png").write_bytes(whole[: len(whole) // 2])
    shutil.copy(place / "damaged" / "one" / "00.png", place / "damaged" / "two" / "copy.png")
    if DATA is not None:
        shutil.copy(Path(DATA) / "weights" / "deit_tiny_patch16_224.pth", place / "deit.pth")
        for source in sorted((Path(DATA) / "data" / "flowers").iterdir()):
            for path in sorted(source.iterdir())[:60]:
                target = place / "flowers" / source.name / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((255 - pixels * 15).astype(np.uint8)).resize((32, 32)).convert("RGB").save(path)


def _in_process(place: Path, folder: Path, function: Callable[[], None]) -> int:
    """Call a function in a fork of this process, which has imported PyTorch, and return its exit code."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.chdir(place)
        for number, stream in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = 0
        try:
            function()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(kind: str, line: str) -> None:
    if kind == "commands":
        sys.argv = shlex.split(line)
        run_vitkit()
        return
    names: dict[str, Any] = {"vitkit": vitkit, "torch": torch, "np": np, "Image": Image, "Path": Path}
    *statements, last = ast.parse(line).body
    try:
        exec(compile(ast.Module(statements, []), "calls", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "calls", "eval"), names)  # type: ignore[attr-defined]
    except vitkit.VitkitError as error:
        print(f"VitkitError: {error}")
        return
    print(json.dumps(condensed(plain(value)), indent=0, default=str))


def plain(value: Any) -> Any:
    """The value in JSON types; tensors by their shape, mean and mean size."""
    if isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)
        return _array(array)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(own) for own in value]
    return value if isinstance(value, str | int | float | bool | None) else f"{type(value).__name__}"


# --- Descriptions -------------------------------------------------------------------------------------------------


def neutral(text: str, place: Path) -> str:
    """The text without what differs from run to run, its numbers rounded."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace(str(place), "WORK").replace(str(Path.home()), "HOME")
    text = text.replace(os.environ.get("VITKIT_CACHE", "no cache"), "CACHE")
    text = text.replace("\r", "\n")
    for pattern, word in _NEUTRAL:
        text = pattern.sub(word, text)
    return _NUMBER.sub(lambda match: f"{float(match[0]):.4g}" if "." in match[0] else match[0], text)


def content_of(path: Path) -> str:
    """What a file contains, briefly."""
    suffix = path.suffix
    if _CHANGING.search(path.stem):
        return "present"
    if suffix == ".json":
        return json.dumps(condensed(json.loads(path.read_text(encoding="utf-8"))))
    if suffix == ".jsonl":
        return json.dumps(condensed([json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]))
    if suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as text:
            rows = list(csv.DictReader(text))
        columns = {name: [_number(row[name]) for row in rows] for name in (rows[0] if rows else {})}
        return json.dumps({"rows": len(rows), **{name: condensed(own, name) for name, own in columns.items()}})
    if suffix in (".toml", ".txt", ".md"):
        rows = [row for row in path.read_text(encoding="utf-8").splitlines() if row.strip()]
        rows = [row for row in rows if not _PROGRESS.search(row) and not ("=" in row and _CHANGING.search(row))]
        return " | ".join(rows[:LINES])
    if suffix == ".html":
        return f"headings {re.findall(r'<h[12][^>]*>(.*?)</h[12]>', path.read_text(encoding='utf-8'), re.S)}"
    if suffix in (".png", ".jpg", ".gif", ".webp"):
        with Image.open(path) as picture:
            return f"{picture.format} {picture.size[0]} x {picture.size[1]}"
    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return json.dumps({name: _array(arrays[name]) for name in sorted(arrays.files)})
    if suffix == ".safetensors":
        arrays = load_file(path)
        return f"{len(arrays)} tensors, {_array(np.concatenate([own.ravel() for own in arrays.values()]))}"
    if suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return str(sorted(archive.namelist()))
    if suffix == ".tar":
        with tarfile.open(path) as archive:
            return f"{len(archive.getnames())} members"
    return "present"


def condensed(value: Any, name: str = "", depth: int = 0) -> Any:
    """JSON without values that change from run to run; of what is long or deep, the length, the mean and the first."""
    if _CHANGING.search(name.lower()):
        return "CHANGES"
    own = list(value.values()) if isinstance(value, dict) else value
    if isinstance(own, list) and (depth >= DEPTH or len(own) > LENGTH * (1 if isinstance(value, list) else 8)):
        numbers = [each for each in own if isinstance(each, int | float) and not isinstance(each, bool)]
        mean = {"mean": float(np.mean(numbers))} if numbers and isinstance(value, list) else {}
        return {"of": len(own), **mean, **({"first": condensed(own[0])} if own and depth < DEPTH else {})}
    if isinstance(value, dict):
        return {key: condensed(each, key, depth + 1) for key, each in value.items()}
    return [condensed(each, depth=depth + 1) for each in value] if isinstance(value, list) else value


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _array(array: np.ndarray) -> str:
    if array.dtype.kind not in "fiub":
        return f"{array.dtype.kind} {list(array.shape)}"
    size = np.abs(array.astype(np.float64)).mean() if array.size else 0.0
    return f"{list(array.shape)} mean {array.mean() if array.size else 0.0:.4g} size {size:.4g}"


def _files(place: Path) -> dict[str, tuple[int, int]]:
    paths = (path for path in sorted(place.rglob("*")) if path.is_file() and "tfevents" not in path.name)
    return {str(path.relative_to(place)): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


# --- Names and figures --------------------------------------------------------------------------------------------


def names() -> Iterator[str]:
    """The signatures of everything public, and the digests of the golden files."""
    for name in sorted(vitkit.__all__):
        value = getattr(vitkit, name)
        rows = [f"$ vitkit.{name}", _signature(value)]
        if inspect.isclass(value):
            bases = [base for base in value.__mro__ if base.__module__.startswith("vitkit")]
            own = {key: each for base in bases[::-1] for key, each in vars(base).items()}
            rows += [f"{key}{_signature(each)}" for key, each in sorted(own.items()) if not key.startswith("_")]
        yield "\n".join(rows) + "\n\n"
    for file in sorted(GOLDEN.glob("*.json")):
        yield f"$ {file.name}\n{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}\n\n"


def _signature(value: Any) -> str:
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return ""


def figures() -> Iterator[str]:
    """The means of the columns of each benchmark's latest result, for each text in its first columns."""
    for what in BENCHMARKS:
        file = max(RESULTS.glob(f"{what}_*.csv"), key=lambda path: path.stem.rpartition("_")[2])
        rows = read_table(file)
        out = io.StringIO()
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(" ".join(str(own) for own in row.values() if isinstance(own, str))[:80], []).append(row)
        for group, own in groups.items():
            numbers = {key: [row[key] for row in own if isinstance(row[key], int | float)] for key in own[0]}
            means = {key: f"{np.mean(column):.4g}" for key, column in numbers.items() if column and key != "seed"}
            out.write(f"{group or 'all'}: {means}\n")
        yield f"$ benchmark {what}\n{out.getvalue()}\n"


if __name__ == "__main__":
    os.environ |= {"VITKIT_OFFLINE": "1", "COLUMNS": "120", "NO_COLOR": "1"}
    torch.set_num_threads(1)
    sys.exit(main())
