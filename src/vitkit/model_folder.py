"""The folder of a saved classifier: `model.safetensors`, `model.json`, `pictures.npz` and `trust.safetensors`.

`pictures.npz` is the record of the training images, and `trust.safetensors` has the predictions of held-out images.
`model.json` contains the hashes of the other files, so that damaged files and files of another model are noticed. A
crash during saving leaves either the old or the new model in the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vitkit
from vitkit.errors import VitkitError
from vitkit.system.files import from_json, is_locked, replacing, write_bytes, write_json
from vitkit.system.run_files import CLASS_INDICES, EVALUATION, RECIPE, REPORT, resume_command, run_of_fold

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 2
WEIGHTS, DESCRIPTION, RECORD, TRUST = "model.safetensors", "model.json", "pictures.npz", "trust.safetensors"
FILES = (WEIGHTS, DESCRIPTION, RECORD, TRUST)
_NEXT_DESCRIPTION = "model.json.next"  # the description of weights that are being saved
_HASH_KEYS = {RECORD: "pictures_sha256", TRUST: "trust_sha256"}  # of the optional files, in the description
_DESCRIPTIONS = {RECORD: "lists the training pictures", TRUST: "has the predictions of held-out images"}


def write(
    folder: Path,
    weights: Mapping[str, Tensor],
    description: Mapping[str, Any],
    pictures: bytes | None,
    trust: bytes | None = None,
) -> None:
    """Write a model folder. The previous model stays intact until the new files are complete.

    Args:
        folder: the folder, which is created if it does not exist.
        weights: tensors by their names in the state dict.
        description: the content of `model.json`, except versions and hashes, which are added.
        pictures: the serialised record of the training images; None if there is none.
        trust: the serialised predictions of held-out images; None if there are none.

    Raises:
        OSError: the disk is full or not writable; the folder then holds its previous content.
    """
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    _recover(folder)
    optional_files = {name: data for name, data in ((RECORD, pictures), (TRUST, trust)) if data is not None}
    try:
        with replacing(folder / WEIGHTS) as temporary:
            tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
            content = save(tensors, {"vitkit_version": vitkit.__version__})
            temporary.write_bytes(content)
            hashes = {"weights_sha256": hashlib.sha256(content).hexdigest()}
            for name, data in optional_files.items():
                write_bytes(_next_path(folder, name), data)
                hashes[_HASH_KEYS[name]] = hashlib.sha256(data).hexdigest()
            versions = {"format_version": FORMAT_VERSION, "vitkit_version": vitkit.__version__}
            write_json(folder / _NEXT_DESCRIPTION, {**versions, **description, **hashes})
    except BaseException:
        _recover(folder)
        raise
    _complete(folder, hashes)


def is_model_folder(path: Path) -> bool:
    """Return whether the folder has a model description of vitkit. The description may be damaged."""
    return any((path / name).is_file() for name in (DESCRIPTION, _NEXT_DESCRIPTION))


def read_description(folder: Path) -> dict[str, Any]:
    """Read the model description that belongs to the weights in the folder.

    If saving was interrupted after the weights were replaced, this is the description in `model.json.next`.

    Raises:
        VitkitError: the folder is not a model folder, or one of its files is damaged.
    """
    weights = folder / WEIGHTS
    names = [name for name in (DESCRIPTION, _NEXT_DESCRIPTION) if (folder / name).is_file()]
    if not names or not weights.is_file():
        missing = DESCRIPTION if not names else WEIGHTS
        raise VitkitError("model.folder-incomplete", f"{folder} is not a model folder: it has no {missing}")
    weights_hash = _sha256(weights)
    for name in names:
        description = _parse(folder / name)
        if description.get("weights_sha256") == weights_hash:
            return description
    raise VitkitError(
        "model.folder-damaged",
        f"{weights} is damaged: its content does not match {DESCRIPTION}: restore it or train again",
    )


def version_of(folder: Path) -> str:
    """Return the version of vitkit that wrote a model folder; "" if the folder's description does not contain it."""
    return str(_parse(folder / DESCRIPTION).get("vitkit_version", ""))


