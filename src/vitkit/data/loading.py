"""Batches of images for training and evaluation.

`ImageData` builds the batches of a table, or one process's share of each batch. Every training sample depends only on
(seed, epoch, index), not on the process that prepares it. The order of an epoch depends only on (seed, epoch).
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import sys
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vitkit.data.augment import Augment
from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.image_cache import PictureCache, choose_cache, estimate_bytes, open_cache
from vitkit.data.picture_store import PictureStore
from vitkit.data.preprocess import Preprocess, normalised_values
from vitkit.data.remote import prefetch_shards
from vitkit.data.shards import ShardFolder
from vitkit.data.storage import Place
from vitkit.data.table import ImageTable
from vitkit.errors import ShortageError, VitkitError, first_line

S = TypeVar("S")
T = TypeVar("T")
Batch = tuple[Tensor, Tensor]  # images (B, C, height, width), labels (B,)
WINDOW = 8  # the number of remote shards from which images are drawn at a time


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

    With the number of each image's remote shard (`shards`), the shards are shuffled, and images are drawn from about
    `WINDOW` shards at a time, so that few shards need to be stored.
    """

    def __init__(
        self, length: int, seed: int, labels: Sequence[int] | None = None, shards: Sequence[int] | None = None
    ) -> None:
        self.length, self.seed = length, seed
        self.epoch = 0
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

        # Draw an image of each class in turn, in this order; a class starts again after its last image.
        by_label: dict[int, list[int]] = {}  # in random order, because the first classes may get one image more
        for i, label in zip(order.tolist(), self.labels[order].tolist(), strict=True):
            by_label.setdefault(label, []).append(i)
        classes = list(by_label.values())
        keys: list[tuple[int, ...]] = []
        for k in range(self.length):
            images_of_class = classes[k % len(classes)]
            repetition, position = divmod(k // len(classes), len(images_of_class))
            key = (self.epoch, images_of_class[position])
            keys.append((*key, repetition) if repetition else key)

        images = torch.tensor([key[1] for key in keys])
        return iter([keys[i] for i in self._shuffled(images, generator).tolist()])

    def _shuffled(self, images: Tensor, generator: torch.Generator) -> Tensor:  # a permutation (n,) for images (n,)
        if self.shards is None:
            return torch.randperm(len(images), generator=generator)
        # Shuffle the shards, and move each image by up to `WINDOW` shards.
        ranks = torch.randperm(int(self.shards.max()) + 1, generator=generator)[self.shards[images]]
        return torch.argsort(ranks + WINDOW * torch.rand(len(images), generator=generator, dtype=torch.float64))


class BatchSampler(Sampler[list[tuple[int, ...]]]):
    """Yield one process's share of each batch from batch `first` on, as a list of the tuples of `EpochSampler`.

    `batch_size` is summed over all processes, and `process` is (rank, number of processes). The last batch may be
    smaller. If it has fewer images than there are processes, the processes without an image get the first image of the
    batch, because no process may skip a collective operation. `ImageData.images_in` does not count this extra image.
    """

    def __init__(self, sampler: EpochSampler, batch_size: int, process: tuple[int, int]) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.process = process
        self.first = 0

    def __len__(self) -> int:
        return math.ceil(len(self.sampler) / self.batch_size) - self.first

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        keys = list(self.sampler)
        rank, size = self.process
        for start in range(self.first * self.batch_size, len(keys), self.batch_size):
            batch = keys[start : start + self.batch_size]
            yield batch[rank::size] or batch[:1]


class Images(Dataset[tuple[Tensor, int]]):
    """A dataset of images whose labels and keys are available without decoding."""

    labels: Sequence[int]
    paths: Sequence[str]  # keys
    shards: Sequence[int] | None = None  # the number of each image's remote shard; None if any order is equally fast

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

    cache, cache_bytes = "none", 0  # the kind of cache for decoded pictures (ram, disk or none), and its estimated size

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
        # The epoch and the first batch that `prepare_epoch` has prepared, and the batches.
        self._prepared_epoch: tuple[tuple[int, int], Iterator[Batch]] | None = None

    # --- Training images ----------------------------------------------------------------------------

    @property
    def batches(self) -> int:  # in an epoch
        return math.ceil(len(self.train) / self.batch_size)

    def train_batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield this process's share of each training batch of an epoch, in order, starting with batch `first`."""
        prepared, self._prepared_epoch = self._prepared_epoch, None
        if prepared is not None and prepared[0] == (epoch, first):
            return prepared[1]
        batch_sampler, loader = self._train_loader
        batch_sampler.sampler.set_epoch(epoch)
        batch_sampler.first = first
        return iter(loader)  # starts the worker processes

    def prepare_epoch(self, epoch: int) -> None:
        """Let the worker processes prepare the first batches of an epoch before `train_batches` is called for it."""
        if self.workers and self.train.shards is None:  # images in remote shards must be downloaded first
            self._prepared_epoch = (epoch, 0), BatchedImages.train_batches(self, epoch)

    @cached_property
    def _train_loader(self) -> tuple[BatchSampler, DataLoader[Any]]:
        batch_sampler = self._batch_sampler()
        return batch_sampler, self._make_loader(self.train, batch_sampler=batch_sampler)

    def rows_of_batch(self, epoch: int, batch: int) -> list[int]:
        """Return the rows of this process's share of a training batch in the table of training images."""
        return [key[1] for key in self._keys(epoch, batch)]

    def batch_again(self, epoch: int, batch: int) -> Batch:
        """Prepare this process's share of a training batch once more: images (B, C, height, width) and labels (B,)."""
        images, labels = zip(*(self.train[key] for key in self._keys(epoch, batch)), strict=True)
        return torch.stack(images), torch.tensor(labels)

    def _keys(self, epoch: int, batch: int) -> list[tuple[int, ...]]:
        batch_sampler = self._batch_sampler()
        batch_sampler.sampler.set_epoch(epoch)
        return next(islice(batch_sampler, batch, None))

    def images_in(self, first: int, last: int) -> tuple[int, int]:
        """Return the number of images in the training batches `first` to `last`: those of this process, and all."""
        rank, size = self.process
        start = min(first * self.batch_size, len(self.train))
        end = min((last + 1) * self.batch_size, len(self.train))
        batch_sizes = [min(self.batch_size, end - i) for i in range(start, end, self.batch_size)]
        return sum(len(range(rank, batch_size, size)) for batch_size in batch_sizes), end - start

    def positions_in_batch(self, images: int) -> range:
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
        return len(self.val) > 0

    @property
    def val_images(self) -> int:  # in this process's share
        rank, size = self.process
        return len(range(rank, len(self.val), size))

    def val_batches(self) -> Iterator[Batch]:
        return iter(self._val_loader)

    @cached_property
    def _val_loader(self) -> DataLoader[Any]:
        rank, size = self.process
        indices = list(range(rank, len(self.val), size)) or [0]  # every process must take part in collective operations
        return self._make_loader(self.val, sampler=indices, batch_size=self.batch_size)

    def combine_shares(self, shares: Sequence[Tensor]) -> Tensor:
        """Combine the results of all processes (`shares`) for the validation images, in the order of the images.

        If there are more processes than images, the extra results of processes without an image are dropped.
        """
        _, size = self.process
        combined = torch.empty(len(self.val), *shares[0].shape[1:], dtype=shares[0].dtype)
        for rank, share in enumerate(shares):
            images = len(range(rank, len(self.val), size))
            combined[rank::size] = share[:images]
        return combined

    # --- Both ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the worker processes. The next epoch starts them again."""
        self._prepared_epoch = None
        for name in ("_train_loader", "_val_loader"):
            self.__dict__.pop(name, None)

    def _make_loader(self, images: Dataset[Any], **options: Any) -> DataLoader[Any]:
        is_forked = self.workers > 0 and self.cache == "ram"  # forked processes share the cache
        if self.workers and not is_forked:
            check_main_guard()
        return DataLoader(
            images,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            multiprocessing_context="fork" if is_forked else None,
            pin_memory=torch.cuda.is_available(),  # so that batches can be copied while the GPU computes
            **options,
        )


@contextmanager
def explain_worker_errors(workers: int, advice: str) -> Iterator[None]:
    """Raise the VitkitError of a worker process as such, and one with advice if a worker process was killed.

    PyTorch passes on both with a traceback or a plain message, often as a RuntimeError. `advice` says how to do without
    worker processes, of which there are `workers`.
    """
    try:
        yield
    except (VitkitError, RuntimeError, ConnectionError, EOFError) as error:
        if not workers:
            raise
        _, prefix, message = str(error).rpartition("VitkitError: ")
        if prefix and "in DataLoader worker process" in first_line(error):
            raise VitkitError("data.worker-failed", message.strip()) from error
        is_worker_lost = isinstance(error, (ConnectionError, EOFError))  # it broke while PyTorch was reading
        if "DataLoader worker" in str(error):
            phrases = ("killed by signal", "exited unexpectedly", "shared memory", "Bus error")
            is_worker_lost |= any(phrase in str(error) for phrase in phrases)
        if not is_worker_lost:
            raise
        if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or PyTorch's handler may interrupt the following lines
        reason = f"memory, or /dev/shm, is too small for --workers {workers}"
        message = f"a process that prepares images ended: {reason}; {advice}"
        raise VitkitError("data.worker-lost", message) from error


def check_main_guard() -> None:
    """Raise VitkitError if the script of this program has no `if __name__ == "__main__":`, which workers need.

    Where Python does not fork (on Windows and macOS, and from Python 3.14 on), each worker process imports the script.
    Without this line, it would run the whole script.
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


@contextmanager
def quiet_workers() -> Iterator[None]:
    """Silence PyTorch's advice on the number of worker processes, because the caller has chosen the number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield


class _TableImages(Images):
    """The images of a table, decoded, reduced by the deterministic part of the preprocessing, and then cached.

    With `as_levels`, images are uint8 pixels that are not yet normalised, which take a quarter of the bytes of floats.
    """

    def __init__(
        self, table: ImageTable, preprocess: Preprocess, cache: PictureCache | None = None, *, as_levels: bool = False
    ) -> None:
        self.table = table
        self.labels, self.paths = table.labels, table.paths
        storage = table.storage
        if isinstance(storage, ShardFolder) and storage.is_remote:
            index = storage.index()
            self.shards = [index.shard_of[index.rows[path]] for path in table.paths]
        self.preprocess = preprocess
        self.cache = cache
        self._place = table.place
        self._to_pixels = preprocess.levels if as_levels else preprocess.normalise

    def __len__(self) -> int:
        return len(self.table.paths)

    @abstractmethod
    def _decode(self, file: Place) -> Image.Image:
        """Decode and reduce a picture."""

    def _picture(self, index: int) -> Image.Image:
        file = self._place / self.paths[index]

        def read() -> Image.Image:
            try:
                return self._decode(file)
            except UnreadableImageError as error:  # it was readable when the run started
                raise VitkitError(error.code, f"{file}: {error}") from error
            except ShortageError as error:  # PyTorch passes on only errors that it can construct from a message
                raise VitkitError(error.code, str(error)) from error

        return read() if self.cache is None else self.cache.picture(index, file, read)


class EvaluationImages(_TableImages):
    """The images of a table with their labels, preprocessed without random augmentation."""

    def _decode(self, file: Place) -> Image.Image:
        return self.preprocess.resize(decode(file, self.preprocess.short_side))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self._to_pixels(self._picture(index))), self.table.labels[index]


