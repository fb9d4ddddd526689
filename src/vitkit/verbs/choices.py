"""Values that only some of are allowed; the command line refuses them itself, and these are for who calls a verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from vitkit.errors import VitkitError


def check_choice(flag: str, value: object, literal: Any) -> None:
    """Whether a value is one of a Literal's.

    Raises:
        VitkitError: it is none of them.
    """
    if value not in get_args(literal):
        raise VitkitError(f"{flag} {value!r} is none of {', '.join(get_args(literal))}")


def check_least(flag: str, value: int | None, least: int) -> None:
    """Whether a number is large enough; None is no number.

    Raises:
        VitkitError: it is not.
    """
    if value is not None and value < least:
        raise VitkitError(f"{flag} must be at least {least}, not {value}")


def several(flag: str, names: str | Sequence[str], known: Sequence[str]) -> list[str]:
    """Choices with commas between them, or one by one; each once, and `auto` is none.

    Raises:
        VitkitError: one is not known, or there is none.
    """
    parts = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    known = [name for name in known if name != "auto"]
    for part in parts or [""]:
        if part not in known:
            raise VitkitError(f"{flag} {part!r} is none of {', '.join(known)}")
    return list(dict.fromkeys(parts))


def watchers(callbacks: Any, loggers: Any) -> dict[str, Any]:
    """Who looks on at a training, as its parameters by name.

    Raises:
        VitkitError: the one or the other is no list.
    """
    for name, given in (("callbacks", callbacks), ("loggers", loggers)):
        if not isinstance(given, (list, tuple)):
            raise VitkitError(f"{name} must be a list of objects, not {type(given).__name__}")
    return {"callbacks": tuple(callbacks), "loggers": tuple(loggers)}
