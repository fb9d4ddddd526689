"""Values that only some of are allowed; the command line refuses them itself, and these are for who calls a verb."""

from __future__ import annotations

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
