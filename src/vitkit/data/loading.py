"""Batches of images for training and evaluation.

`ImageData` builds the batches of a table, or one process's share of each batch. Every training sample depends only on
(seed, epoch, index), not on the process that prepares it. The order of an epoch depends only on (seed, epoch).
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import signal
import sys
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vitkit.data.augment import Augment
from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.image_cache import PictureCache, bytes_of, choose_cache, open_cache
from vitkit.data.picture_store import PictureStore
from vitkit.data.preprocess import Preprocess, values_of_levels
from vitkit.data.remote import fetched_ahead
from vitkit.data.shards import ShardFolder
from vitkit.data.splits import in_proportion
from vitkit.data.table import ImageTable
from vitkit.errors import ShortageError, VitkitError, first_line

S = TypeVar("S")
T = TypeVar("T")
Batch = tuple[Tensor, Tensor]  # images (B, C, height, width), labels (B,)
WINDOW = 8  # remote shards from which images are drawn at a time


def apply_seeded(transform: Callable[[S], T], sample: S, *seeds: int) -> T:
    """Apply a transform with torch's generator seeded by `seeds`, and restore the generator afterwards."""
    generator = torch.default_generator  # `torch.manual_seed` would format a traceback for CUDA: 1 ms an image
    state = generator.get_state()
    generator.manual_seed(mix_seeds(*seeds))
    try:
        return transform(sample)
    finally:
        generator.set_state(state)


def mix_seeds(*seeds: int) -> int:
    """Combine several integers into one 63-bit seed that depends on all of them (SplitMix64's finaliser)."""
    mixed = 0
    for seed in seeds:
        mixed = (mixed ^ seed) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1


