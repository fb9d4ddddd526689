"""The archive of a `.pt2` file: which entries it may have, and their checksum."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.exporting import seal
from vitkit.exporting.seal import CARD

CARD_ENTRY = f"extra/{CARD}.json"
MODEL_ENTRY = "models/model.json"
_ROOT = "archive/"
WEIGHTS, CONSTANTS = "data/weights", "data/constants"
_ENTRIES = re.compile(
    rf"{WEIGHTS}/(weight_\d{{1,6}}|model_weights_config\.json)|{CONSTANTS}/(tensor_\d{{1,6}}|model_constants_config\.json)"
    rf"|{MODEL_ENTRY}|data/sample_inputs/model\.pt|{CARD_ENTRY}|archive_format|archive_version|byteorder"
    r"|\.data/(version|serialization_id)"
)


def read_entries(source: Any) -> dict[str, bytes]:
    """Name and content of each entry of an archive, if it has no others than ours, uncompressed, each once.

    Raises:
        VitkitError: it has.
        ValueError: it is no archive, or damaged.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            entries: dict[str, bytes] = {}
            for info in archive.infolist():
                name = info.filename.removeprefix(_ROOT)
                if not info.filename.startswith(_ROOT) or not _ENTRIES.fullmatch(name) or name in entries:
                    raise VitkitError(
                        f"it is refused for its entry {info.filename[:80]!r}, which vitkit does not write"
                    )
                if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                    raise VitkitError(f"it is refused for its entry {info.filename[:80]!r}, which is compressed")
                entries[name] = archive.read(info)
            return entries
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OverflowError, OSError, RuntimeError) as error:
        # A place before the file's beginning is an OSError, a password a RuntimeError.
        raise ValueError(str(error)) from error


def write_entries(entries: Mapping[str, bytes], path: Path) -> None:
    """Write an archive of these entries, the same bytes for the same entries."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(_ROOT + name), content)


def sealed(entries: Mapping[str, bytes]) -> dict[str, bytes]:
    """The entries with the checksum of them all in the card."""
    return {**entries, CARD_ENTRY: seal.sealed(entries[CARD_ENTRY], *_beside_card(entries))}


def _beside_card(entries: Mapping[str, bytes]) -> list[bytes]:
    """Name and content of each other entry, by name."""
    others = sorted(entries.keys() - {CARD_ENTRY})
    return [part for name in others for part in (name.encode(), entries[name])]


def check(path: Path, entries: Mapping[str, bytes]) -> None:
    """Whether the entries are what was written.

    Raises:
        VitkitError: they are not.
    """
    seal.check(path, entries[CARD_ENTRY], *_beside_card(entries))
