"""Write a table as an Excel workbook (.xlsx, ECMA-376) with one sheet, using only the standard library.

Text is stored as inline strings, which spreadsheets never evaluate. Therefore a file name such as `=1+1.jpg` does not
become a formula. Numbers are stored as numbers, so that they can be sorted and filtered.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from vitkit.errors import VitkitError
from vitkit.system.files import replacing

ROWS = 2**20  # maximum of a sheet, including the header
_MAX_LENGTH = 32_767  # characters of a cell
_UNSAFE = re.compile(r"_x[0-9A-Fa-f]{4}_|[\x00-\x08\x0b-\x1f\ufffe\uffff]")  # lost in XML, or unescaped by Excel
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_KIND}.sheet.main+xml"/>'
    f'<Override PartName="/xl/styles.xml" ContentType="{_KIND}.styles+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_KIND}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
    '<sheet name="predictions" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/>'
    f'<Relationship Id="rId2" Type="{_OFFICE}/styles" Target="styles.xml"/></Relationships>',
    "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>'
    '<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>'
    '<fills count="2"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill>'
    '</fills><borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
    '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
    '<cellXfs count="2"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
    '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/></cellXfs>'
    '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>',
}
_SHEET = "xl/worksheets/sheet1.xml"
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # constant, so that equal rows give equal bytes

Cell = str | float | None


def check_rows(rows: int) -> None:
    """Raise VitkitError if a table with this number of rows and a header does not fit into a sheet."""
    if rows >= ROWS:
        raise VitkitError(
            "text.table-long",
            f"a sheet has at most {ROWS - 1:,} rows below its header, not {rows:,}: write a .csv instead",
        )


def write_workbook(file: Path, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write a workbook with one sheet, completely or not at all; None is an empty cell.

    The header row is bold, remains visible when scrolling, and has filters.
    """
    with replacing(file) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _PARTS.items():
            archive.writestr(zipfile.ZipInfo(name, _TIMESTAMP), _XML + text, zipfile.ZIP_DEFLATED)
        sheet = zipfile.ZipInfo(_SHEET, _TIMESTAMP)
        sheet.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(sheet, "w") as stream:
            widths = "".join(
                f'<col min="{i}" max="{i}" width="{48 if i == 1 else 16}" customWidth="1"/>'
                for i in range(1, len(header) + 1)
            )
            beginning = (
                f'{_XML}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
                '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>'
                f"<cols>{widths}</cols><sheetData>"
            )
            stream.write((beginning + _row(header, 1, 1)).encode())
            number = 1
            for number, row in enumerate(rows, 2):
                check_rows(number - 1)
                stream.write(_row(row, number).encode("utf-8", "backslashreplace"))
            filters = f'<autoFilter ref="A1:{_column(len(header))}{number}"/>'
            stream.write(f"</sheetData>{filters}</worksheet>".encode())


def _row(cells: Sequence[Cell], number: int, style: int = 0) -> str:
    def escape_character(match: re.Match[str]) -> str:
        """Escape a character as Excel does: `_x0007_`. The text `_x0007_` itself becomes `_x005F_x0007_`."""
        return f"_x005F{match[0]}" if len(match[0]) > 1 else f"_x{ord(match[0]):04X}_"

    xml = ""
    for i, cell in enumerate(cells, 1):
        start = f'<c r="{_column(i)}{number}" s="{style}"'
        if isinstance(cell, str):
            text = escape(_UNSAFE.sub(escape_character, cell[:_MAX_LENGTH]))
            xml += f'{start} t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'
        elif cell is not None:
            xml += f"{start}><v>{cell!r}</v></c>"
    return f'<row r="{number}">{xml}</row>'


def _column(number: int) -> str:
    """Convert the number of a column to letters: 1 is A, 27 is AA."""
    letters = ""
    while number:
        number, remainder = divmod(number - 1, 26)
        letters = chr(ord("A") + remainder) + letters
    return letters
