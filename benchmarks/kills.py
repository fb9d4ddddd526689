"""Does a training survive being killed? `python benchmarks/kills.py [--kills 40] [--seed 0] [--smoke] [--counts]`.

    kills     runs of 2 processes (gloo) are killed at random steps and continued by the same command, as the same
              number of processes or as 1 to 3, with 0 to 3 workers each: a process, all, a worker, SIGTERM, a process
              in the middle of writing a checkpoint
    restarts  `torchrun --max-restarts 3` with three kills of random processes

With `--counts`, runs of 1 to 4 processes are killed and continued by
1 to 4 processes. The mean loss of the first batch after that must be the one of an uninterrupted run within 1e-6.

Every image that a process learns from is noted with a digest of its pixels. For each batch of each epoch the last
attempt that computed it counts, and its digests must be those of an uninterrupted run of one process. Runs that always
had two processes must end with the weights of an uninterrupted run of two, to the bit; other runs within 1e-5. The loss
of time is from the step that an attempt continues at to the kill. Steps are slowed to a tenth of a second, so that a
kill meets any part of them. A model of a few thousand weights is trained on 96 images.

`python benchmarks/kills.py worker JOURNAL ARGUMENTS...` is `vitkit ARGUMENTS...` with the notes, and the kills that the
environment asks for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.torch import load_file
from tables import save_table, show

HERE = Path(__file__)
PYTHON = os.environ.get("KILLS_PYTHON", sys.executable)  # the interpreter of everything that is started
KINDS = ("process", "all", "worker", "sigterm", "save")
EPOCHS, BATCH, IMAGES = 4, 8, 40  # a class
SAVE_EVERY = 1.0  # seconds
FLAGS = (
    *("--model", "vit_micro_patch8_16", "--weights", "none", "--epochs", str(EPOCHS), "--batch-size", str(BATCH)),
    *("--precision", "float32", "--save-every", f"{SAVE_EVERY}s", "--cache", "none", "--keep", "last"),
    *("--set", "model.layers=2", "--set", "model.hidden_size=32", "--set", "model.heads=4", "--mixup", "0.4"),
    *("--split", "0.8", "0.1", "0.1"),
)


# --- The program that is killed -----------------------------------------------------------------------------


def worker(journal: Path, arguments: list[str]) -> None:
    """Train with notes of what is learned from, and with the kills that the environment asks for."""
    import torch

    from vitkit.training import loop

    place = {"rank": int(os.environ.get("RANK", "0")), "ranks": int(os.environ.get("WORLD_SIZE", "1"))}
    attempt = f"{os.environ['KILLS_ATTEMPT']}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    (journal / f"{attempt}-{place['rank']}.pid").write_text(str(os.getpid()))
    seconds = float(os.environ.get("KILLS_STEP", "0.1"))
    prepare, step, save = loop.Loop._prepare, loop.Loop.take_step, torch.save
    seen: list[dict[str, Any]] = []

    def noting(self: Any, batch: Any, number: int, first: int) -> Any:
        micro = prepare(self, batch, number, first)
        own = [hashlib.sha256(image.numpy().tobytes()).hexdigest()[:12] for image in batch[0][: micro.training_images]]
        seen.append({"epoch": self.state.epoch, "batch": number, "samples": own})
        return micro

    def slow(self: Any, *given: Any) -> None:
        step(self, *given)
        time.sleep(seconds)
        with (journal / f"{attempt}-{place['rank']}.jsonl").open("a") as file:
            for note in seen:
                file.write(json.dumps({**note, **place, "attempt": attempt, "time": time.time()}) + "\n")
        seen.clear()
        _kill_at(journal, self.state.step, place["rank"])

    def stopping(state: Any, file: Any, **options: Any) -> None:
        save(state, file, **options)
        if "KILLS_IN_SAVE" in os.environ and isinstance(state, dict) and "run" in state:
            file.truncate(file.tell() // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self: Any, loss: Any, hits: Any) -> None:
        plain_note(self, loss, hits)
        seen[-1]["loss"] = seen[-1].get("loss", 0.0) + loss.item()  # the sum over the images of this process

    loop.Loop._prepare, loop.Loop.take_step, torch.save = noting, slow, stopping  # type: ignore[method-assign]
    plain_note, loop.MicroBatch.note = loop.MicroBatch.note, note  # type: ignore[method-assign]
    from vitkit.__main__ import main

    sys.argv = ["vitkit", *arguments]
    main()


def _kill_at(journal: Path, step: int, rank: int) -> None:
    """Kill this process if the environment names the step and the rank; each of them once."""
    for number, pair in enumerate(filter(None, os.environ.get("KILLS_AT", "").split(","))):
        at, who = map(int, pair.split(":"))
        mark = journal / f"killed-{number}"
        if (at, who) == (step, rank) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


# --- Runs ---------------------------------------------------------------------------------------------------


def photographs(root: Path) -> Path:
    """Pictures of 16 pixels in three classes, all different."""
    rng = np.random.default_rng(0)
    for name, colour in (("red", (200, 50, 40)), ("green", (40, 190, 60)), ("blue", (40, 60, 200))):
        (root / name).mkdir(parents=True)
        for i in range(IMAGES):
            pixels = np.clip(np.array(colour) + rng.normal(0, 60, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@dataclass
class Story:
    """A run and what happened to it.

    Attributes:
        data: its photographs.
        folder: the run folder.
        rng: decides what happens.
        attempts: the number of times it was started.
    """

    data: Path
    folder: Path
    rng: random.Random
    attempts: int = 0
    ranks: list[int] = field(default_factory=list)

    @property
    def journal(self) -> Path:
        return self.folder.with_name(self.folder.name + "-journal")

    def start(self, ranks: int, workers: int, *launcher: str, **environment: str) -> subprocess.Popen[str]:
        """Start the command, by torchrun if there are several processes."""
        self.journal.mkdir(exist_ok=True)
        self.attempts += 1
        self.ranks.append(ranks)
        program = [str(HERE), "worker", str(self.journal)]
        command = ["train", str(self.data), *FLAGS, "--workers", str(workers)]
        command += ["--out", str(self.folder), "--force"]
        if (self.folder / "recipe.toml").is_file():
            recipe = self.folder / "recipe.toml"
            text = re.sub(r"^workers = .*", f"workers = {workers}", recipe.read_text(), flags=re.MULTILINE)
            recipe.write_text(text)
            command = ["train", "--resume", str(self.folder)]
        torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(ranks)]
        started = [PYTHON, *(torchrun if ranks > 1 else []), *launcher, *program, *command]
        env = {"KILLS_ATTEMPT": f"{self.attempts:03d}", "OMP_NUM_THREADS": "1", "PYTHON_EXEC": PYTHON, **environment}
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else restarted processes may wait for those that ended
        return subprocess.Popen(
            started, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def notes(self) -> list[dict[str, Any]]:
        """What was learned from, in the order of attempts and times."""
        lines = [line for path in sorted(self.journal.glob("*.jsonl")) for line in path.read_text().splitlines()]
        whole = [json.loads(line) for line in lines if line.endswith("}")]
        return sorted(whole, key=lambda note: (note["attempt"], note["time"]))

    def of_last_attempt(self) -> list[dict[str, Any]]:
        return [note for note in self.notes() if note["attempt"].startswith(f"{self.attempts:03d}.")]


def whole_run(story: Story, ranks: int) -> Story:
    """An uninterrupted run."""
    process = story.start(ranks, 0, KILLS_STEP="0")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return story


def kill(story: Story, process: subprocess.Popen[str], kind: str, after: int) -> str | None:
    """Kill something of a run after so many steps of this attempt; None if the run ended before.

    Returns what was killed, which may be another kind if there is no worker.
    """
    deadline = time.monotonic() + 300
    while len({(n["epoch"], n["batch"]) for n in story.of_last_attempt()}) < after or kind == "save":
        if process.poll() is not None:
            return kind if kind == "save" and process.returncode != 0 else None
        assert time.monotonic() < deadline, "the run does not go on"
        time.sleep(0.02)
    trained = ranks_of(story)
    if kind == "worker":
        workers = [child for rank in trained for child in children(rank)]
        if not workers:
            kind = "process"
        else:
            os.kill(story.rng.choice(workers), signal.SIGKILL)
    if kind == "process":
        os.kill(story.rng.choice(trained), signal.SIGKILL)
    if kind == "all":
        for pid in [process.pid, *trained]:
            os.kill(pid, signal.SIGKILL)
    if kind == "sigterm":
        process.send_signal(signal.SIGTERM)
    return kind


def ranks_of(story: Story) -> list[int]:
    """The ids of the processes that train."""
    files = sorted(story.journal.glob(f"{story.attempts:03d}.*.pid"))
    return [pid for file in files for pid in [int(file.read_text() or 0)] if pid and Path(f"/proc/{pid}").exists()]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if _parent(int(entry.name)) == pid:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end of a run, also of processes that were left behind."""
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


