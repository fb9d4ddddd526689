"""Batches do not depend on who makes them, when, or how many there are of them."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from photos import folder, save, smooth
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augment,
    EpochSampler,
    EvaluationImages,
    ImageData,
    ImageTable,
    Preprocess,
    TrainingImages,
    read_source,
    split,
)
from vitkit.training import KeyedImages

PREPROCESS = Preprocess(size=(12, 16), mean=IMAGENET_MEAN, std=IMAGENET_STD)
AUGMENT = Augment(crop_scale=(0.5, 1.0), hflip=True, rotate=5, color_jitter=0.2)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ImageTable:
    root = folder(tmp_path_factory.mktemp("photos"), {"a": 8, "b": 7})
    save(smooth(300, 200), root / "a" / "large.jpg")
    return split(read_source(root), (0.6, 0.2, 0.2), 0)


def epoch_of(data: ImageData, epoch: int) -> list[tuple[Tensor, Tensor]]:
    return [tuple(batch) for batch in data.train_batches(epoch)]


def same(one: list[tuple[Tensor, ...]], other: list[tuple[Tensor, ...]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)
    )


def test_a_sample_is_decided_by_seed_epoch_and_index(table: ImageTable) -> None:
    images = TrainingImages(table, PREPROCESS, AUGMENT, 7)
    first = images[3, 5][0]
    for key in [(0, 0), (3, 4), (9, 9)]:
        torch.rand(3)
        images[key]
    assert torch.equal(images[3, 5][0], first)
    assert not torch.equal(images[4, 5][0], first)
    assert not torch.equal(TrainingImages(table, PREPROCESS, AUGMENT, 8)[3, 5][0], first)


def test_a_sample_has_the_models_shape_its_own_label_and_without_augmentation_predictions_pixels(
    table: ImageTable,
) -> None:
    images, plain = (TrainingImages(table, PREPROCESS, augment, 0) for augment in (AUGMENT, Augment()))
    evaluation = EvaluationImages(table, PREPROCESS)
    classifier = Classifier(build(num_classes=2), table.classes, PREPROCESS)
    assert any(path.endswith(".jpg") for path in table.paths), "scaled decoding takes part"
    assert len(images) == len(evaluation) == len(table)
    for index in range(len(table)):
        image, label = images[0, index]
        assert (image.shape, image.dtype, label) == ((3, 12, 16), torch.float32, table.labels[index])
        assert evaluation[index][1] == table.labels[index]
        assert torch.equal(plain[4, index][0], evaluation[index][0])
        assert torch.equal(evaluation[index][0], classifier.read(table.file(index)))


def test_the_sampler_yields_every_index_once_and_shuffles_anew_by_epoch_and_by_seed() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = EpochSampler(50, seed)
        sampler.set_epoch(epoch)
        drawn = list(sampler)
        assert {epoch for epoch, _ in drawn} == {epoch} and list(sampler) == drawn and len(sampler) == 50
        return [index for _, index in drawn]

    orders = [order(seed, epoch) for seed in range(4) for epoch in range(4)]
    assert all(sorted(own) == list(range(50)) != own for own in orders)
    assert len(set(map(tuple, orders))) == 16
    state = torch.get_rng_state()
    assert order(0, 0) == orders[0]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("balanced", [False, True])
def test_batches_are_the_same_to_the_bit_with_and_without_workers(table: ImageTable, balanced: bool) -> None:
    def batches(workers: int) -> list[tuple[Tensor, Tensor]]:
        torch.manual_seed(workers)
        options = {"batch_size": 3, "workers": workers, "seed": 5, "balanced": balanced}
        return epoch_of(ImageData(table, PREPROCESS, AUGMENT, **options), 2)

    assert same(batches(0), batches(2))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_is_prepared_ahead_is_the_same(table: ImageTable, workers: int) -> None:
    plain, ahead = (ImageData(table, PREPROCESS, AUGMENT, batch_size=3, workers=w, seed=5) for w in (0, workers))
    expected = [epoch_of(plain, epoch) for epoch in range(4)]
    assert same(epoch_of(ahead, 0), expected[0])
    ahead.prepare_epoch(1)
    assert same(list(ahead.val_batches()), list(plain.val_batches()))
    assert same(epoch_of(ahead, 1), expected[1])
    ahead.prepare_epoch(2)
    assert same(epoch_of(ahead, 3), expected[3]), "the prepared epoch is not the one that is trained"
    ahead.prepare_epoch(2)
    assert same(list(ahead.train_batches(2, 1)), expected[2][1:]), "a run is resumed within the prepared epoch"
    assert same(epoch_of(ahead, 2), expected[2])
    ahead.close()


@pytest.mark.parametrize(("mean", "workers"), [(IMAGENET_MEAN, 0), ((0.3,), 1)])
def test_it_does_not_matter_where_one_normalises(table: ImageTable, mean: tuple[float, ...], workers: int) -> None:
    preprocess = Preprocess(size=(12, 16), mean=mean, std=IMAGENET_STD[: len(mean)])
    options = {"batch_size": 3, "workers": workers, "seed": 5}
    early = ImageData(table, preprocess, AUGMENT, **options)
    late = ImageData(table, preprocess, AUGMENT, normalise_on=torch.device("cpu"), **options)
    assert late.train[0, 0][0].dtype == torch.uint8
    assert same(epoch_of(early, 2), epoch_of(late, 2))
    assert same(list(early.val_batches()), list(late.val_batches()))
    assert same([early.batch_again(1, 1)], [late.batch_again(1, 1)])
    for data in (early, late):  # as pre-training has them
        data.train, data.val = KeyedImages(data.train, 1, 1), KeyedImages(data.val, 1, 2)
    assert same(epoch_of(early, 0), epoch_of(late, 0))


@pytest.mark.parametrize(("batch_size", "balanced"), [(1, False), (4, True), (1000, False)])
def test_an_epoch_has_every_image_and_a_short_last_batch(table: ImageTable, batch_size: int, balanced: bool) -> None:
    data = ImageData(table, PREPROCESS, AUGMENT, batch_size=batch_size, workers=0, seed=0, balanced=balanced)
    assert (data.train.table, data.val.table) == (table.of_split("train"), table.of_split("val"))
    n, keys = len(data.train), list(data._batch_sampler())
    assert [len(labels) for _, labels in data.train_batches(0)] == list(map(len, keys))
    assert data.batches == len(keys) == -(-n // batch_size)
    assert [len(own) for own in keys[:-1]] == [batch_size] * (len(keys) - 1)
    assert 1 <= len(keys[-1]) <= batch_size
    shown = [key[1] for own in keys for key in own]
    assert len(shown) == n
    assert balanced or sorted(shown) == list(range(n))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 2**40), st.integers(0, 50))
def test_a_balanced_epoch_is_as_long_and_has_as_many_of_each_class(counts: list[int], seed: int, epoch: int) -> None:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    sampler = EpochSampler(len(labels), seed, labels)
    sampler.set_epoch(epoch)
    keys = list(sampler)
    assert len(keys) == len(labels) == len(sampler)
    shown = Counter(labels[key[1]] for key in keys)
    assert max(shown.values()) - min(shown.values(), default=0) <= 1
    assert len(set(keys)) == len(keys), "no picture is shown twice alike"
    for label in shown:
        times = Counter(key[1] for key in keys if labels[key[1]] == label)
        assert max(times.values()) - min(times[i] for i in range(len(labels)) if labels[i] == label) <= 1
    assert list(sampler) == keys


def test_over_epochs_a_balanced_sampler_shows_every_image_each_time_augmented_otherwise(table: ImageTable) -> None:
    seen = set[int]()
    for epoch in range(12):
        sampler = EpochSampler(44, 3, [0] * 40 + [1] * 4)
        sampler.set_epoch(epoch)
        seen |= {key[1] for key in sampler}
    assert seen == set(range(44))
    images = TrainingImages(table, PREPROCESS, AUGMENT, 7)
    shown = [images[3, 5], images[3, 5, 1], images[3, 5, 2]]
    assert len({image.numpy().tobytes() for image, _ in shown}) == 3 and len({label for _, label in shown}) == 1


@pytest.mark.parametrize("balanced", [False, True])
def test_the_paths_of_a_batch_are_those_of_its_images(table: ImageTable, balanced: bool) -> None:
    data = ImageData(table, PREPROCESS, Augment(), batch_size=3, workers=0, seed=5, balanced=balanced)
    train = data.train.table
    plain = EvaluationImages(train, PREPROCESS)
    for number, (images, labels) in enumerate(epoch_of(data, 4)):
        paths = [train.paths[row] for row in data.rows_of_batch(4, number)]
        assert len(paths) == len(images)
        for path, image, label in zip(paths, images, labels, strict=True):
            index = train.paths.index(path)
            assert torch.equal(plain[index][0], image)
            assert train.labels[index] == label


@pytest.mark.parametrize("size", [2, 5])
def test_the_shares_of_several_processes_are_the_batches_of_one(table: ImageTable, size: int) -> None:
    def data(process: tuple[int, int]) -> ImageData:
        return ImageData(table, PREPROCESS, AUGMENT, batch_size=4, workers=0, seed=5, process=process)

    shares = [epoch_of(data((rank, size)), 1) for rank in range(size)]
    for number, (images, labels) in enumerate(epoch_of(data((0, 1)), 1)):
        counted = [data((rank, size)).images_in(number, number) for rank in range(size)]
        assert counted == [(len(labels[rank::size]), len(labels)) for rank in range(size)]
        for rank in range(size):
            own = slice(rank, None, size) if counted[rank][0] else slice(1)
            assert torch.equal(shares[rank][number][0], images[own])
            assert torch.equal(shares[rank][number][1], labels[own])
    val_shares = [torch.cat([images for images, _ in data((rank, size)).val_batches()]) for rank in range(size)]
    whole = data((0, 1))
    expected = torch.stack([whole.val[i][0] for i in range(len(whole.val))])
    assert torch.equal(data((0, size)).combine_shares(val_shares), expected)


@pytest.mark.parametrize(
    ("lowest", "width", "height"),
    [(0.05, 900, 640), (0.08, 1301, 333), (0.6, 900, 640), (1, 333, 1301)],
)
def test_no_crop_of_a_large_jpeg_is_enlarged(lowest: float, width: int, height: int, tmp_path: Path) -> None:
    """Decoding at a smaller scale leaves what the smallest crop needs, unless the file itself has less."""
    save(smooth(width, height), tmp_path / "photos" / "a" / "1.jpg", quality=95)
    save(smooth(), tmp_path / "photos" / "b" / "1.jpg")
    table = read_source(tmp_path / "photos")
    preprocess, augment = Preprocess(size=(32, 32)), Augment(crop_scale=(lowest, 1.0))
    images = TrainingImages(table, preprocess, augment, seed=0)
    seen: list[Image.Image] = []

    def look(picture: Image.Image) -> Image.Image:
        seen.append(picture)
        return preprocess.resize(picture)

    images.transform = look  # type: ignore[assignment]
    images[0, 0]
    smallest = min(math.sqrt(lowest * seen[0].width * seen[0].height * 3 / 4), min(seen[0].size))
    assert smallest >= min(32, math.sqrt(lowest * 3 / 4) * min(width, height)) - 1
