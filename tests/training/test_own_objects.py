"""What a caller brings along: datasets of pictures or tensors, callbacks, loggers; and Lightning's own Trainer."""

import functools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import runs
import vitkit
from photos import save, scene
from refusals import refused
from vitkit.data import Preprocess, read_item
from vitkit.errors import Interrupted
from vitkit.training import TrainingState

SMALL: dict[str, Any] = {name: value for name, value in runs.quick_fields().items() if name != "epochs"}


class Stop:
    """Interrupts the training after its first epoch."""

    def on_epoch_end(self, state: TrainingState) -> None:
        if state.epoch == 0:
            raise Interrupted(2)


class Coloured:
    """Pictures of one colour a class, made when they are asked for."""

    classes = ("blue", "green", "red")

    def __init__(self, images: int = 24, seed: int = 0) -> None:
        self.images, self.seed = images, seed

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[Any, int]:
        label = index % 3
        noise = np.random.default_rng((self.seed, index)).normal(0, 30, (16, 16, 3))
        pixels = np.clip(np.array(list(runs.COLOURS.values())[label]) + noise, 0, 255).astype(np.uint8)
        return Image.fromarray(pixels), label


def own(images: int = 24) -> vitkit.Datasets:
    return vitkit.Datasets(Coloured(images), Coloured(9, seed=1))


