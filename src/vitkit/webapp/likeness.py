"""Compute features of photographs, find similar photographs, and choose which photographs to label next.

`vitkit embed` computes the features in a separate process. `Background` runs tasks that take too long for a request,
one at a time, and reports their progress. `evaluation.label_choice` chooses the photographs to label next.
"""

from __future__ import annotations

import hashlib
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vitkit.data import EXCLUDED, UNLABELLED, ImageTable
from vitkit.errors import VitkitError, first_line
from vitkit.system import cache_folder, python_command, receiver, reporting_to
from vitkit.webapp.photographs import State, stamp_of
from vitkit.webapp.train import PROGRESS, WEIGHTS_ADVICE, Offer, best_feature_model, smallest_download
from vitkit.webapp.workspace import Workspace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

T = TypeVar("T")
_MIN_SECONDS = 2.0  # seconds after which the speed of a stage can be estimated


class Background(Generic[T]):
    """Run one task at a time in a thread, and keep the last result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._progress: tuple[str, int, int | None] = ("", 0, None)
        self._stage_began = time.monotonic()
        self._error = ""
        self._result: T | None = None
        self._key: object = None

    def start(self, key: object, work: Callable[[], T]) -> None:
        """Start a task, unless one is running. The task reports its progress to `vitkit.system.progress.receiver()`.

        `result` returns the result only for a key that is equal to this one.
        """
        with self._lock:
            if self.is_running:
                return
            self._key, self._result = key, None
            self._progress, self._error = ("", 0, None), ""
            self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether a task is running."""
        return self._thread is not None and self._thread.is_alive()

    def result(self, key: object) -> T | None:
        """Return the result of the last task if it was started with this key; otherwise None."""
        return self._result if self._key == key else None

    def to_dict(self) -> dict[str, Any]:
        """Return the progress of the task, the estimated seconds until its current stage ends, and an error message."""
        what, done, total = self._progress
        seconds = time.monotonic() - self._stage_began
        left = None
        if total and done and seconds >= _MIN_SECONDS:
            left = seconds * (total - done) / done
        return {
            "running": self.is_running,
            "what": what,
            "done": done,
            "total": total,
            "left": left,
            "error": self._error,
        }

    def _run(self, work: Callable[[], T]) -> None:
        def report(what: str, done: int, total: int | None) -> None:
            if what != self._progress[0]:
                self._stage_began = time.monotonic()
            self._progress = (what, done, total)

        try:
            with reporting_to(report):
                self._result = work()
        except (VitkitError, OSError) as error:
            self._error = first_line(error)
        except Exception as error:  # an exception in a thread reaches nobody else
            self._error = f"{type(error).__name__}: {first_line(error)}"


@dataclass(frozen=True)
class Features:
    """The features of the n photographs that can be read."""

    numbers: tuple[int, ...]  # of the photographs
    vectors: Floats  # the features, scaled to unit length, (n, D)


_NOT_YET = "the features of the photographs have not been computed yet: wait until they are"