# --- What must hold -----------------------------------------------------------------------------------------


def samples(notes: Iterable[dict[str, Any]]) -> dict[tuple[int, int], list[str]]:
    """The digests of each batch: those of the last attempt that computed it."""
    by_batch: dict[tuple[int, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for note in notes:
        by_batch[note["epoch"], note["batch"]][note["attempt"]].append(note)
    found = {}
    for place, attempts in by_batch.items():
        last = attempts[max(attempts)]
        assert len(last) == last[0]["ranks"], f"not every process computed batch {place}"
        found[place] = sorted(digest for note in last for digest in note["samples"])
    return found


def lost(story: Story) -> list[float]:
    """The seconds of steps that each attempt computed and its successor computed again."""
    by_attempt: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for note in story.notes():
        by_attempt[note["attempt"]].setdefault((note["epoch"], note["batch"]), note["time"])
    attempts, seconds = sorted(by_attempt), []
    for one, other in pairwise(attempts):
        again = [time_of for place, time_of in by_attempt[one].items() if place in by_attempt[other]]
        seconds.append(max(by_attempt[one].values()) - min(again) if again else 0.0)
    return seconds


def difference(a: Path, b: Path) -> float:
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (a, b))
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def trial(
    place: Path,
    data: Path,
    references: dict[int, Story],
    kinds: list[str],
    rng: random.Random,
    *,
    same: bool,
) -> dict[str, Any]:
    """A run that is killed once for each kind, and what became of it."""
    story, ranks, codes, output = Story(data, place, rng), 2, list[str](), ""
    killed: list[str] = []
    for kind in kinds:
        workers = rng.randint(1, 3) if kind == "worker" else rng.randint(0, 3)
        process = story.start(ranks, workers, **({"KILLS_IN_SAVE": "1"} if kind == "save" else {}))
        met = kill(story, process, kind, after=rng.randint(3, 12))
        code, said = end(process)
        output += said
        if met is None:
            assert code == 0, said
            break
        killed.append(met)
        if met == "sigterm":
            codes.append(f"{code} of {ranks}")
        ranks = 2 if same else rng.randint(1, 3)
    code, said = end(story.start(ranks, rng.randint(0, 3)))
    assert code == 0, output + said
    return _row("killed", story, references, killed, same=same, codes=codes)


def restarts(place: Path, data: Path, references: dict[int, Story], rng: random.Random) -> dict[str, Any]:
    """One call of torchrun that starts the training again after each of three kills."""
    story = Story(data, place, rng)
    steps = sorted(rng.sample(range(5, 40), 3))
    at = ",".join(f"{step}:{rng.randint(0, 1)}" for step in steps)
    code, said = end(story.start(2, 1, "--max-restarts", "3", KILLS_AT=at))
    assert code == 0, said
    return _row("restarted by torchrun", story, references, ["process"] * 3, same=True, codes=[])


def losses(notes: Iterable[dict[str, Any]]) -> dict[tuple[int, int], float]:
    """The mean loss of each batch, of all processes."""
    parts: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for note in notes:
        parts[note["epoch"], note["batch"]].append(note)
    images = {place: sum(len(note["samples"]) for note in every) for place, every in parts.items()}
    return {place: sum(note["loss"] for note in every) / images[place] for place, every in parts.items()}


def counts(place: Path, data: Path, rng: random.Random) -> list[dict[str, Any]]:
    """Runs that are continued with another number of processes."""
    whole = whole_run(Story(data, place / "whole", rng), 1).notes()
    expected = losses(whole)
    rows = []
    for first, second in ((1, 2), (2, 1), (2, 2), (2, 3), (3, 4), (4, 1), (4, 2), (4, 4)):
        story = Story(data, place / f"{first}-{second}", rng)
        code, said = end(story.start(first, 0, KILLS_AT=f"{rng.randint(15, 22)}:0", KILLS_STEP="0.3"))
        assert code != 0, said
        code, said = end(story.start(second, 0, KILLS_STEP="0"))
        assert code == 0, said
        found = losses(story.of_last_attempt())
        apart = {at: abs(found[at] - expected[at]) for at in found}
        rows.append(
            {
                "before": first,
                "after": second,
                "batch": " ".join(map(str, min(found))),
                "next_loss_apart": float(f"{apart[min(found)]:.2e}"),
                "largest_apart": float(f"{max(apart.values()):.2e}"),
                "samples_exact": samples(story.notes()) == samples(whole),
            }
        )
        print(show(rows[-1]), flush=True)
    return rows


def _row(
    what: str,
    story: Story,
    references: dict[int, Story],
    killed: list[str],
    *,
    same: bool,
    codes: list[str],
) -> dict[str, Any]:
    return {
        "what": what,
        "same_ranks": same,
        "kills": len(killed),
        "killed": " ".join(killed),
        "ranks": " ".join(map(str, story.ranks)),
        "samples_exact": samples(story.notes()) == samples(references[1].notes()),
        "difference": difference(story.folder, references[2].folder),
        "save_every_s": SAVE_EVERY,
        "lost_most_s": round(max(lost(story), default=0.0), 2),
        "codes_of_sigterm": ", ".join(codes),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="three kills in one run, and no table")
    parser.add_argument("--no-table", action="store_true")
    parser.add_argument("--counts", action="store_true", help="continue runs with another number of processes")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    if asked.counts:
        with tempfile.TemporaryDirectory() as folder:
            rows = counts(Path(folder), photographs(Path(folder) / "photos"), rng)
        if not asked.no_table:
            save_table("counts", "float32", rows)
        assert all(row["next_loss_apart"] <= 1e-6 for row in rows), "the next loss is another"
        assert all(row["samples_exact"] for row in rows), "an image was lost or repeated"
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = photographs(place / "photos")
        references = {n: whole_run(Story(data, place / f"whole-{n}", rng), n) for n in (1, 2)}
        kinds = ["process", "save", "sigterm"] if asked.smoke else [KINDS[i % len(KINDS)] for i in range(asked.kills)]
        rng.shuffle(kinds)
        rows: list[dict[str, Any]] = []
        while kinds:
            own, kinds = kinds[:4], kinds[4:]
            same = len(rows) % 2 == 0
            rows.append(trial(place / f"run-{len(rows)}", data, references, own, rng, same=same))
            kinds += own[rows[-1]["kills"] :]
            print(show(rows[-1]), flush=True)
        if not asked.smoke:
            rows.append(restarts(place / "restarts", data, references, rng))
            print(show(rows[-1]), flush=True)
    if not asked.smoke and not asked.no_table:
        save_table("kills", "float32", rows)
    assert all(row["samples_exact"] for row in rows), "an image was lost or repeated"
    assert all(row["difference"] == 0 for row in rows if row["same_ranks"]), "the weights are others"
    assert all(row["difference"] < 1e-5 for row in rows), "the weights are others by more than rounding"


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