def train(out: Path, datasets: vitkit.Datasets | None = None, **fields: Any) -> vitkit.TrainingRun:
    """Parts of `Hooks` are taken out of the fields of the recipe."""
    hooks = vitkit.Hooks(**{name: fields.pop(name) for name in ("callbacks", "loggers") if name in fields})
    return vitkit.train(datasets or own(), vitkit.Recipe(**{"epochs": 2, **SMALL, **fields}), hooks=hooks, out=out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> vitkit.TrainingRun:
    return train(tmp_path_factory.mktemp("own") / "run")


def test_a_run_on_datasets_leaves_a_model_figures_and_a_page(trained: vitkit.TrainingRun, tmp_path: Path) -> None:
    assert trained.classifier.classes == Coloured.classes
    assert trained.recipe.data is None
    assert trained.evaluation["images"] == 9 and len(runs.metrics(trained.folder)) == 2
    assert "epoch by val_acc" in trained.evaluation["chosen_on"], "validation images chose the model"
    assert "chosen on these images" in repr(trained)
    Coloured(3, seed=5)[2][0].save(tmp_path / "red.png")
    assert vitkit.predict(trained.folder, tmp_path / "red.png").to_dict()
    classifier, images = trained.classifier, Coloured(9, seed=1)
    pixels = torch.stack([torch.from_numpy(classifier.preprocess(images[i][0])) for i in range(9)])
    with torch.no_grad():
        said = classifier.probabilities(pixels)
    labels = torch.tensor([images[i][1] for i in range(9)])
    assert trained.accuracy == pytest.approx((said.argmax(1) == labels).float().mean().item())
    assert trained.evaluation["loss"] == pytest.approx(-said[range(9), labels].log().mean().item(), rel=1e-4)


@pytest.mark.usefixtures("no_reports")
def test_pil_images_and_files_of_them_are_trained_alike(tmp_path: Path) -> None:
    """The same pictures in the same order, split the same way: the same weights."""
    for name, images in (("train", Coloured()), ("val", Coloured(9, seed=1))):
        for i in sorted(range(len(images)), key=lambda i: i % 3):
            picture, label = images[i]
            save(picture, tmp_path / "data" / name / Coloured.classes[label] / f"{i:03}.png")

    class Sorted(Coloured):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return super().__getitem__(sorted(range(len(self)), key=lambda i: i % 3)[index])

    train(tmp_path / "own", vitkit.Datasets(Sorted(), Sorted(9, seed=1)), method="scratch", epochs=1)
    vitkit.train(tmp_path / "data", vitkit.Recipe(epochs=1, **SMALL), out=tmp_path / "files")
    runs.assert_same_weights(tmp_path / "own", tmp_path / "files")


def scenes(*numbers: int, side: int = 32, tensors: bool = False) -> list[tuple[Any, int]]:
    """Pictures that differ from one another, whose labels mean nothing; those of one number are the same."""
    pictures: list[Any] = [scene(number, side) for number in numbers]
    if tensors:
        small = [torch.from_numpy(np.array(own.resize((16, 16)))) for own in pictures]
        pictures = [own.permute(2, 0, 1).float() / 127.5 - 1 for own in small]
    return [(own, number % 3) for own, number in zip(pictures, numbers, strict=True)]


@pytest.mark.parametrize(("side", "tensors"), [(64, False), (32, True)])  # resized, and the same
def test_pictures_that_are_in_both_do_not_count(tmp_path: Path, side: int, tensors: bool) -> None:
    val = scenes(*range(6), *range(100, 103), side=side, tensors=tensors)
    data = vitkit.Datasets(scenes(*range(30), tensors=tensors), val, class_names=Coloured.classes)
    run = train(tmp_path / "run", data, epochs=1)
    assert (run.evaluation["seen"]["images"], run.evaluation["images"], run.headline.images) == (6, 3, 3)
    assert run.evaluation["with_seen"]["images"] == 9


def test_what_weights_of_a_run_had_seen_does_not_count(tmp_path: Path) -> None:
    """Whether the run was of files or of datasets."""
    for i, (picture, label) in enumerate(scenes(*range(30))):
        save(picture, tmp_path / "photos" / Coloured.classes[label] / f"{i}.png")
    recipe = vitkit.Recipe(epochs=1, split=(1, 0, 0), **SMALL)
    files = vitkit.train(tmp_path / "photos", recipe, out=tmp_path / "files")
    others, names = scenes(*range(200, 230)), {"class_names": Coloured.classes}
    own = train(tmp_path / "own", vitkit.Datasets(scenes(*range(30)), others, **names), epochs=1)
    begun: dict[str, Any] = {"model": None, "model_fields": None, "epochs": 1, "method": "full"}
    data = vitkit.Datasets(others, scenes(*range(24, 33)), **names)
    run = train(tmp_path / "of-files", data, weights=str(files.folder), **begun)
    assert (run.evaluation["seen"]["images"], run.evaluation["images"]) == (6, 3)
    numbers = vitkit.evaluate(own.folder, tmp_path / "photos").figures
    assert numbers["seen"]["trained_on"] == 30 and numbers["accuracy"] is None


def test_without_validation_there_is_a_model_and_no_figure_and_a_callback_may_end_the_training(tmp_path: Path) -> None:
    class Enough:
        def on_step_end(self, state: TrainingState) -> None:
            state.should_stop = state.step == 4

    run = train(tmp_path / "run", vitkit.Datasets(train=Coloured()), epochs=5, callbacks=[Enough()])
    assert [row["step"] for row in runs.metrics(run.folder)] == [3, 4]
    assert run.classifier.temperature == 1.0
    assert not (run.folder / "evaluation.json").exists()
    assert "no figures" in repr(run) and "no figures" in run._repr_html_()


@pytest.mark.usefixtures("no_reports")
def test_a_run_on_datasets_goes_on_to_the_weights_it_would_have_had(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path / "run", callbacks=[Stop()])
    with refused("training.run-kind"):
        vitkit.train(resume=tmp_path / "run")
    vitkit.train(own(), resume=tmp_path / "run")
    runs.assert_same_weights(tmp_path / "run", trained.folder)
    with refused("training.checkpoint-differs"):
        vitkit.train(own(27), resume=tmp_path / "run")


class Fails(Coloured):
    """What the caller's code does wrong, from its second pass on."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.asked = how, 0

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.asked += 1
        image, label = super().__getitem__(index)
        if self.asked <= len(self) + 1 or index != 5:
            return image, label
        if self.how == "label":
            return image, (label + 1) % 3
        raise StopIteration("gone")


@pytest.mark.parametrize(("how", "code"), [("label", "data.dataset-unstable"), ("stop", "data.dataset-item")])
def test_a_dataset_that_fails_later_is_named(tmp_path: Path, how: str, code: str) -> None:
    with refused(code, "train[5]"):
        train(tmp_path / "run", vitkit.Datasets(Fails(how), Coloured(9, seed=1)))


def test_other_kinds_of_numbers_and_pictures_are_read_as_files_are(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (16, 16), (10, 0, 0, 0))
    clear.paste((10, 0, 0, 255), (0, 0, 16, 4))
    seen = np.asarray(read_item([(clear, 0)], 0, "train")[0])  # type: ignore[arg-type]
    assert seen[4:].min() == 255 and seen[:4].max() == 10, "on white"
    doubles, label = read_item([(torch.zeros(3, 2, 2, dtype=torch.float64), np.array(1))], 0, "train")  # type: ignore[arg-type]
    assert isinstance(doubles, torch.Tensor)
    assert (doubles.dtype, label) == (torch.float32, 1)


def test_shuffled_labels_come_to_chance(tmp_path: Path) -> None:
    """Of two runs; the exact interval of all answers must hold 1/3."""

    class Shuffled(Coloured):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return super().__getitem__(index)[0], int(np.random.default_rng((self.seed, 9, index)).integers(3))

    right = sum(
        round(60 * train(tmp_path / str(s), vitkit.Datasets(Shuffled(24, s), Shuffled(60, s + 50)), epochs=1).accuracy)
        for s in range(2)
    )
    interval = binomtest(right, 120, 1 / 3).proportion_ci(0.999)
    assert interval.low <= 1 / 3 <= interval.high


class Witness:
    """A callback and a logger."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.ended = ""

    def note(self, what: str, state: TrainingState) -> None:
        self.heard.append((what, state.epoch, state.step))

    on_fit_start = functools.partialmethod(note, "start")
    on_step_end = functools.partialmethod(note, "step")
    on_fit_end = functools.partialmethod(note, "end")

    def on_epoch_end(self, state: TrainingState) -> None:
        state.metrics["of_the_caller"] = 7.0
        self.note("epoch", state)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))

    def finalize(self, status: str) -> None:
        self.ended = status