class TrainingImages(_TableImages):
    """The augmented training images of a table.

    An image is requested by (epoch, index), or by (epoch, index, n) for its n-th repetition in an epoch.
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
        super().__init__(table, preprocess, cache, as_levels=as_levels)
        self.augment = augment
        self.seed = seed
        self.short_side = augment.short_side(preprocess)  # of a reduced picture; None to resize as in evaluation
        self.decoded_side = augment.decoded_side(preprocess)
        self.transform = augment.build_random(preprocess)
        self.transform_pixels = augment.build_pixels()

    def _decode(self, file: Place) -> Image.Image:
        return self.preprocess.reduce(decode(file, self.decoded_side), self.short_side)

    def __getitem__(self, key: tuple[int, ...]) -> tuple[Tensor, int]:
        index = key[1]

        def augment(picture: Image.Image) -> Tensor:  # (C, height, width)
            pixels = torch.from_numpy(self._to_pixels(self.transform(picture)))
            return self.transform_pixels(pixels)

        return apply_seeded(augment, self._picture(index), self.seed, *key), self.table.labels[index]


class ImageData(BatchedImages):
    """Batches of the train and val splits of a table.

    Args:
        table: the images, already split.
        preprocess: the model's preprocessing.
        augment: the random augmentations of training images.
        cache: where decoded pictures are cached for the next epoch (`choose_cache`). Results do not depend on it.
        seed: the seed of the order and of the augmentation.
        pictures: a store that already contains the photographs, including the validation images; or None.
        normalise_on: the GPU that normalises the batches; None to normalise in the worker processes. The results are
            the same, but uint8 pixels take only a quarter of the bytes. It must be None if pixels are changed after
            normalisation (`Augment.random_erasing`).
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
        self.preprocess = preprocess
        self.normalise_on = normalise_on
        values = torch.from_numpy(normalised_values(preprocess.mean, preprocess.std))  # (C, 256)
        self._values_of_levels = values.to(normalise_on) if as_levels else values
        super().__init__(train, val, table, seed=seed, **options)
        if cache == "none":
            return

        # Open the caches of the training images and, unless `pictures` holds them, of the validation images.
        short_side = self.train.short_side
        # The description of how a picture was reduced is a part of its key in the cache.
        val_key = f"evaluation {preprocess.to_dict()}"
        if short_side is None:
            train_key, train_size = val_key, preprocess.size
        else:
            train_key, train_size = f"short side {short_side}, decoded for {self.train.decoded_side}", None
        train_files, val_files = self.train.table.files(), self.val.table.files()
        known_sizes = None if pictures is None else pictures.sizes
        train_bytes = estimate_bytes(train_files, short_side, train_size, known_sizes)
        val_bytes = estimate_bytes(val_files, None, preprocess.size) if pictures is None else 0
        needed = train_bytes + val_bytes
        self.cache = choose_cache(cache, needed, workers=self.workers, processes=self.process[1])
        self.cache_bytes = needed if pictures is None else needed + pictures.bytes
        self.train.cache = open_cache(self.cache, len(train_files), train_bytes, train_key)
        if pictures is None:
            self.val.cache = open_cache(self.cache, len(val_files), val_bytes, val_key)

    def train_batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        batches = map(self._normalised, super().train_batches(epoch, first))
        shards = self.train.shards
        if shards is None:
            return batches
        batch_sampler, _ = self._train_loader
        order = [shards[key[1]] for key in batch_sampler.sampler]
        return self._prefetched(batches, order[first * self.batch_size :])

    def val_batches(self) -> Iterator[Batch]:
        batches = map(self._normalised, super().val_batches())
        shards = self.val.shards
        return batches if shards is None else self._prefetched(batches, shards)

    def batch_again(self, epoch: int, batch: int) -> Batch:
        return self._normalised(super().batch_again(epoch, batch))

    def _normalised(self, batch: Batch) -> Batch:
        """Move a batch of uint8 pixels to the GPU and normalise it there; return other batches unchanged."""
        if self.normalise_on is None:
            return batch
        images, labels = batch
        pixels = images.to(self.normalise_on, non_blocking=True)
        values = self._values_of_levels
        channels = torch.arange(len(values), dtype=torch.int32, device=pixels.device)[:, None, None]
        indices = pixels.int() + 256 * channels  # into the flattened `values`
        return values.flatten().index_select(0, indices.flatten()).view(pixels.shape), labels

    def _prefetched(self, batches: Iterator[Batch], order: Sequence[int]) -> Iterator[Batch]:
        """Download the shards in time. `order` is the shard number of each remaining image of the epoch."""
        storage = self.table.storage
        assert isinstance(storage, ShardFolder)
        return prefetch_shards(batches, storage.files(), order, self.batch_size)
