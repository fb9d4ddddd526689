"""Read pictures and options from the body of a request, which may be multipart, JSON or a plain file.

`read_body` reads the pictures; `merge_options` merges the options of the URL and of the body. Nothing is written to
disk.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from vitkit.system import from_json

_UNKNOWN_TYPES = (b"application/octet-stream", b"")  # content types that clients send if they know none
_MAX_NAME = 255  # characters of a name
_MAX_VALUE = 1000  # characters of an option
_MAX_FIELD_BYTES = 2**12  # of an option in a multipart body
_MAX_PARTS = 2**16  # maximum number of parts of a body, since even an empty part takes time


class BadRequestError(Exception):
    """A request that is refused, with the code of the reason and the HTTP status of the refusal."""

    def __init__(self, code: str, status: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.status = status


@dataclass(frozen=True)
class Upload:
    """A received picture."""

    path: str  # the name that the sender gives the picture; it is not a path on this machine
    content: bytes = field(repr=False)  # the content of the file


def read_body(content_type: str, body: bytes) -> tuple[list[Upload], dict[str, str]]:
    """Read the pictures and the options in the body of a request.

    Raises:
        BadRequestError: the content type is not supported, the body is damaged, or it contains no picture.
    """
    media_type, parameters = parse_options_header(content_type)
    if media_type == b"multipart/form-data":
        uploads, options = _read_multipart(parameters.get(b"boundary", b""), body)
    elif media_type == b"application/json":
        uploads, options = _read_json(body)
    elif media_type.startswith(b"image/") or media_type in _UNKNOWN_TYPES:
        uploads = [Upload("image", body)] if body else []
        options = {}
    else:
        reason = "send pictures as multipart/form-data, application/json with base64, or image/*"
        raise BadRequestError("serving.type-unknown", 415, reason)
    if not uploads:
        raise BadRequestError("serving.image-missing", 400, "there is no picture in the request")
    return uploads, options


def merge_options(query: bytes, body_options: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Merge the options in the query string of the URL with those of the body; `known` are the names of all options.

    Raises:
        BadRequestError: an option is unknown, too long, or has two different values.
    """
    options = dict(body_options)
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if options.setdefault(name, value) != value:
            raise BadRequestError("serving.option-repeated", 400, f"{name!r:.80} has two values")
    for name, value in options.items():
        if name not in known:
            reason = f"there is no option {name!r:.80}: expected {', '.join(known)}"
            raise BadRequestError("serving.option-unknown", 400, reason)
        if len(value) > _MAX_VALUE:
            reason = f"{name} is longer than {_MAX_VALUE} characters"
            raise BadRequestError("serving.option-invalid", 400, reason)
    return options


def integer_option(options: Mapping[str, str], name: str, minimum: int, default: int) -> int:
    """Return the value of an option that must be a whole number; `default` if it is not set.

    Raises:
        BadRequestError: the value is not a whole number, less than `minimum`, or has more than nine digits.
    """
    text = options.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < minimum:
        reason = f"{name} must be a whole number from {minimum} on, not {text!r:.80}"
        raise BadRequestError("serving.option-invalid", 400, reason)
    return int(text)


def fraction_option(options: Mapping[str, str], name: str) -> float | None:
    """Return the value of an option that must be a number from 0 to 1; None if it is not set.

    Raises:
        BadRequestError: the value is not such a number.
    """
    text = options.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise BadRequestError("serving.option-invalid", 400, f"{name} must be from 0 to 1, not {text!r:.80}")
    return number


def _check_count(parts: int) -> None:
    if parts > _MAX_PARTS:
        raise BadRequestError("serving.request-large", 413, f"a request may have {_MAX_PARTS:,} parts at most")


# --- Multipart --------------------------------------------------------------------------------------------


def _read_multipart(boundary: bytes, body: bytes) -> tuple[list[Upload], dict[str, str]]:
    """Read the parts of a form. Those with a file name are pictures, the others are options."""
    if not boundary:
        raise BadRequestError("serving.body-damaged", 400, "multipart/form-data has no boundary")
    parts = list[File | Field]()
    is_complete = False

    def add(part: File | Field) -> None:
        parts.append(part)
        _check_count(len(parts))

    def end() -> None:
        nonlocal is_complete
        is_complete = True

    in_memory = {"MAX_MEMORY_FILE_SIZE": math.inf}  # larger files would be written to disk
    try:
        parser = FormParser("multipart/form-data", add, add, end, boundary, config=in_memory)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        reason = f"the multipart body is damaged: {str(error)[:80]!r}"
        raise BadRequestError("serving.body-damaged", 400, reason) from error
    if not is_complete:
        raise BadRequestError("serving.body-damaged", 400, "the multipart body is cut short")

    uploads = list[Upload]()
    options = dict[str, str]()
    for part in parts:
        if isinstance(part, File):
            part.file_object.seek(0)
            uploads.append(Upload(_text(part.file_name or b"image"), part.file_object.read()))
            continue
        name = _text(part.field_name or b"")
        content = part.value or b""
        if len(content) > _MAX_FIELD_BYTES:
            reason = f"the field {name!r:.80} is too long; a picture needs a file name"
            raise BadRequestError("serving.option-invalid", 400, reason)
        value = _text(content)
        if options.setdefault(name, value) != value:
            raise BadRequestError("serving.option-repeated", 400, f"{name!r:.80} has two values")
    return uploads, options


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")[:_MAX_NAME]


# --- JSON -------------------------------------------------------------------------------------------------


def _read_json(body: bytes) -> tuple[list[Upload], dict[str, str]]:
    try:
        fields = from_json(body)
    except ValueError as error:
        reason = f"the body is no JSON: {str(error)[:80]}"
        raise BadRequestError("serving.body-damaged", 400, reason) from error
    if not isinstance(fields, dict):
        raise BadRequestError("serving.body-damaged", 400, "the body must be a JSON object with image or images")
    images = fields.pop("images", [])
    if not isinstance(images, list):
        raise BadRequestError("serving.image-invalid", 400, "images must be a list")
    _check_count(len(images))
    if "image" in fields:
        images = [fields.pop("image"), *images]
    options = {}
    for name, value in fields.items():  # all others are options
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise BadRequestError("serving.option-invalid", 400, f"{name!r:.80} must be text or a number")
        options[name] = str(value)

    # Each picture is base64 text, or an object with this text as `data` and perhaps a name as `path`.
    uploads = list[Upload]()
    for number, image in enumerate(images, 1):
        path: object = f"image {number}"
        data = image
        if isinstance(image, dict) and image.keys() <= {"path", "data"}:
            path = image.get("path", path)
            data = image.get("data")
        if not isinstance(data, str) or not isinstance(path, str):
            reason = f'image {number} must be base64 text, or {{"path": ..., "data": base64 text}}'
            raise BadRequestError("serving.image-invalid", 400, reason)
        if data.startswith("data:"):  # a URL with a type before the text
            data = data.partition(",")[2]
        try:
            content = base64.b64decode(data.encode("ascii").translate(None, b" \r\n\t"), validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise BadRequestError("serving.image-invalid", 400, f"image {number} is not base64") from error
        uploads.append(Upload(path[:_MAX_NAME].encode("utf-8", "replace").decode(), content))
    return uploads, options