def test_callbacks_are_called_in_order_and_a_logger_that_fails_costs_nothing(tmp_path: Path) -> None:
    witness, broken = Witness(), types.SimpleNamespace(log_metrics=lambda metrics, step: 1 / 0)
    run = train(tmp_path / "run", callbacks=[witness], loggers=[broken, witness])
    steps = [("step", epoch, 3 * epoch + step + 1) for epoch in range(2) for step in range(3)]
    ends = [("epoch", 0, 3), ("epoch", 1, 6)]
    assert witness.heard == [("start", 0, 0), *steps[:3], ends[0], *steps[3:], ends[1], ("end", 1, 6)]
    rows = runs.metrics(run.folder)
    assert [step for step, _ in witness.rows] == [0, 1]
    assert [row["val_loss"] for row in rows] == [own["val_loss"] for _, own in witness.rows]
    assert all(own["of_the_caller"] == 7.0 for _, own in witness.rows)
    assert "of_the_caller" not in rows[0]
    assert witness.ended == "success" and run.report.is_file()


MADE = {"train": Coloured(), "val": Coloured(9, seed=1)}


def third(image: Any = MADE["train"][2][0], label: Any = 2) -> dict[str, Any]:
    """Datasets whose third training picture has another image or label."""
    pairs = [*(Coloured()[i] for i in range(2)), (image, label)]
    return {"train": pairs, "val": MADE["val"], "class_names": Coloured.classes}


