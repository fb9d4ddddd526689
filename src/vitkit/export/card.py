"""What a classifier is beside its weights, as the text that travels inside an exported file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vitkit
from vitkit.classifier import Classifier
from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.files import to_json

_VERSION = 1


@dataclass(frozen=True)
class Card:
    """How to ask an exported model, and how to read its answers.

    Attributes:
        classes: names, in the order of the logits.
        preprocess: from a picture to the model's input.
        temperature: logits are divided by it.
        thresholds: of a multi-label model, one a class; else None.
        dtype: in which the weights are stored.
        vitkit_version: by which it was exported.
    """

    classes: tuple[str, ...]
    preprocess: Preprocess
    temperature: float
    thresholds: tuple[float, ...] | None
    dtype: str
    vitkit_version: str = vitkit.__version__

    @classmethod
    def of(cls, classifier: Classifier, dtype: str) -> Card:
        """The card of a classifier whose weights are to be stored in this dtype."""
        return cls(classifier.classes, classifier.preprocess, classifier.temperature, classifier.thresholds, dtype)

    def to_json(self) -> str:
        """The text; its fields have the names that they have in model.json."""
        return to_json(
            {
                "format_version": _VERSION,
                "vitkit_version": self.vitkit_version,
                "task": "single" if self.thresholds is None else "multi",
                "classes": list(self.classes),
                "preprocess": self.preprocess.to_dict(),
                "temperature": self.temperature,
                **({} if self.thresholds is None else {"thresholds": list(self.thresholds)}),
                "dtype": self.dtype,
            }
        )

    @classmethod
    def from_json(cls, text: str | None, path: Path) -> Card:
        """The card in a file.

        Raises:
            VitkitError: there is none, it is damaged, or a later vitkit wrote it.
        """
        if text is None:
            raise VitkitError(f"{path} was not exported by vitkit: it does not say its classes and preprocessing")
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields["format_version"] > _VERSION:
                raise VitkitError(
                    f"{path} was exported by vitkit {fields['vitkit_version']}: upgrade vitkit to read it"
                )
            if (fields["task"] == "multi") != ("thresholds" in fields):
                raise ValueError(f"task {fields['task']} does not go with its thresholds")
            return cls(
                classes=tuple(fields["classes"]),
                preprocess=Preprocess.from_dict(fields["preprocess"]),
                temperature=fields["temperature"],
                thresholds=tuple(fields["thresholds"]) if "thresholds" in fields else None,
                dtype=fields["dtype"],
                vitkit_version=fields["vitkit_version"],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise VitkitError(f"{path} is damaged: what it says of itself cannot be read ({error})") from error
