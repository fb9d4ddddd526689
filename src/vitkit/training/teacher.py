"""The teacher of a distillation: a classifier of vitkit, or a CNN of torchvision.

A teacher receives the same pictures as the student: the student's normalisation is undone, the pictures are resized to
the teacher's image size, and the teacher's normalisation is applied.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.preprocess import Preprocess, conversion_remedy
from vitkit.errors import VitkitError
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


def load_teacher(name: str, classes: tuple[str, ...]) -> Teacher:
    """Load the teacher that a recipe names.

    Args:
        name: a model folder, any checkpoint that `vitkit.load` accepts, or a torchvision model, which gets its
            published weights.
        classes: the student's classes.

    Raises:
        VitkitError: the teacher cannot be loaded, lacks a class of the student, or has an unknown preprocessing.
    """
    from torchvision import models

    from vitkit.weights import load

    is_file = Path(name).exists()
    published: list[str] = [] if is_file else models.list_models(module=models)
    model, colon, file = name.partition(":")
    if colon and model in published:
        message = f"first vitkit.load({file!r}, network='torchvision:{model}', classes=[...]).save(FOLDER)"
        raise VitkitError("training.teacher-unsaved", f"teacher {name}: {message}, and then --teacher FOLDER")
    try:
        classifier = load(f"torchvision:{name}" if name in published else name)
    except VitkitError as error:
        raise VitkitError(error.code, f"teacher: {error}") from error
    if len(classifier.preprocess.mean) != 3:
        message = f"teacher {name} requires grey pictures: choose a teacher of colour pictures"
        raise VitkitError("training.teacher-grey", message)
    classifier.preprocess.check_known(f"teacher {name}", conversion_remedy(name, "train with --teacher NEW"))
    column_of = {label: i for i, label in enumerate(classifier.classes)}
    for label in classes:
        if label not in column_of:
            message = f"teacher {name} does not know the class {label}: it must know all of the student's"
            raise VitkitError("training.teacher-class-missing", message)
    columns = torch.tensor([column_of[label] for label in classes])
    assert classifier.report is not None
    notes = tuple(f"teacher: {caveat}" for caveat in classifier.report.caveats())
    return Teacher(classifier.model.eval(), classifier.preprocess, columns, notes, classifier.pictures)


def teacher_of_run(folder: Path, name: str, classes: tuple[str, ...]) -> Teacher:
    """Load the teacher of a run. If the run has started, check that its weights have not changed."""
    teacher = load_teacher(name, classes)
    recorded = read_description(folder)["provenance"].get("teacher") if is_model_folder(folder) else None
    if recorded is not None and recorded["sha256"] != teacher.sha256:
        raise VitkitError(
            "training.teacher-changed",
            f"the weights of teacher {name} have changed since the start of the run: restore them, or start a new run",
        )
    return teacher
