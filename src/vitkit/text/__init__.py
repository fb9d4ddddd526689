"""Format text and check values: sentences, table cells, arguments, figures and HTML pages.

Open `cells.py` first, which formats text for terminals, CSV files and sentences. `arguments`
checks the arguments of functions and the fields of dataclasses against type annotations. `pages` writes figures and
HTML pages, and `workbook` writes Excel files.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "cells": "harmless interval_text restored sentence visible",
        "arguments": "as_typed",
    },
)
