"""Compute the images of a command on the machines of a Ray cluster, with Ray Data.

`write_by_ray` divides the images into blocks. Each worker is an actor that opens the model once, and turns one block
after another into rows, which Ray Data writes to a folder of Parquet files. This process holds the names of the images,
but not the rows. If a worker dies, Ray starts another one, which computes the block again.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError, first_line
from vitkit.inference.pipeline import limit_cores
from vitkit.inference.prediction import ENCODING, parquet_files, parquet_table
from vitkit.system.files import check_local, staged
from vitkit.verbs.inputs import check_outside, exclusive_out
from vitkit.verbs.options import Compute

if TYPE_CHECKING:
    import pyarrow


Cells = Sequence[Any]  # a row, in the order of the columns
ComputeRows = Callable[[Iterable[str]], Iterator[Cells]]  # takes the names of images
OpenedModel = tuple[Mapping[str, Any], ComputeRows]  # with a description of how numbers are computed
OpenModel = Callable[[Mapping[str, Any] | None], OpenedModel]  # see `write_by_ray`

_MAX_BLOCK = 5_000  # images; a block is computed again if its worker dies
_MIN_BLOCKS_PER_WORKER = 4  # so that no worker waits long for the last block of another
_ROWS_PER_TABLE = 256  # rows that a worker returns at a time


def check_cluster(compute: Compute, out: Path | None, model: object) -> None:
    """Raise an error if `compute` requests a cluster, but there is no `out`, or the model is only in this process."""
    if compute.cluster is None:
        return
    if out is None:
        raise VitkitError(
            "verbs.option-missing", "--cluster requires --out, which every machine of the cluster can write"
        )
    if not isinstance(model, (str, Path)):
        raise VitkitError(
            "verbs.model-not-file", "--cluster requires a model that other machines can open: pass its folder or name"
        )


@contextmanager
def parquet_folder(out: Path, folders: Iterable[str], *, force: bool) -> Iterator[Path]:
    """Lock `out`, and yield a temporary folder for Parquet files, which is renamed to `out` after the `with` block."""
    if out.suffix.lower() != ".parquet":
        raise VitkitError(
            "verbs.out-suffix", f"--out {out} must end in .parquet: --cluster writes a folder of Parquet files"
        )
    check_local(out)
    if not out.parent.is_dir():
        raise VitkitError("verbs.folder-missing", f"--out {out}: there is no folder {out.parent}")
    check_outside("--out", out, folders)
    with exclusive_out(out, force=force):
        if out.is_dir() and (others := sorted(set(out.iterdir()) - set(parquet_files(out)))):
            raise VitkitError(
                "verbs.out-not-empty", f"--out {out} contains other files ({others[0].name}): choose a new name"
            )
        with staged(out) as temporary:
            temporary.mkdir()
            yield temporary
            if out.exists():
                out.rename(temporary.with_name("replaced"))  # `staged` deletes everything next to `temporary`
            temporary.rename(out)


def write_by_ray(
    open_model: OpenModel, paths: Sequence[str], schema: pyarrow.Schema, folder: Path, compute: Compute
) -> Mapping[str, Any]:
    """Compute the rows of images on a Ray cluster, and write them to a folder of Parquet files, in any order.

    Args:
        open_model: a function that each worker calls once. It takes a description of how numbers are computed
            (`Classifier.computation`), or None to choose the fastest way. It returns this description, and the function
            that computes rows. It must be possible to send it to other processes.
        paths: the names of the images.
        schema: the columns of the rows.
        folder: an empty folder, which every machine of the cluster can write.
        compute: the number of workers, and the device to compute on; `cpu` leaves GPUs unused.

    Returns:
        How the numbers were computed. One worker chooses it for all, so that the rows are computed in the same way.

    Raises:
        VitkitError: Ray is not installed, or a worker cannot compute.
    """
    with _ray() as ray:
        import pyarrow
        from ray.exceptions import RayError

        uses_gpus = compute.device in ("auto", "cuda")
        count, resources, cores = _divide_resources(ray.nodes(), compute.workers, uses_gpus=uses_gpus)
        job = _Job(open_model, os.getcwd(), cores, schema)  # noqa: PTH109
        size = max(1, min(_MAX_BLOCK, ceil(len(paths) / (_MIN_BLOCKS_PER_WORKER * count))))
        names = [path.encode(*ENCODING) for path in paths]
        blocks = [pyarrow.table({"path": names[i : i + size]}) for i in range(0, len(names), size)]
        try:
            computation: Mapping[str, Any] = ray.get(ray.remote(_choose_computation).options(**resources).remote(job))
            rows = ray.data.from_arrow(blocks).map_batches(
                _Worker,
                fn_constructor_args=(job, computation),
                batch_size=size,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=count),
                **resources,
            )
            rows.write_parquet(str(folder.absolute()), compression="zstd")
        except RayError as error:
            cause = getattr(error, "cause", None) or error
            if isinstance(cause, VitkitError):
                raise VitkitError(cause.code, str(cause)) from error
            raise VitkitError(
                "verbs.worker-failed", f"a worker of the Ray cluster failed: {first_line(cause)}"
            ) from error
    written = sum(pyarrow.parquet.read_metadata(file).num_rows for file in parquet_files(folder))
    if written != len(paths):
        raise VitkitError(
            "verbs.rows-missing", f"Ray has written {written} rows for {len(paths)} images: repeat the command"
        )
    return computation


def computed_on_cluster(computation: Mapping[str, Any]) -> str:
    """Describe how rows were computed on a cluster."""
    from vitkit.classifier import computed_in_words

    return f"{computed_in_words(computation)}, on a Ray cluster"


@dataclass(frozen=True)
class _Job:
    """What Ray sends to a worker: the function that opens the model, and its settings."""

    open_model: OpenModel
    folder: str  # the working directory, to which relative paths refer
    cores: int  # the number of cores that a worker uses
    schema: Any  # the columns of the rows

    def start(self, computation: Mapping[str, Any] | None) -> OpenedModel:
        """Prepare a process of the cluster, and open the model in it; see `write_by_ray`."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise VitkitError(
                "verbs.worker-failed",
                f"a worker cannot open the folder {self.folder} ({error.strerror}): "
                "every machine needs it under this path",
            ) from error
        limit_cores(self.cores)
        return self.open_model(computation)