def read_optional(folder: Path, name: str, description: Mapping[str, Any]) -> bytes | None:
    """Read the record of training images (`RECORD`) or the predictions of held-out images (`TRUST`).

    The result is None if the model was saved without them.

    Raises:
        VitkitError: the file is missing, or its content does not match the hash in `model.json`.
    """
    expected = description.get(_HASH_KEYS[name])
    if expected is None:
        return None
    for file in (folder / name, _next_path(folder, name)):
        with suppress(FileNotFoundError):
            data = file.read_bytes() if file.is_file() else b""
            if hashlib.sha256(data).hexdigest() == expected:
                return data
    state = "is damaged" if (folder / name).is_file() else "is gone"
    raise VitkitError(
        "model.folder-damaged",
        f"{folder / name} {state}: it {_DESCRIPTIONS[name]}; restore it, or remove {_HASH_KEYS[name]} "
        f"from {DESCRIPTION} to use the model without it",
    )


def unfinished_notes(folder: Path) -> tuple[str, ...]:
    """Return a note if the folder belongs to a run that is still training or was stopped; otherwise no note.

    A run is finished if it has written its report or its evaluation.
    """
    if not (folder / RECIPE).is_file():
        return ()
    is_finished = any((folder / name).is_file() for name in (EVALUATION, REPORT))
    if is_locked(folder) or (not is_finished and is_locked(run_of_fold(folder) or folder)):
        return (f"{folder} is still being trained: this is the model that it holds now",)
    if is_finished:
        return ()
    kept = "this is the model that it saved last, without a report"
    return (f"the training in {folder} has not finished: {kept}; continue it with {resume_command(folder)}",)


def _next_path(folder: Path, name: str) -> Path:
    """Return the path of a file that is written completely, but does not yet replace the previous one."""
    return folder / f"{name}.next"


def _recover(folder: Path) -> None:
    """Complete an interrupted save if the new weights are in place; otherwise delete the new description."""
    pending, weights = folder / _NEXT_DESCRIPTION, folder / WEIGHTS
    if not pending.is_file():
        _delete_next(folder)
        return
    try:
        description = from_json(pending.read_text(encoding="utf-8"))
        is_complete = weights.is_file() and description["weights_sha256"] == _sha256(weights)
    except (ValueError, KeyError, TypeError):
        is_complete = False
    if is_complete:
        _complete(folder, description)
    else:
        pending.unlink()
        _delete_next(folder)


def _complete(folder: Path, description: Mapping[str, Any]) -> None:
    """Move the files that belong to the new weights into place, the description last."""
    for name, key in _HASH_KEYS.items():
        if key not in description:
            (folder / name).unlink(missing_ok=True)  # it belongs to the previous model
        with suppress(FileNotFoundError):  # the model has no such file, or an interrupted save has moved it
            _next_path(folder, name).replace(folder / name)
    (folder / _NEXT_DESCRIPTION).replace(folder / DESCRIPTION)


def _delete_next(folder: Path) -> None:
    for name in _HASH_KEYS:
        _next_path(folder, name).unlink(missing_ok=True)


def _parse(path: Path) -> dict[str, Any]:
    try:
        description = from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VitkitError("model.folder-damaged", f"{path} is damaged: {error}; restore it or train again") from error
    version = description.get("format_version") if isinstance(description, dict) else None
    if not isinstance(version, int):
        raise VitkitError("model.folder-damaged", f"{path} is not a vitkit model description: it has no format_version")
    if version > FORMAT_VERSION:
        message = f"{path} has format version {version}, this vitkit reads up to {FORMAT_VERSION}: upgrade vitkit"
        raise VitkitError("model.version-newer", message)
    return description


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_class_indices(weights: Path, count: int) -> tuple[tuple[str, ...] | None, str | None]:
    """Read the class names from the `class_indices.json` next to weights, and return them with a note for the user.

    The file may contain {"0": "daisy"} or {"daisy": 0}. If there is no such file, names and note are None. If the file
    does not have a name for each of the `count` classes, the names are None and the note gives the reason.
    """
    path = (weights if weights.is_dir() else weights.parent) / CLASS_INDICES
    if not path.is_file():
        return None, None
    try:
        mapping = from_json(path.read_bytes())
        by_number = {int(key): name for key, name in mapping.items() if isinstance(name, str)}
        if not by_number:
            by_number = {number: name for name, number in mapping.items() if type(number) is int}
        if sorted(by_number) != list(range(len(mapping))):
            raise ValueError("expected each number from 0 on exactly once")
    except (ValueError, TypeError, AttributeError, OSError) as error:
        return None, f"{path} was ignored: it has no name for each class number ({error})"
    if len(by_number) != count:
        return None, f"{path} was ignored: it has {len(by_number)} names for {count} classes"
    names = tuple(by_number[number] for number in range(count))
    return names, f"the class names are those of {CLASS_INDICES} next to the weights"
