"""An unfinished download: its bytes, and beside them which file they are of."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path

from vitkit.system.files import from_json, write_json
from vitkit.text.fields import settle_types


@dataclass(frozen=True)
class Version:
    """Which file a part is of, as the server described it: validator for If-Range, length, MD5 in base64."""

    validator: str | None = None
    length: int | None = None
    md5: str | None = None

    def __post_init__(self) -> None:
        settle_types(self)

    @classmethod
    def described(cls, headers: Message, length: int | None) -> Version:
        etag = headers.get("ETag")
        if etag is None or etag.startswith("W/"):  # a weak one may name other bytes
            etag = headers.get("Last-Modified")
        hashes = re.findall(r"md5=([A-Za-z0-9+/]{22}==)", " ".join(headers.get_all("x-goog-hash", [])))
        return cls(etag, length, hashes[0] if hashes else None)


@dataclass(frozen=True)
class PartialFile:
    """An unfinished download: its bytes, and beside them the version that they are of."""

    path: Path

    @property
    def note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def version(self) -> Version:
        """Of nothing known when the note is missing or damaged: the part is then begun anew."""
        with suppress(OSError, ValueError, TypeError):
            return Version(**from_json(self.note.read_text(encoding="utf-8")))
        return Version()

    def begin(self, version: Version) -> None:
        self.path.write_bytes(b"")
        write_json(self.note, asdict(version))

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
