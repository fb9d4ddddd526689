"""Text for people and their tools: sentences, table cells, field values, class names and HTML pages.

Open `cells.py` first: text in terminals, CSV files and sentences. `fields` and `arguments` check values by their type
annotations, `names` compares class names, and `html` writes self-contained pages.
"""

from __future__ import annotations

from vitkit.system.lazy import public

__all__, __getattr__ = public(
    __name__,
    {
        "cells": "harmless interval_text restored sentence visible",
        "fields": "as_typed",
    },
)
