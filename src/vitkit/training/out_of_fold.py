"""Predictions for the training images by models that were trained without them.

A cross-validation predicts each image with a model that was not trained on the image. These out-of-fold predictions
calibrate the final model, which is trained on all images and has no image left for its calibration. The predictions
determine the temperature, the thresholds, and the promises of `vitkit predict`. docs/decisions/0046-final-models.md
describes the guarantees of these promises.

The run folder stores the predictions as logits. The logits exclude the temperature and the prior correction of the
folds' models, because both differ for the final model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.evaluation.calibration import log_odds, to_probabilities
from vitkit.evaluation.figures import BALANCE
from vitkit.evaluation.headline import BY_FOLDS
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.model.build import Model
from vitkit.model_folder import read_description
from vitkit.system.files import read_bytes, write_bytes
from vitkit.system.run_files import OUT_OF_FOLD
from vitkit.training.finalize import PriorCorrection, correction_of, logit_shift

_HEADER = "out_of_fold"  # the key of the file's metadata


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Predictions of n images, each by a model that was trained on other images.

    Attributes:
        classes: the names of the classes.
        paths: the paths of the images, (n,).
        labels: the classes of the images, (n,), or class indicators, (n, K).
        logits: (n, K), before the temperature and without any correction of the class prior.
        folds: the number of folds, which is the number of models.
        fold: the fold of each image, (n,).
        tested: logits (n, K) of the same images, each by a model that was neither fitted nor selected on the image;
            None without a nested cross-validation.
        temperatures: the temperature of the model that predicted each fold in `tested`, (folds,).
    """

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    folds: int
    fold: npt.NDArray[np.int64]
    tested: npt.NDArray[np.float32] | None = None
    temperatures: npt.NDArray[np.float64] | None = None

    @classmethod
    def of_folds(cls, evaluations: Sequence[Evaluation], folders: Sequence[Path], model: Model) -> OutOfFold:
        """Collect the predictions of the models of a cross-validation.

        Args:
            evaluations: the evaluation of each fold on its test images.
            folders: the model folder of each fold.
            model: a model of the same architecture.
        """
        rows = []
        for evaluation, folder in zip(evaluations, folders, strict=True):
            description = read_description(folder)
            logits = log_odds(evaluation.probabilities, evaluation.labels) * description["temperature"]
            stored = description.get("provenance", {}).get(BALANCE)
            if stored is not None:
                logits -= logit_shift(model, PriorCorrection.from_dict(stored)).double().numpy()
            rows.append(logits.astype(np.float32))
        return cls(
            classes=evaluations[0].classes,
            paths=tuple(path for evaluation in evaluations for path in evaluation.paths),
            labels=np.concatenate([evaluation.labels for evaluation in evaluations]),
            logits=np.concatenate(rows),
            folds=len(evaluations),
            fold=np.repeat(np.arange(len(evaluations)), [len(evaluation.labels) for evaluation in evaluations]),
        )

    def evaluation(self, classifier: Classifier) -> Evaluation:
        """Return the evaluation of the predictions at temperature 1, with the prior correction of a classifier."""
        correction = correction_of(classifier)
        shift = 0.0 if correction is None else logit_shift(classifier.model, correction).double().numpy()
        probabilities = to_probabilities(self.logits.astype(np.float64) + shift, self.labels)
        plain = Evaluation("train", self.classes, self.paths, self.labels, probabilities)
        if classifier.thresholds is None:
            return plain
        return MultiEvaluation(**{**vars(plain), "thresholds": classifier.thresholds})

    def tests(self, *, is_calibrated: bool = True) -> Evaluation | None:
        """Return the evaluation of the unbiased predictions `tested`; None if there are none.

        Args:
            is_calibrated: whether the temperature of each model is applied.
        """
        if self.tested is None or self.temperatures is None:
            return None
        logits = self.tested.astype(np.float64)
        if is_calibrated:
            logits /= self.temperatures[self.fold][:, None]
        return Evaluation(BY_FOLDS, self.classes, self.paths, self.labels, to_probabilities(logits, self.labels))

    def write(self, folder: Path) -> None:
        """Write the predictions into the folder of the run."""
        from safetensors.numpy import save

        arrays: dict[str, npt.NDArray[Any]] = {
            "labels": self.labels.astype(np.int32),
            "logits": self.logits,
            "fold": self.fold.astype(np.int32),
        }
        if self.tested is not None and self.temperatures is not None:
            arrays |= {"tested": self.tested, "temperatures": self.temperatures}
        about = json.dumps({"classes": self.classes, "paths": self.paths, "folds": self.folds})
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_bytes(folder / OUT_OF_FOLD, save(arrays, {_HEADER: about}))

    @classmethod
    def read(cls, folder: Path) -> OutOfFold | None:
        """Read the predictions in the folder of a run; return None if there are none.

        Raises:
            VitkitError: the file is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        file = folder / OUT_OF_FOLD
        if not file.is_file():
            return None
        data = read_bytes(file)
        try:
            arrays = load(data)
            length = int.from_bytes(data[:8], "little")
            about = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_HEADER])
            labels, fold = (arrays[name].astype(np.int64) for name in ("labels", "fold"))
            logits = arrays["logits"]
            paths, classes = tuple(about["paths"]), tuple(about["classes"])
            if logits.shape != (len(paths), len(classes)) or not len(labels) == len(fold) == len(paths):
                raise ValueError(f"{len(paths)} images have logits of the shape {logits.shape}")
            tested, temperatures = arrays.get("tested"), arrays.get("temperatures")
            folds = int(about["folds"])
            if tested is not None and (tested.shape != logits.shape or arrays["temperatures"].shape != (folds,)):
                raise ValueError(f"{len(paths)} images are tested by logits of the shape {tested.shape}")
            return cls(classes, paths, labels, logits, folds, fold, tested, temperatures)
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise VitkitError(f"{file} is damaged: {error}; delete it to compute it again with --resume") from error
