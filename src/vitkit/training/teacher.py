"""The teacher of a distillation: a classifier of vitkit, or a CNN of torchvision.

A teacher receives the same pictures as the student: the student's normalisation is undone, the pictures are resized to
the teacher's image size, and the teacher's normalisation is applied.
"""

from __future__ import annotations

import difflib
import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess, conversion_remedy
from vitkit.errors import VitkitError, first_line
from vitkit.model_folder import is_model_folder, read_description


@dataclass(frozen=True)
class Teacher:
    """A frozen network with its preprocessing."""

    network: nn.Module  # from images (B, C, h, w) to logits (B, K'), in evaluation mode
    preprocess: Preprocess
    columns: Tensor  # the index of the teacher's logit for each class of the student, (K,)
    notes: tuple[str, ...] = ()  # lines for the user about assumptions that were made about the teacher
    pictures: bytes | None = None  # the record of the images that the teacher was trained on (`data.seen`)

    @property
    def sha256(self) -> str:
        """Return the digest of the teacher's weights, by which a resumed run recognises the teacher."""
        digest = hashlib.sha256()
        for tensor in self.network.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @torch.no_grad()
    def logits(self, images: Tensor, student: Preprocess) -> Tensor:
        """Return float32 logits (B, K), in the student's class order, for student images (B, C, height, width)."""
        self.network.to(images.device)
        inputs = self._as_teacher_input(images, student)
        with torch.autocast(images.device.type, enabled=False):
            return self.network(inputs).float()[:, self.columns.to(images.device)]

    def _as_teacher_input(self, images: Tensor, student: Preprocess) -> Tensor:
        preprocess = self.preprocess
        if (student.mean, student.std, student.size) == (preprocess.mean, preprocess.std, preprocess.size):
            return images.float()
        pixels = images.float() * _per_channel(student.std, images) + _per_channel(student.mean, images)
        if student.size != preprocess.size:
            mode = "bilinear" if preprocess.interpolation == "bilinear" else "bicubic"
            pixels = F.interpolate(pixels, preprocess.size, mode=mode, antialias=True).clamp(0, 1)
        return (pixels - _per_channel(preprocess.mean, images)) / _per_channel(preprocess.std, images)


def _per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).view(1, -1, 1, 1)


def load_teacher(name: str, classes: tuple[str, ...], size: tuple[int, int]) -> Teacher:
    """Load the teacher that a recipe names.

    Args:
        name: a model folder or any checkpoint that `vitkit.load` accepts; a torchvision model, which gets its published
            weights; or NAME:FILE, a torchvision model and a file of weights with the student's order of classes.
        classes: the student's classes.
        size: the student's image size (height, width). It is also the image size of a teacher of the form NAME:FILE.

    Raises:
        VitkitError: the teacher does not exist, cannot be loaded, lacks a class of the student, cannot process the
            student's images, has an unknown preprocessing, or has output that is not finite.
    """
    model, colon, file = name.partition(":")
    if colon and not Path(name).exists() and model in _torchvision_names():
        teacher = _load_file(name, model, Path(file), classes, size)
    else:
        teacher = _load_classifier(name, classes)
    height, width = size
    try:
        logits = teacher.logits(torch.zeros(1, 3, height, width), Preprocess(size=size))
    except (RuntimeError, AssertionError) as error:
        message = f"teacher {name} cannot process the student's {height}x{width} pictures: {first_line(error)}"
        raise VitkitError("training.teacher-failed", message) from error
    if not logits.isfinite().all():  # hard distillation would treat NaN as a class
        damage = "its output is not finite, so its weights are damaged"
        message = f"teacher {name}: {damage}; restore them, or use another teacher"
        raise VitkitError("training.teacher-not-finite", message)
    return teacher


def teacher_of_run(folder: Path, name: str, classes: tuple[str, ...], size: tuple[int, int]) -> Teacher:
    """Load the teacher of a run. If the run has started, check that its weights have not changed."""
    teacher = load_teacher(name, classes, size)
    recorded = read_description(folder)["provenance"].get("teacher") if is_model_folder(folder) else None
    if recorded is not None and recorded["sha256"] != teacher.sha256:
        raise VitkitError(
            "training.teacher-changed",
            f"the weights of teacher {name} have changed since the start of the run: restore them, or start a new run",
        )
    return teacher


def _load_classifier(name: str, classes: tuple[str, ...]) -> Teacher:
    from vitkit.weights import load

    is_published = not Path(name).exists() and name in _torchvision_names()
    try:
        classifier = load(f"torchvision:{name}" if is_published else name)
    except VitkitError as error:
        model = name.partition(":")[0]
        close = [] if is_published else difflib.get_close_matches(model, _torchvision_names(), n=2)
        hint = f" (of torchvision's models, did you mean {' or '.join(close)}?)" if close else ""
        raise VitkitError(error.code, f"teacher: {error}{hint}") from error
    if len(classifier.preprocess.mean) != 3:
        message = f"teacher {name} requires grey pictures: choose a teacher of colour pictures"
        raise VitkitError("training.teacher-grey", message)
    classifier.preprocess.check_known(f"teacher {name}", conversion_remedy(name, "train with --teacher NEW"))
    assert classifier.report is not None
    notes = tuple(f"teacher: {caveat}" for caveat in classifier.report.caveats())
    column_of = {label: i for i, label in enumerate(classifier.classes)}
    for label in classes:
        if label not in column_of:
            message = f"teacher {name} does not know the class {label}: it must know all of the student's"
            raise VitkitError("training.teacher-class-missing", message)
    columns = torch.tensor([column_of[label] for label in classes])
    return Teacher(classifier.model.eval(), classifier.preprocess, columns, notes, classifier.pictures)


def _torchvision_names() -> list[str]:
    from torchvision import models

    names: list[str] = models.list_models(module=models)
    return names


def _load_file(name: str, model: str, file: Path, classes: tuple[str, ...], size: tuple[int, int]) -> Teacher:
    from torchvision import models

    from vitkit.weights.checkpoint import read_checkpoint

    if not file.is_file():
        raise VitkitError("training.teacher-missing", f"teacher {name}: no such file: {file}")
    try:
        state = {key: stored.read() for key, stored in read_checkpoint(file).tensors.items()}
    except VitkitError as error:
        raise VitkitError(error.code, f"teacher {name}: {error}") from error
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of initial weights, which are replaced
        network = models.get_model(model, weights=None, num_classes=len(classes))
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).partition(":\n")[2].split())[:200]
        message = f"teacher {name}: {file} is not a {model} with {len(classes)} classes: {reason}"
        raise VitkitError("training.teacher-other-model", message) from error
    preprocess = Preprocess(size=size, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    notes = (f"teacher {name}: assumed: classes in the order of the student, and normalisation as for ImageNet",)
    return Teacher(network.eval(), preprocess, torch.arange(len(classes)), notes)
