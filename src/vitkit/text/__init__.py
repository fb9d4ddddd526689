"""Format text and check values: sentences, table cells, arguments, figures and HTML pages.

Open `cells.py` first, which formats text for terminals, CSV files and sentences. `arguments`
checks the arguments of functions and the fields of dataclasses against type annotations. `pages` writes figures and
HTML pages, and `workbook` writes Excel files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.text.arguments import Between, Only, as_typed, check_arguments, is_number, coerce_types
    from vitkit.text.cells import JOINT, aligned, harmless, interval_text, plural, restored, sentence, visible
    from vitkit.text.pages import LOOK, command, component, details, figure, panel, panels, table, to_svg, wide
    from vitkit.text.pages import markdown_blocks, write_page
    from vitkit.text.verdict import Verdict
    from vitkit.text.workbook import check_rows, write_workbook
else:
    __getattr__ = lazily(__name__)
