"""Record real commands in docs/pictures/terminal.svg, an animated picture without a script.

    python benchmarks/recording.py                # runs the commands in a temporary folder, which takes minutes
    python benchmarks/recording.py --run RUN      # without the training: the other commands, with this run of digits
    python benchmarks/recording.py --from FILE    # draws a record again

The record (build/terminal.json) has each line of the output and the second at which it came. In the picture, every wait
is shortened to at most the same time, so that the whole lasts SECONDS; its last line says so. Lines of progress and
epochs replace each other in one row, as in a terminal. Without animation, the picture shows the final state.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
RECORD = ROOT / "build" / "terminal.json"
COMMANDS = (
    "vitkit train digits --epochs 12",
    "vitkit predict runs/digits-1 seven.png",
    "vitkit explain runs/digits-1 seven.png -o why --method all",
    "vitkit export runs/digits-1 -o digits.onnx",
)
SECONDS, HOLD = 20.0, 5.0  # of the recording, and of its last state before it starts again
COLUMNS, WIDTH, ADVANCE, LEADING, MARGIN = 64, 640, 9.5, 19, 16
_TRANSIENT = re.compile(r"epoch +\d+/\d+ |.*: \d+ of \d+$")
_STYLE = """
svg { color-scheme: light dark }
rect { fill: #fff; stroke: #8886 }
text { font: 15.8px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
.command { fill: #0550ae; font-weight: bold }
.note { fill: #59636e; font-style: italic }
.past { opacity: 0 }
@media (prefers-color-scheme: dark) {
  rect { fill: #0d1117 }
  text { fill: #e6edf3 }
  .command { fill: #79c0ff }
  .note { fill: #9198a1 }
}
@media (prefers-reduced-motion: reduce) { text { animation: none !important } }
"""


@dataclass(frozen=True)
class Line:
    """A line of the terminal, and the seconds from the start of the recording to its appearance."""

    text: str
    second: float
    is_command: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="record", type=Path, help="a record to draw instead of a new one")
    parser.add_argument("--run", type=Path, help="a run to use instead of training one")
    options = parser.parse_args()
    if options.record is None:
        lines = record(COMMANDS if options.run is None else COMMANDS[1:], options.run)
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps([vars(line) for line in lines], indent=1), encoding="utf-8")
    else:
        lines = [Line(**each) for each in json.loads(options.record.read_text(encoding="utf-8"))]
    PICTURE.write_text(drawing(lines), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


def record(commands: tuple[str, ...], run: Path | None = None) -> list[Line]:
    """Run commands one after the other in a temporary folder, and return their output with its times."""
    lines: list[Line] = []
    program = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{program}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "docs" / "pictures" / "seven.png", folder)
        if run is not None:
            shutil.copytree(run, Path(folder) / "runs" / "digits-1")
        start = time.monotonic()
        for command in commands:
            lines.append(Line(command, time.monotonic() - start, is_command=True))
            with subprocess.Popen(
                command.split(),
                cwd=folder,
                env=environment,
                text=True,
                encoding="utf-8",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as process:
                for text in process.stdout or ():
                    plain = text.rstrip().replace(str(Path.home()), "~")
                    lines.append(Line(plain, round(time.monotonic() - start, 2)))
                    print(plain, flush=True)
            if process.returncode:
                raise SystemExit(f"{command}: exit code {process.returncode}")
        lines.append(Line("", round(time.monotonic() - start, 2)))
    return lines


def shortened(seconds: list[float], total: float) -> list[float]:
    """Return the times of the picture: each wait is limited to the longest with which all take at most `total`."""
    waits = [later - earlier for earlier, later in itertools.pairwise(seconds)]
    low, high = 0.0, max(waits)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(min(wait, middle) for wait in waits) > total else (middle, high)
    return list(itertools.accumulate((min(wait, low) for wait in waits), initial=0.0))


def drawing(lines: list[Line]) -> str:
    """Draw a record as SVG."""
    times = shortened([line.second for line in lines], SECONDS)
    rules, texts, row = [], [], 0
    for i, line in enumerate(lines[:-1]):
        is_past = bool(_TRANSIENT.match(line.text) and _TRANSIENT.match(lines[i + 1].text))
        end = f"{_percent(times[i + 1])} {{ opacity: 0 }}" if is_past else ""
        rules.append(f"@keyframes l{i} {{ 0% {{ opacity: 0 }} {_percent(times[i])} {{ opacity: 1 }} {end}}}")
        kind = "command" if line.is_command else "past" if is_past else ""
        texts += [
            _text(part, row + j, kind, f"l{i}")
            for j, part in enumerate(_wrapped(f"$ {line.text}" if line.is_command else line.text))
        ]
        row += 0 if is_past else len(_wrapped(line.text))
    note = f"Recorded in {lines[-1].second:.0f} s, shown in {times[-1]:.0f} s: long waits are shortened."
    texts.append(_text(note, row + 1, "note", ""))
    height = 2 * MARGIN + LEADING * (row + 2)
    commands = ", ".join(line.text for line in lines if line.is_command)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>A terminal with the commands {escape(commands)}</title>\n"
        f"<style>{_STYLE}{chr(10).join(rules)}\n</style>\n"
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n{chr(10).join(texts)}\n</svg>\n'
    )


def _percent(second: float) -> str:
    return f"{100 * second / (SECONDS + HOLD):.2f}%"


def _wrapped(text: str) -> list[str]:
    """Return the rows that a line takes in a terminal of COLUMNS columns."""
    return [text[i : i + COLUMNS] for i in range(0, max(len(text), 1), COLUMNS)]


def _text(text: str, row: int, kind: str, name: str) -> str:
    y = MARGIN + LEADING * row + 15
    moves = f' style="animation: {name} {SECONDS + HOLD:.0f}s step-end infinite"' if name else ""
    named = f' class="{kind}"' if kind else ""
    length = f' textLength="{len(text) * ADVANCE:.1f}" lengthAdjust="spacingAndGlyphs"' if text else ""
    return f'<text x="{MARGIN}" y="{y}"{length}{named}{moves}>{escape(text)}</text>'


if __name__ == "__main__":
    main()