def _choose_computation(job: _Job) -> dict[str, Any]:
    computation, _ = job.start(None)
    return dict(computation)


class _Worker:
    """A Ray actor, which opens the model once and computes the rows of one block after another."""

    def __init__(self, job: _Job, computation: Mapping[str, Any]) -> None:
        self._schema = job.schema
        _, self._compute = job.start(computation)

    def __call__(self, block: pyarrow.Table) -> Iterator[pyarrow.Table]:
        rows = self._compute(path.decode(*ENCODING) for path in block.column("path").to_pylist())
        while group := list(islice(rows, _ROWS_PER_TABLE)):
            yield parquet_table(self._schema, group)


@contextmanager
def _ray() -> Iterator[Any]:
    """Yield the library Ray, connected to the cluster of RAY_ADDRESS, to one on this machine, or to a new one."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise VitkitError("verbs.package-missing", "--cluster ray requires Ray: pip install 'vitkit[ray]'") from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    if ray.is_initialized():
        yield ray
        return
    handler = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to Ray's makers unless the user wants it
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's handler exits with another code, and prints a stack trace
    try:
        yield ray
    finally:
        ray.shutdown()


def _divide_resources(
    nodes: Sequence[Mapping[str, Any]], workers: int | None, *, uses_gpus: bool
) -> tuple[int, dict[str, float], int]:
    """Return the number of workers, what each requests from Ray, and the number of cores that each uses.

    Without GPUs, a worker computes on its share of all cores, but requests only half of it from Ray, and at most one
    core, so that cores are left for the tasks that write files. Ray distributes the workers evenly over the machines.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    cores = int(sum(node.get("CPU", 0) for node in alive))
    gpus = int(sum(node.get("GPU", 0) for node in alive)) if uses_gpus else 0
    count = workers or gpus or len(alive)
    cores_per_worker = max(1, cores // count)
    if gpus:  # Ray accepts multiples of 1/10,000
        return count, {"num_gpus": min(1.0, 10_000 * gpus // count / 10_000)}, cores_per_worker
    return count, {"num_cpus": min(1.0, 5_000 * cores // count / 10_000)}, cores_per_worker
