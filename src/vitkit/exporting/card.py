"""The card of an exported file: everything that a classifier has besides its weights, as text inside the file.

The card contains a checksum of the weights, the graph and the card itself. While the checksum is computed, its own
field contains zeros. The checksum detects damaged and mixed-up files, but not forged ones. As a protection against
forged files, the reader of each format refuses everything that vitkit does not write.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vitkit
from vitkit.data.preprocess import Preprocess
from vitkit.data.seen import decode_record, encode_record
from vitkit.errors import VitkitError
from vitkit.system.files import from_json, to_json

if TYPE_CHECKING:
    from vitkit.classifier import Classifier


CARD = "vitkit"  # the key of the card in a file's metadata
BLANK = "0" * 64  # the checksum before it is computed
_FIELD = re.compile(rb'(?:"|&quot;)checksum(?:"|&quot;): (?:"|&quot;)([0-9a-f]{64})(?:"|&quot;)')


def with_checksum(content: bytes, *other_files: bytes, start: int = 0) -> bytes:
    """Return the content of a file with its checksum filled in.

    The content has one card, whose checksum is zeros; it is searched from the byte `start` on. The new checksum
    includes the contents of other files.
    """
    position, checksum = _checksum_of(content, other_files, start)
    return content[: position.start] + checksum + content[position.stop :]


def check_checksum(path: Path, content: bytes, *other_files: bytes, start: int = 0) -> None:
    """Check that the content of a file matches its checksum; the other arguments are those of `with_checksum`.

    Raises:
        VitkitError: it does not match, or there is not exactly one checksum.
    """
    try:
        position, checksum = _checksum_of(content, other_files, start)
    except ValueError as error:
        raise VitkitError("exporting.file-damaged", f"{path} is damaged: {error}; export it again") from error
    if content[position] != checksum:
        reason = f"{path} is damaged: its content does not match its checksum; export it again"
        raise VitkitError("exporting.file-damaged", reason)


def _checksum_of(content: bytes, other_files: Iterable[bytes], start: int) -> tuple[slice, bytes]:
    """Return the position of the checksum in the content, and the correct checksum.

    The checksum is a SHA-256 of the content, with zeros in place of the checksum, and of the other files. Each part is
    preceded by its length.
    """
    matches = list(_FIELD.finditer(content, start))
    if len(matches) != 1:
        raise ValueError(f"it has {len(matches)} checksums instead of one")
    position = slice(*matches[0].span(1))
    view = memoryview(content)
    parts: list[bytes | memoryview] = [view[: position.start], BLANK.encode(), view[position.stop :], *other_files]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return position, digest.hexdigest().encode()


def instructions(card: Card, *, takes_pixels: bool = False, file: Path | None = None) -> str:
    """Return JSON that says what a program must do before and after it calls an exported model.

    If `takes_pixels`, the model takes pixels and returns probabilities. If the exported file is given, its name and
    SHA-256 are added.
    """
    height, width = card.preprocess.size
    channels = len(card.preprocess.mean)
    activation = "softmax" if card.thresholds is None else "sigmoid"
    steps = ["Decode the photograph, turn it as its EXIF orientation says, and convert it to RGB."]
    steps += _resizing(card.preprocess)
    if channels == 1:
        steps.append("Convert it to grey levels.")
    given: dict[str, Any]
    output: dict[str, Any]
    if takes_pixels:
        given = {"name": "pixels", "shape": [1, height, width, channels], "dtype": "uint8", "layout": "NHWC"}
        steps.append("Call the model with the values in the order NHWC.")
        output = {"name": "probabilities"}
    else:
        steps.append("Divide the pixels by 255, subtract mean, and divide by std, for each channel.")
        given = {"name": "images", "shape": [1, channels, height, width], "dtype": "float32", "layout": "NCHW"}
        steps.append("Call the model with the values in the order NCHW.")
        output = {"name": "logits", "activation": activation, "temperature": card.temperature}
        steps.append(f"Divide the logits by temperature, and apply a {activation}.")
    given["channels"] = "RGB" if channels == 3 else "grey"
    if card.thresholds is not None:
        steps.append("The photograph shows each class whose probability is at least its threshold.")
        output["thresholds"] = list(card.thresholds)
    fields: dict[str, Any] = {}
    if file is not None:
        fields["model"] = {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    fields |= {
        "input": given,
        "preprocess": card.preprocess.to_dict(),
        "steps": steps,
        "output": output,
        "classes": list(card.classes),
    }
    return to_json(fields, indent=2)


def _resizing(preprocess: Preprocess) -> list[str]:
    height, width = preprocess.size
    full_height, full_width = preprocess.before_crop
    how = f"with {preprocess.interpolation} interpolation and antialiasing"
    if preprocess.fit == "squash":
        return [f"Resize it to {height}x{width} pixels (height x width), {how}."]
    if preprocess.fit == "pad":
        colour = [round(255 * value) for value in preprocess.mean]
        return [
            f"Resize it without distortion so that it just fits into {height}x{width} pixels (height x width), {how}.",
            f"Centre it on {height}x{width} pixels of the colour {colour}.",
        ]
    covers = "without distortion so that it just covers" if preprocess.fit == "crop" else "to"
    rounded = "down" if preprocess.floor_crop else "to the nearest even number"
    margin = f" If the pixels to cut off are an odd number, half of them, rounded {rounded}, are at the top or left."
    return [
        f"Resize it {covers} {full_height}x{full_width} pixels (height x width), {how}.",
        f"Cut out the {height}x{width} pixels in the centre.{margin}",
    ]


_VERSION = 1


@dataclass(frozen=True)
class Card:
    """The description of an exported model: how to prepare its input, and how to read its output."""

    classes: tuple[str, ...]  # class names, in the order of the logits
    preprocess: Preprocess  # the conversion of a picture to the model's input
    temperature: float  # the divisor of the logits
    thresholds: tuple[float, ...] | None  # one threshold per class for a multi-label model, otherwise None
    dtype: str  # the dtype in which the weights are stored
    vitkit_version: str = vitkit.__version__  # the version of vitkit that exported the model
    pictures: bytes | None = None  # the serialised record of the training images (`data.seen`); None if there is none
    # The serialised predictions of held-out images (`inference.trust`); None if there are none
    trust: bytes | None = None
    features: int = 0  # the number of features that the file returns after the logits; 0 if it returns only logits

    @classmethod
    def from_classifier(cls, classifier: Classifier, dtype: str) -> Card:
        """Return the card of a classifier whose weights will be stored in this dtype."""
        return cls(
            classes=classifier.classes,
            preprocess=classifier.preprocess,
            temperature=classifier.temperature,
            thresholds=classifier.thresholds,
            dtype=dtype,
            pictures=classifier.pictures,
            trust=classifier.trust,
            features=0 if classifier.unknown is None else classifier.feature_size,
        )

    def to_json(self) -> str:
        """Return the card as JSON, with zeros in place of the checksum. Fields are named as in model.json."""
        fields = {
            "format_version": _VERSION,
            "vitkit_version": self.vitkit_version,
            "task": "single" if self.thresholds is None else "multi",
            "classes": list(self.classes),
            "preprocess": self.preprocess.to_dict(),
            "temperature": self.temperature,
        }
        if self.thresholds is not None:
            fields["thresholds"] = list(self.thresholds)
        fields["dtype"] = self.dtype
        fields["checksum"] = BLANK
        if self.pictures is not None:
            fields["pictures"] = encode_record(self.pictures)
        if self.trust is not None:
            fields["trust"] = base64.b64encode(self.trust).decode()
        if self.features:
            fields["features"] = self.features
        return to_json(fields)

    @classmethod
    def from_json(cls, text: str, path: Path) -> Card:
        """Read the card of a file from its text, JSON. The checksum of the file was verified before.

        Raises:
            VitkitError: a later version of vitkit wrote the card.
        """
        fields: dict[str, Any] = from_json(text)
        if fields["format_version"] > _VERSION:
            reason = f"{path} was exported by vitkit {fields['vitkit_version']}: upgrade vitkit to read it"
            raise VitkitError("exporting.file-newer", reason)
        return cls(
            classes=tuple(fields["classes"]),
            preprocess=Preprocess.from_dict(fields["preprocess"]),
            temperature=fields["temperature"],
            thresholds=tuple(fields["thresholds"]) if "thresholds" in fields else None,
            dtype=fields["dtype"],
            vitkit_version=fields["vitkit_version"],
            pictures=decode_record(fields["pictures"], path) if "pictures" in fields else None,
            trust=base64.b64decode(fields["trust"]) if "trust" in fields else None,
            features=fields.get("features", 0),
        )