@pytest.mark.parametrize(
    ("datasets", "fields", "code", "named"),
    [
        (third(label=3), {}, "data.label-invalid", "train[2]"),
        (third(image=Image.new("I;16", (16, 16))), {}, "data.image-mode", "I;16"),
        (third(image=torch.zeros(3, 16, 16, dtype=torch.uint8)), {}, "data.dataset-item", "torch.uint8"),
        (third(image=torch.full((3, 16, 16), float("nan"))), {}, "data.tensor-not-finite", "train[2]"),
        (third(image=torch.zeros(3, 16, 15)), {}, "data.tensor-shape", "train[2]"),
        ({"train": [(1, 0)]}, {}, "data.class-names-missing", "class_names"),
        ({"train": Coloured(), "class_names": ["a", "a"]}, {}, "data.class-names-invalid", "class_names"),
        ({"train": DataLoader(Coloured())}, {}, "data.dataset-type", "train"),
        (MADE, {"folds": 3}, "training.field-refused", "folds"),
        (MADE, {"callbacks": [object()]}, "training.hook-invalid", "object"),
        (MADE, {"loggers": [object()]}, "training.hook-invalid", "object"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, datasets: Any, fields: Any, code: str, named: str) -> None:
    with refused(code, named):
        train(tmp_path / "run", vitkit.Datasets(**datasets), **fields)
    assert not any((tmp_path / "run").glob("*"))


def test_its_loss_and_schedule_are_vitkits(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from vitkit.training import LightningClassifier, Recipe, label_loss, lr_factor

    model, recipe = vitkit.create_model("vit_micro_patch8_16", num_classes=3), Recipe(lr=0.1, layer_decay=0.5)
    task = LightningClassifier(model, recipe)
    task.log = lambda *_, **__: None  # type: ignore[method-assign]
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 0])
    expected = label_loss(model.forward_heads(images), labels, recipe.label_smoothing)
    torch.testing.assert_close(task.training_step((images, labels), 0), expected)
    task._trainer = types.SimpleNamespace(estimated_stepping_batches=10)  # type: ignore[assignment]
    chosen = task.configure_optimizers()
    optimizer, schedule = chosen["optimizer"], chosen["lr_scheduler"]["scheduler"]
    for step in range(10):
        rates = [group["lr"] for group in optimizer.param_groups]
        parts = [0.1 * lr_factor(step / 10, recipe, 0.1) * group["lr_scale"] for group in optimizer.param_groups]
        assert rates == pytest.approx(parts)
        optimizer.step()
        schedule.step()


MEAN, STD = (0.2, 0.4, 0.6), (0.3, 0.2, 0.1)
PLAIN = [v1.ToTensor(), v1.Normalize(MEAN, STD)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several sizes, in one class of three colours each."""
    root = tmp_path_factory.mktemp("photos")
    sizes = [(40, 30), (30, 40), (33, 33), (90, 41)]
    for label, (name, colour) in enumerate(runs.COLOURS.items()):
        for part, images in (("train", 12), ("val", 6)):
            (root / part / name).mkdir(parents=True)
            for i in range(images):
                rng = np.random.default_rng((label, images, i))
                width, height = sizes[i % len(sizes)]
                pixels = np.clip(np.array(colour) + rng.normal(0, 40, (height, width, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{part}{i}.png")
    return root


def folder(root: Path, part: str, *steps: Any) -> ImageFolder:
    return ImageFolder(str(root / part), transform=v1.Compose(list(steps)))


def test_a_file_is_answered_as_its_tensor_was_whatever_training_transforms_do(photos: Path, tmp_path: Path) -> None:
    seen = folder(photos, "train", v1.RandomResizedCrop(16), v1.ToTensor(), v1.Normalize(0.5, 0.5))
    data = folder(photos, "val", v1.Resize(20), v1.CenterCrop(16), *PLAIN)
    said = {"resize": 20, "crop": 16, "interpolation": "bilinear", "mean": MEAN, "std": STD}
    run = train(tmp_path / "run", vitkit.Datasets(train=seen, val=data, preprocess=said), epochs=1)
    for i in range(0, len(data), 5):
        of_tensor = run.classifier.probabilities(data[i][0][None])[0]
        (of_file,) = vitkit.predict(run.folder, data.samples[i][0], compute=vitkit.Compute(precision="float32"))
        assert of_file.confidence == pytest.approx(of_tensor.max().item(), abs=1e-4)
        assert of_file.label == run.classifier.classes[int(of_tensor.argmax())]


SQUASHED = (v1.Resize((16, 16)), *PLAIN)


def hidden(photos: Path, **more: Any) -> vitkit.Datasets:
    """Tensors of pictures of which nobody knows how they were made."""
    given: dict[str, Any] = {part: list(folder(photos, part, *SQUASHED)) for part in ("train", "val")}
    return vitkit.Datasets(**given, class_names=sorted(runs.COLOURS), **more)


def test_where_it_is_not_known_files_are_refused_with_the_reason(photos: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", hidden(photos), epochs=1)
    file = photos / "val" / "red" / "val0.png"
    for use in (
        lambda: vitkit.predict(run.folder, file),
        lambda: list(run.classifier.predict(Image.open(file))),
        lambda: vitkit.evaluate(run.folder, photos),
        lambda: vitkit.explain(run.folder, file, out=tmp_path / "page.html"),
        lambda: vitkit.export(run.folder, out=tmp_path / "model.pt2"),
    ):
        with refused("data.preprocess-unknown", "trained on tensors"):
            use()
    named = "fit=squash,interpolation=bilinear,mean=0.2,0.4,0.6,std=0.3,0.2,0.1"
    (asked,) = vitkit.predict(run.folder, file, compute=vitkit.Compute(precision="float32"), preprocess=named)
    said = run.classifier.probabilities(folder(photos, "val", *SQUASHED)[list(runs.COLOURS).index("red") * 6][0][None])
    assert asked.confidence == pytest.approx(said.max().item(), abs=1e-4)


def test_it_can_be_said_and_is_kept_over_an_interruption(photos: Path, tmp_path: Path) -> None:
    named = {"resize": (16, 16), "interpolation": "bilinear", "mean": MEAN, "std": STD}
    data = hidden(photos, preprocess=named)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", data, callbacks=[Stop()])
    run = vitkit.train(data, resume=tmp_path / "run")
    said = Preprocess(size=(16, 16), fit="squash", interpolation="bilinear", mean=MEAN, std=STD)
    assert run.classifier.preprocess == said


def test_pictures_are_prepared_as_is_said(photos: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {part: ImageFolder(str(photos / part)) for part in ("train", "val")}
    data = vitkit.Datasets(**given, preprocess="mean=0.2,std=0.3,fit=squash")
    run = train(tmp_path / "run", data, epochs=1)
    assert (run.classifier.preprocess.fit, run.classifier.preprocess.mean) == ("squash", (0.2, 0.2, 0.2))
    asked = vitkit.evaluate(run.folder, photos / "val", compute=vitkit.Compute(precision="float32", backend="eager"))
    assert asked.evaluation.loss == pytest.approx(run.evaluation["loss"], rel=1e-4)
