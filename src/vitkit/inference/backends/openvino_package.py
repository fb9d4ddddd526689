"""Import OpenVINO."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from vitkit.errors import VitkitError

_TELEMETRY, _ABSENT = "openvino_telemetry", object()


def import_openvino() -> Any:
    """Import the package without the telemetry that its import would send.

    Raises:
        VitkitError: it is not installed.
    """
    if sys.modules.get("openvino") is None:
        there = sys.modules.get(_TELEMETRY, _ABSENT)
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # as if it were not installed
        try:
            # The first conversion to numpy's types initialises a static: two threads that do so at once wait for one
            # another without end, one holding Python's lock and one the static's.
            import_module("openvino").Type.f32.to_dtype()
        except ImportError as error:
            raise VitkitError("OpenVINO is not installed: pip install 'vitkit[export]'") from error
        finally:
            del sys.modules[_TELEMETRY]
            if there is not _ABSENT:
                sys.modules[_TELEMETRY] = there  # type: ignore[assignment]
    return import_module("openvino")