class Likeness:
    """The features of the photographs: computed in another process, cached on disk, and loaded when needed."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.work: Background[Path] = Background()
        self._loaded: tuple[Path, Features] | None = None  # the file, and its content
        self._downloaded: Offer | None = None  # the model that the user chose to download

    def model(self) -> Offer | None:
        """Return the model that computes features: the best one on this machine, or else the one to download."""
        return best_feature_model(self.workspace) or self._downloaded

    def start(self, table: ImageTable, *, may_download: bool = False) -> None:
        """Start to compute the features, unless they exist or are being computed.

        If no model is on this machine, `may_download` downloads the smallest one.
        """
        if may_download:
            self._downloaded = smallest_download()
        model = self.model()
        if model is None:
            reason = f"no model that computes features is on this machine: {WEIGHTS_ADVICE}"
            raise VitkitError("webapp.model-missing", reason)
        out = self._cache_file(table, model)

        def embed() -> Path:
            out.parent.mkdir(parents=True, exist_ok=True)
            run_vitkit(["embed", model.source, str(self.workspace.photographs), "--force"], out)
            return out

        if not out.is_file():
            self.work.start(out, embed)

    def features(self, table: ImageTable) -> Features | None:
        """Return the features of the readable photographs; None if they are not computed yet."""
        import numpy as np

        model = self.model()
        if model is None:
            return None
        file = self._cache_file(table, model)
        if self._loaded is not None and self._loaded[0] == file:
            return self._loaded[1]
        try:
            with np.load(file) as stored:
                paths, vectors = stored["paths"].tolist(), stored["features"].astype(np.float32)
        except FileNotFoundError:
            return None
        number_of = {str(table.file(i)): i for i in range(len(table))}
        rows = [row for row, path in enumerate(paths) if path in number_of]
        vectors = vectors[rows]
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        features = Features(tuple(number_of[paths[row]] for row in rows), vectors)
        self._loaded = file, features
        return features

    def alike(self, table: ImageTable, number: int) -> list[int]:
        """Return the indices of all readable photographs, sorted by decreasing similarity to photograph `number`."""
        import numpy as np

        features = self.features(table)
        if features is None:
            raise VitkitError("webapp.features-missing", _NOT_YET)
        if number not in features.numbers:
            raise VitkitError("webapp.photograph-unreadable", "this photograph cannot be read")
        similarity = features.vectors @ features.vectors[features.numbers.index(number)]
        return [features.numbers[i] for i in np.argsort(-similarity, kind="stable")]

    def to_dict(self, table: ImageTable) -> dict[str, Any]:
        """Return the model in use, the progress, and whether the features are computed.

        If no model is on this machine, the result also contains the smallest model that can be downloaded.
        """
        model = self.model()
        download = smallest_download() if best_feature_model(self.workspace) is None else None
        return {
            **self.work.to_dict(),
            "download": None if download is None else download.to_dict(),
            "ready": model is not None and self._cache_file(table, model).is_file(),
            "eyes": "" if model is None else model.title,
            "advice": WEIGHTS_ADVICE,
        }

    def _cache_file(self, table: ImageTable, model: Offer) -> Path:
        """Return the path of the cached features. It changes with the model, the photographs and their files."""
        digest = hashlib.sha256(f"{table.root}\0{model.source}\0{stamp_of(Path(model.source))}".encode())
        for i, path in enumerate(table.paths):
            digest.update(f"{path}\0{stamp_of(table.file(i))}\n".encode("utf-8", "surrogateescape"))
        return cache_folder() / "features" / f"{digest.hexdigest()[:40]}.npz"


def run_vitkit(arguments: list[str], out: Path) -> None:
    """Run a vitkit command that writes the new file `out` in another process, and report its progress.

    It raises no error if some images cannot be read.

    Raises:
        VitkitError: the command failed; the message is the last error that it printed.
    """
    last_error = ""
    with subprocess.Popen(  # noqa: S603  # vitkit's own command, and what was offered
        python_command("vitkit", *arguments, "--out", str(out)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if match := PROGRESS.fullmatch(line.strip()):
                receiver()(match["what"], int(match["done"]), int(match["total"]) if match["total"] else None)
            elif line.startswith("error: "):
                last_error = line.removeprefix("error: ").strip()
    if process.returncode not in (0, 1) or not out.is_file():  # 1: some images cannot be read, as their rows say
        reason = last_error or f"vitkit {arguments[0]} ended with {process.returncode}"
        raise VitkitError("webapp.command-failed", reason)


def next_labels(state: State, features: Features | None, count: int) -> dict[str, Any]:
    """Return the numbers of the unlabelled photographs that are most useful to label next, best first."""
    if features is None:
        raise VitkitError("webapp.features-missing", _NOT_YET)
    import numpy as np

    from vitkit.evaluation import choose_next

    labels_of_rows = [state.labels[i] for i in features.numbers]
    is_labelled = np.array([label not in (UNLABELLED, EXCLUDED) for label in labels_of_rows])
    # Exact copies have the same features up to rounding. Of each picture, a labelled copy comes first.
    order = np.argsort(~is_labelled, kind="stable")
    _, first = np.unique(np.round(features.vectors[order], 4), axis=0, return_index=True)
    is_considered = is_labelled.copy()  # all labelled photographs, and one of the copies of each other picture
    is_considered[order[first]] = True
    rows = [row for row, label in enumerate(labels_of_rows) if is_considered[row] and label != EXCLUDED]
    labels = [labels_of_rows[row] if is_labelled[row] else None for row in rows]
    if None not in labels:
        reason = "every photograph has a class already, or is a copy of one that has"
        raise VitkitError("webapp.class-everywhere", reason)
    chosen = choose_next(features.vectors[rows], labels, count)
    return {"images": [features.numbers[rows[i]] for i in chosen]}