class EpochSampler(Sampler[tuple[int, ...]]):
    """Yield (epoch, index) for every index, in a random order that depends only on (seed, epoch).

    With `labels`, an epoch of the same length contains the same number of images of every class: some images of large
    classes are left out, and images of small classes are repeated. The n-th repetition is (epoch, index, n).

    With `shards`, the shard number of each image, images are drawn from only `WINDOW` shards at a time, because shards
    are read remotely. The shards are shuffled, and enter this window one after another.
    """

    def __init__(
        self, length: int, seed: int, labels: Sequence[int] | None = None, shards: Sequence[int] | None = None
    ) -> None:
        self.length, self.seed, self.epoch = length, seed, 0
        self.labels = None if labels is None else torch.tensor(labels)
        self.shards = None if shards is None else torch.tensor(shards)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        generator = torch.Generator().manual_seed(mix_seeds(self.seed, self.epoch))
        order = self._shuffled(torch.arange(self.length), generator)
        if self.labels is None:
            return iter([(self.epoch, index) for index in order.tolist()])
        by_label: dict[int, list[int]] = {}  # in random order: the first classes may be drawn once more than others
        for i, label in zip(order.tolist(), self.labels[order].tolist(), strict=True):
            by_label.setdefault(label, []).append(i)
        classes = list(by_label)
        drawn = list[tuple[int, ...]]()
        for k in range(self.length):  # an image of each class in turn; a class begins again when all are drawn
            images = by_label[classes[k % len(classes)]]
            again, place = divmod(k // len(classes), len(images))
            drawn.append((self.epoch, images[place], again) if again else (self.epoch, images[place]))
        shuffled = self._shuffled(torch.tensor([key[1] for key in drawn]), generator).tolist()
        return iter([drawn[i] for i in shuffled])

    def _shuffled(self, images: Tensor, generator: torch.Generator) -> Tensor:  # a permutation (n,) for images (n,)
        if self.shards is None:
            return torch.randperm(len(images), generator=generator)
        places = torch.randperm(int(self.shards.max()) + 1, generator=generator)[self.shards[images]]
        return torch.argsort(places + WINDOW * torch.rand(len(images), generator=generator, dtype=torch.float64))


class BatchSampler(Sampler[list[tuple[int, ...]]]):
    """Yield one process's share of each batch, as a list of the tuples that `EpochSampler` yields, from batch `first`.

    The last batch may be smaller. If it has fewer images than there are processes, each process without an image gets
    the first image of the batch, because no process may skip a collective operation. `ImageData.images_in` does not
    count such an extra image. `batch_size` is summed over all processes, and `process` is (rank, number of processes).
    """

    def __init__(self, sampler: EpochSampler, batch_size: int, process: tuple[int, int]) -> None:
        self.sampler, self.batch_size, self.process = sampler, batch_size, process
        self.first = 0

    def __len__(self) -> int:
        return math.ceil(len(self.sampler) / self.batch_size) - self.first

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        keys, (rank, size) = list(self.sampler), self.process
        for start in range(self.first * self.batch_size, len(keys), self.batch_size):
            batch = keys[start : start + self.batch_size]
            yield batch[rank::size] or batch[:1]


class Images(Dataset[tuple[Tensor, int]]):
    """A dataset of images whose labels and keys are available without decoding."""

    labels: Sequence[int]
    paths: Sequence[str]  # keys
    shards: Sequence[int] | None = None  # shard numbers if shards are read remotely; None if any order is as fast

    @abstractmethod
    def __len__(self) -> int: ...


class BatchedImages:
    """Training and validation images in batches, of which each process gets its share.

    Args:
        train: the training images, indexed by (epoch, index), or by (epoch, index, n) for the n-th repetition in an
            epoch.
        val: the validation images, indexed by an integer.
        table: the table that these images belong to.
        batch_size: the batch size, summed over all processes.
        workers: the number of worker processes that prepare images.
        seed: the seed of the order and of the augmentation.
        balanced: whether every class has the same number of images in an epoch.
        process: the rank of this process and the number of processes.
    """

    cache, kept_bytes = "none", 0  # the kind of cache for decoded pictures (ram, disk or none), and its estimated size

    def __init__(
        self,
        train: Images,
        val: Images,
        table: ImageTable,
        *,
        batch_size: int,
        workers: int,
        seed: int,
        balanced: bool = False,
        process: tuple[int, int] = (0, 1),
    ) -> None:
        self.train, self.val, self.table = train, val, table
        self.batch_size, self.workers, self.seed, self.balanced = batch_size, workers, seed, balanced
        self.process = process
        self._prepared_epoch: tuple[tuple[int, int], Iterator[Batch]] | None = None  # (epoch, first) and its batches

    # --- Training images ----------------------------------------------------------------------------

    @property
    def batches(self) -> int:
        """Return the number of training batches in an epoch."""
        return math.ceil(len(self.train) / self.batch_size)

    def train_batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield this process's share of each training batch of an epoch, in order, starting with batch `first`."""
        ahead, self._prepared_epoch = self._prepared_epoch, None
        if ahead is not None and ahead[0] == (epoch, first):
            return ahead[1]
        batches, loader = self._train_loader
        batches.sampler.set_epoch(epoch)
        batches.first = first
        return self._begin(loader)

    def prepare_epoch(self, epoch: int) -> None:
        """Let the worker processes prepare the first batches of an epoch before `train_batches` is called for it."""
        if self.workers and self.train.shards is None:  # remote shards are first fetched as a whole
            self._prepared_epoch = (epoch, 0), BatchedImages.train_batches(self, epoch)

    @cached_property
    def _train_loader(self) -> tuple[BatchSampler, DataLoader[Any]]:
        batches = self._batch_sampler()
        return batches, self._loader(self.train, batch_sampler=batches)

    def rows_of_batch(self, epoch: int, batch: int) -> list[int]:
        """Return the rows of this process's share of a training batch in the table of training images."""
        return [key[1] for key in self._keys(epoch, batch)]

    def batch_again(self, epoch: int, batch: int) -> Batch:
        """Prepare this process's share of a training batch once more: images (B, C, height, width) and labels (B,)."""
        images, labels = zip(*(self.train[key] for key in self._keys(epoch, batch)), strict=True)
        return torch.stack(images), torch.tensor(labels)

    def _keys(self, epoch: int, batch: int) -> list[tuple[int, ...]]:
        batches = self._batch_sampler()
        batches.sampler.set_epoch(epoch)
        return next(islice(batches, batch, None))

    def images_in(self, first: int, last: int) -> tuple[int, int]:
        """Return the number of training images in batches `first` to `last`, of this process and in total."""
        rank, size = self.process
        start, end = (min(number * self.batch_size, len(self.train)) for number in (first, last + 1))
        sizes = [min(self.batch_size, end - begin) for begin in range(start, end, self.batch_size)]
        return sum(len(range(rank, images, size)) for images in sizes), end - start

    def places(self, images: int) -> range:
        """Return the positions, in the whole training batch, of this process's first `images` images."""
        rank, size = self.process
        return range(rank, rank + images * size, size)

    def _batch_sampler(self) -> BatchSampler:
        labels = self.train.labels if self.balanced else None
        sampler = EpochSampler(len(self.train), self.seed, labels, self.train.shards)
        return BatchSampler(sampler, self.batch_size, self.process)

    # --- Validation images --------------------------------------------------------------------------

    @property
    def has_val(self) -> bool:
        """Return whether there are validation images."""
        return len(self.val) > 0

    @property
    def val_images(self) -> int:
        """Return the number of validation images in this process's share."""
        rank, size = self.process
        return len(range(rank, len(self.val), size))

    def val_batches(self) -> Iterator[Batch]:
        """Yield this process's share of the validation images."""
        return self._begin(self._val_loader)

    @cached_property
    def _val_loader(self) -> DataLoader[Any]:
        rank, size = self.process
        indices = list(range(rank, len(self.val), size)) or [0]  # every process must take part in collective operations
        return self._loader(self.val, sampler=indices, batch_size=self.batch_size)

    def put_together(self, shares: Sequence[Tensor]) -> Tensor:
        """Combine the results of all processes (`shares`) for the validation images, in the order of the images.

        The result for the extra image that a process without an image got is dropped.
        """
        whole = torch.empty(len(self.val), *shares[0].shape[1:], dtype=shares[0].dtype)
        for rank, share in enumerate(shares):
            ranks = range(rank, len(self.val), self.process[1])
            whole[rank :: self.process[1]] = share[: len(ranks)]
        return whole

    # --- Both ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the worker processes. The next epoch starts them again."""
        self._prepared_epoch = None
        for name in ("_train_loader", "_val_loader"):
            self.__dict__.pop(name, None)

    def _begin(self, loader: DataLoader[Any]) -> Iterator[Batch]:
        batches = iter(loader)
        if self.workers:
            tell_lost_workers_once()
        return batches

    def _loader(self, images: Dataset[Any], **options: Any) -> DataLoader[Any]:
        is_forked = self.workers > 0 and self.cache == "ram"  # to share the cache
        if self.workers and not is_forked:
            check_guard()
        return DataLoader(
            images,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            multiprocessing_context="fork" if is_forked else None,
            pin_memory=torch.cuda.is_available(),  # so that it can be copied while the GPU computes
            **options,
        )


class TellOnce:
    """A SIGCHLD handler that raises only one error if several workers die together.

    PyTorch's handler raises an error for each dead worker, at any point of the program, so a second error could
    interrupt the handling of the first. If another worker dies later, the program gets an error when it waits for it.
    """

    def __init__(self, tell: Callable[[int, FrameType | None], Any]) -> None:
        self.tell, self.is_reported = tell, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.is_reported:
            self.is_reported = True
            self.tell(number, frame)  # raises an error if a worker was lost
            self.is_reported = False


def tell_lost_workers_once() -> None:
    """Replace PyTorch's handler of dead workers, which it installs when they start, with `TellOnce`."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return  # Windows has no such signal, and only the main thread may set handlers
    tell = signal.getsignal(signal.SIGCHLD)
    if isinstance(tell, TellOnce):
        tell.is_reported = False
    elif callable(tell):
        signal.signal(signal.SIGCHLD, TellOnce(tell))


def is_worker_lost(error: BaseException) -> bool:
    """Return whether an error means that a worker process was killed, or had too little shared memory."""
    if isinstance(error, (ConnectionError, EOFError)):  # the connection broke while PyTorch was reading
        return True
    signs = ("killed by signal", "exited unexpectedly", "shared memory", "Bus error")
    return "DataLoader worker" in str(error) and any(sign in str(error) for sign in signs)


def raised_by_worker(error: BaseException) -> VitkitError | None:
    """Return the error of a process that prepares images without its traceback; None if `error` is another one.

    PyTorch passes such errors on with the traceback in their message, and perhaps as a RuntimeError.
    """
    _, found, message = str(error).rpartition("VitkitError: ")
    if not found or "in DataLoader worker process" not in first_line(error):
        return None
    return VitkitError("data.worker-failed", message.strip())


def check_guard() -> None:
    """Raise VitkitError if worker processes cannot be started, because the script of this program has no guard.

    Where Python does not fork (on Windows and macOS, and from Python 3.14 on), each of them imports the script. Without
    a guard, it would do everything that the script does.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None or multiprocessing.get_start_method() == "fork":
        return
    with suppress(OSError):
        if "__main__" not in Path(script).read_text(encoding="utf-8", errors="replace"):
            raise VitkitError(
                "data.main-unguarded",
                f'{script}: put the call into `if __name__ == "__main__":`, because each process that prepares images '
                "imports the script; or set workers to 0",
            )


def worker_lost(workers: int) -> str:
    """Return the error message about a lost worker process."""
    return f"a process that prepares images ended: memory, or /dev/shm, is too small for --workers {workers}"


@contextmanager
def quiet_workers() -> Iterator[None]:
    """Silence PyTorch's advice on the number of worker processes, because the caller has chosen the number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield


class _TableImages(Images):
    """The images of a table: decoded for a short side, reduced by the deterministic part of the preprocessing, cached.

    With `as_levels`, they are uint8 pixels that are not yet normalised, which take a quarter of the bytes of floats.
    """

    def __init__(
        self,
        table: ImageTable,
        preprocess: Preprocess,
        decoded_side: int,
        reduce: Callable[[Image.Image], Image.Image],
        cache: PictureCache | None,
        *,
        as_levels: bool,
    ) -> None:
        self.table, self.preprocess, self.decoded_side, self.cache = table, preprocess, decoded_side, cache
        self.labels, self.paths, self.as_levels = table.labels, table.paths, as_levels
        storage = table.storage
        if isinstance(storage, ShardFolder) and storage.is_remote:
            self.shards = storage.shards_of(table.paths)
        self._place, self._reduce = table.place, reduce
        self._to_pixels = preprocess.levels if as_levels else preprocess.normalise

    def __len__(self) -> int:
        return len(self.table.paths)

    def _picture(self, index: int) -> Image.Image:
        file = self._place / self.paths[index]

        def make() -> Image.Image:
            try:
                return self._reduce(decode(file, self.decoded_side))
            except UnreadableImageError as error:  # it was readable when the run started
                raise VitkitError(error.code, f"{file}: {error}") from error
            except ShortageError as error:  # PyTorch passes on only errors that it can construct from a message
                raise VitkitError(error.code, str(error)) from error

        return make() if self.cache is None else self.cache.picture(index, file, make)


class EvaluationImages(_TableImages):
    """The images of a table with their labels, preprocessed without random augmentation."""

    def __init__(
        self, table: ImageTable, preprocess: Preprocess, cache: PictureCache | None = None, *, as_levels: bool = False
    ) -> None:
        super().__init__(table, preprocess, preprocess.short_side, preprocess.resize, cache, as_levels=as_levels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self._to_pixels(self._picture(index))), self.table.labels[index]


class TrainingImages(_TableImages):
    """The augmented training images of a table.

    The index is (epoch, index), or (epoch, index, n) for the n-th repetition in an epoch.
    """

    def __init__(
        self,
        table: ImageTable,
        preprocess: Preprocess,
        augment: Augment,
        seed: int,
        cache: PictureCache | None = None,
        *,
        as_levels: bool = False,
    ) -> None:
        reduce = partial(preprocess.reduce, short_side=augment.short_side(preprocess))
        super().__init__(table, preprocess, augment.decoded_side(preprocess), reduce, cache, as_levels=as_levels)
        self.augment, self.seed = augment, seed
        self.transform, self.transform_pixels = augment.build_random(preprocess), augment.build_pixels()

    def __getitem__(self, key: tuple[int, ...]) -> tuple[Tensor, int]:
        def augmented(index: int) -> Tensor:  # (C, height, width)
            return self.transform_pixels(torch.from_numpy(self._to_pixels(self.transform(self._picture(index)))))

        return apply_seeded(augmented, key[1], self.seed, *key), self.table.labels[key[1]]


class ImageData(BatchedImages):
    """Batches of the train and val splits of a table.

    Args:
        table: the images, already split.
        preprocess: the model's preprocessing.
        augment: the random augmentations of training images.
        cache: where decoded pictures are cached for the next epoch (`choose_cache`). Results do not depend on it.
        seed: the seed of the order and of the augmentation.
        pictures: the photographs that are kept in evaluation already, which include the validation images; or None.
        normalise_on: the GPU that normalises the batches; None to normalise in the worker processes. The results are
            the same, but a GPU that normalises receives only a quarter of the bytes. It must be None if pixels are
            changed after normalisation (`Augment.random_erasing`).
        options: other arguments of `BatchedImages`.
    """

    train: TrainingImages
    val: EvaluationImages

    def __init__(
        self,
        table: ImageTable,
        preprocess: Preprocess,
        augment: Augment,
        *,
        seed: int,
        cache: str = "none",
        pictures: PictureStore | None = None,
        normalise_on: torch.device | None = None,
        **options: Any,
    ) -> None:
        as_levels = normalise_on is not None
        train = TrainingImages(table.of_split("train"), preprocess, augment, seed, as_levels=as_levels)
        val = EvaluationImages(table.of_split("val"), preprocess, pictures, as_levels=as_levels)
        self.preprocess, self.normalise_on = preprocess, normalise_on
        super().__init__(train, val, table, seed=seed, **options)
        if cache != "none":
            short_side = augment.short_side(preprocess)
            files, known = (train.table.files(), val.table.files()), None if pictures is None else pictures.sizes
            needs = [
                bytes_of(files[0], short_side, preprocess.size if short_side is None else None, known),
                0 if pictures is not None else bytes_of(files[1], None, preprocess.size),
            ]
            self.cache = choose_cache(cache, sum(needs), workers=self.workers, processes=self.process[1])
            self.kept_bytes = sum(needs) if pictures is None else needs[0] + pictures.bytes
            evaluated = f"evaluation {preprocess.to_dict()}"
            rule = evaluated if short_side is None else f"short side {short_side}, decoded for {train.decoded_side}"
            train.cache = open_cache(self.cache, len(files[0]), needs[0], rule)
            if pictures is None:
                val.cache = open_cache(self.cache, len(files[1]), needs[1], evaluated)

    def train_batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        batches, shards = map(self._normalised, super().train_batches(epoch, first)), self.train.shards
        if shards is None:
            return batches
        order = [shards[key[1]] for key in self._train_loader[0].sampler]
        return self._ahead(batches, order[first * self.batch_size :])

    def val_batches(self) -> Iterator[Batch]:
        batches, shards = map(self._normalised, super().val_batches()), self.val.shards
        return batches if shards is None else self._ahead(batches, shards)

    def batch_again(self, epoch: int, batch: int) -> Batch:
        return self._normalised(super().batch_again(epoch, batch))

    def _normalised(self, batch: Batch) -> Batch:
        """Move a batch of uint8 levels to the GPU and normalise it there; return other batches unchanged."""
        if self.normalise_on is None:
            return batch
        levels, labels = batch[0].to(self.normalise_on, non_blocking=True), batch[1]
        values = self._values_of_levels  # (C, 256)
        places = levels.int() + 256 * torch.arange(len(values), dtype=torch.int32, device=levels.device)[:, None, None]
        return values.flatten().index_select(0, places.flatten()).view(levels.shape), labels

    @cached_property
    def _values_of_levels(self) -> Tensor:
        return torch.from_numpy(values_of_levels(self.preprocess.mean, self.preprocess.std)).to(self.normalise_on)

    def _ahead(self, batches: Iterator[Batch], order: Sequence[int]) -> Iterator[Batch]:
        # `order` holds the shard number of each remaining image of the epoch.
        storage = self.table.storage
        assert isinstance(storage, ShardFolder)
        return fetched_ahead(batches, storage.files(), order, self.batch_size)

    def sample(self, images: int) -> ImageData:
        """Return a copy that has at most `images` of the validation images and is for a single process.

        If there are no validation images, training images are used instead, prepared as in evaluation.
        """
        table = self.val.table if self.has_val else self.train.table
        sampled = copy.copy(self)
        sampled.close()
        sampled.process = (0, 1)
        order = torch.randperm(len(table), generator=torch.Generator().manual_seed(mix_seeds(self.seed))).tolist()
        chosen = sorted(in_proportion(order, table.labels)[:images])  # the labels in about the same proportions
        sampled.val = EvaluationImages(table.take(chosen), self.val.preprocess, as_levels=self.val.as_levels)
        return sampled
