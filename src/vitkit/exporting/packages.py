"""Packages for people without vitkit: a zip archive, and an HTML page that needs no installation.

Both contain an ONNX file, which is checked in the same way as any exported file (`writing.export`). Importing this
module imports neither torch nor a runtime.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.system.files import exclusive, replacing
from vitkit.text.cells import one_of, plural
from vitkit.text.pages import LOOK, details, markdown_blocks, script_data, source_hash

if TYPE_CHECKING:
    import numpy.typing as npt

    from vitkit.classifier import Classifier
    from vitkit.exporting.card import Card
    from vitkit.exporting.pictures import Pictures
    from vitkit.exporting.writing import Int8, Outcome


@dataclass(frozen=True)
class PackageKind:
    """A kind of package: a page or an archive."""

    name: str  # the name by which users request it
    suffix: str  # the suffix of its file
    title: str  # a short description for lists
    needs_runtime: bool = False  # whether such a package contains ONNX Runtime Web (`RUNTIME_URL`)


PACKAGES = {
    "html": PackageKind("html", ".html", "A page for any browser", needs_runtime=True),
    "zip": PackageKind("zip", ".zip", "Everything in one archive"),
}
_MODEL = "model.onnx"
_DECODER = ("picture.py", "file_names.py")  # modules of `vitkit.data` that `static/predict.py` imports
_REQUIREMENTS = "onnxruntime>=1.22\nnumpy>=2\npillow>=11.3\npillow-heif>=1\n"
_STATIC = Path(__file__).parent / "static"


def package_of(path: Path) -> PackageKind | None:
    """Return the kind of package with the suffix of this path; None if there is no such kind."""
    return next((kind for kind in PACKAGES.values() if path.suffix.lower() == kind.suffix), None)


def write_package(
    classifier: Classifier,
    out: Path,
    pictures: Pictures,
    about: str,
    *,
    runtime: Callable[[], Path],
    force: bool = True,
    batch: int | None = None,
    precision: str = "float32",
    int8: Int8 | None = None,
) -> Outcome:
    """Export a classifier as ONNX with the usual check, and write the ONNX file into a package.

    The suffix of `out` determines the kind, one of `PACKAGES`. `about` is the model card, in Markdown. `runtime`
    returns the archive of ONNX Runtime Web, and is called only if the package needs it. For the other arguments, see
    `writing.export`.

    Raises:
        Refused: the predictions differ, or the model has an operation that files may not contain; no file is left.
        VitkitError: the model cannot be exported, the file exists and `force` is False, or the page would be too large.
        OSError: the disk is full or not writable.
    """
    kind = package_of(out)
    assert kind is not None
    archive = runtime() if kind.needs_runtime else None  # first, because the rest takes long
    from vitkit.exporting.card import Card
    from vitkit.exporting.onnx_format import read_card
    from vitkit.exporting.writing import export

    unrecorded = replace(classifier, pictures=None)  # without the record of training images, which others do not need
    with tempfile.TemporaryDirectory() as folder, exclusive(out):
        if out.exists() and not force:
            raise VitkitError("exporting.file-exists", f"{out} exists: choose a new name, or --force to write over it")
        outcome = export(unrecorded, Path(folder) / _MODEL, pictures, batch=batch, precision=precision, int8=int8)
        onnx = (Path(folder) / _MODEL).read_bytes()
        with replacing(out) as temporary:
            if archive is not None:
                card = Card.from_json(read_card(Path(folder) / _MODEL), out)  # INT8 has its own temperature
                _write_html(temporary, out.stem, onnx, card, about, archive)
            else:
                unrecorded.save(Path(folder) / "model")
                _write_zip(temporary, out.stem, onnx, Path(folder) / "model", classifier, about)
        return replace(outcome, size=out.stat().st_size)


def _write_zip(path: Path, name: str, onnx: bytes, model: Path, classifier: Classifier, about: str) -> None:
    """Write the archive, in which all files are in one folder `name`."""
    texts = {
        "HOW-TO.md": Template((_STATIC / "HOW-TO.md").read_text(encoding="utf-8")).substitute(name=name),
        "MODEL_CARD.md": about,
        "labels.txt": "".join(f"{label}\n" for label in classifier.classes),
        "predict.py": (_STATIC / "predict.py").read_text(encoding="utf-8"),
        "requirements.txt": _REQUIREMENTS,
        **{file: (_STATIC.parents[1] / "data" / file).read_text(encoding="utf-8") for file in _DECODER},
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in texts.items():
            archive.writestr(f"{name}/{file}", text.encode("utf-8", "replace"))
        archive.writestr(f"{name}/{_MODEL}", onnx)
        for part in sorted(model.iterdir()):
            archive.write(part, f"{name}/model/{part.name}")


# --- The page -------------------------------------------------------------------------------------------------

# One HTML file classifies photographs in a browser, without a network and without an installation. It contains the
# model as an ONNX file, ONNX Runtime Web, and the scripts in `static/`. `pixels.js` computes the pixels as `Preprocess`
# does, and `unknown.js` computes the score for unknown images. A Content-Security-Policy forbids every request, so that
# photographs stay on the machine.
#
# ONNX Runtime Web is published on npm and is not part of vitkit. The caller downloads its archive and passes the path.

RUNTIME_VERSION = "1.30.0"
RUNTIME_URL = f"https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-{RUNTIME_VERSION}.tgz"
RUNTIME_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
RUNTIME_MEGABYTES = 33  # of the download
LARGEST = 600 * 10**6  # maximum bytes of a page: browsers need about four times as much memory to open it
_RUNTIME_SCRIPT = "package/dist/ort.wasm.bundle.min.mjs"
_WASM = "package/dist/ort-wasm-simd-threaded.wasm"
_NAMED = 8  # maximum number of classes that the first sentence of a page names
_BLOCK = 6 * 2**20  # bytes in one script element; a multiple of 3, so that base64 of each can be decoded alone
_FAMILIAR = (
    '<label for="unlike">Mark unfamiliar photographs, and with them</label>'
    '<input type="number" id="unlike" min="0" max="100" step="0.5" value="5"> % of known photographs\n'
)
_PART = '<script type="text/plain" data-part="{}">'


def _write_html(path: Path, name: str, onnx: bytes, card: Card, about: str, runtime: Path) -> None:
    """Write the page of a model; `runtime` is the archive from `RUNTIME_URL`."""
    script, wasm = _runtime(runtime)
    worker = "".join((_STATIC / file).read_text(encoding="utf-8") for file in ("pixels.js", "unknown.js", "worker.js"))
    in_scope = f"(() => {{\n{worker}}})();\n"  # because the runtime defines short global names
    packed = {
        "worker": gzip.compress(script + in_scope.encode(), 9, mtime=0),
        "wasm": gzip.compress(wasm, 9, mtime=0),
        "model": gzip.compress(onnx, 1, mtime=0),  # higher levels hardly make weights smaller
    }
    size = sum(4 * len(content) // 3 for content in packed.values())
    if size > LARGEST:
        raise VitkitError(
            "exporting.page-large",
            f"the page would have {size / 1e6:.0f} MB, more than browsers open ({LARGEST / 1e6:.0f} MB): "
            "use --precision float16, or export a .zip",
        )
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(_opening(name, card, about, size))
        for part, content in packed.items():
            for start in range(0, len(content), _BLOCK):
                block = base64.b64encode(content[start : start + _BLOCK]).decode()
                file.write(f"{_PART.format(part)}{block}</script>\n")
        file.write(f"<script>{_script()}</script>\n</html>\n")


def _runtime(archive: Path) -> tuple[bytes, bytes]:
    """Return the script and the WebAssembly module of the runtime.

    A page that is opened from a file can start a classic worker but not a module worker. Therefore the exports of the
    runtime's module are converted to an object `ort` in a classic script.
    """
    reason = f"{archive} is not ONNX Runtime Web {RUNTIME_VERSION}: delete it and try again"
    try:
        with tarfile.open(archive) as files:
            script = _member(files, _RUNTIME_SCRIPT).decode()
            wasm = _member(files, _WASM)
    except (KeyError, OSError, tarfile.TarError) as error:
        raise VitkitError("exporting.runtime-damaged", reason) from error
    body, found, exports = script.rpartition("export{")
    if not found:
        raise VitkitError("exporting.runtime-damaged", reason)
    properties = []
    for export in exports.partition("}")[0].split(","):
        names = re.fullmatch(r"([\w$]+) as ([\w$]+)", export)
        if names is None:
            raise VitkitError("exporting.runtime-damaged", reason)
        inner, outer = names.groups()
        properties.append(f"{outer}:{inner}")
    body = body.replace("import.meta.url", "self.location.href")
    return f"{body}const ort={{{','.join(properties)}}};\n".encode(), wasm


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file.read()


def _script() -> str:
    return (_STATIC / "page.js").read_text(encoding="utf-8")


def _opening(name: str, card: Card, about: str, size: int) -> str:
    """Return the beginning of the page, which precedes the embedded files."""
    from vitkit.inference.trust import parsed

    styles = LOOK.read_text(encoding="utf-8") + (_STATIC / "page.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{source_hash(_script())}' blob: 'wasm-unsafe-eval'; worker-src blob:; "
        f"style-src '{source_hash(styles)}'; img-src blob: data:; media-src blob:; base-uri 'none'; form-action 'none'"
    )

    data: dict[str, Any] = json.loads(replace(card, trust=None).to_json())
    data["preprocess"]["columns_first"] = columns_first()  # the order in which Pillow resamples
    unknown = None if card.trust is None else parsed(card.trust).unknown
    if unknown is not None and card.features:
        data["unknown"] = {  # as `unknown.js` reads it
            "points": _bytes(unknown.neighbours.points),
            "nearest": unknown.neighbours.nearest,
            "known": _bytes(unknown.known),
        }

    named = list(card.classes[:_NAMED])
    more = len(card.classes) - len(named)
    if more:
        named.append(plural(more, "more class", "more classes"))
    several = " A photograph may show several of them, or none." if card.thresholds is not None else ""
    about = about.partition("## How to use it")[0]  # whoever opens the page uses it already
    described = details("About the model", *map(_block, markdown_blocks(about))) if about else ""
    height, width = card.preprocess.size
    return Template((_STATIC / "page.html").read_text(encoding="utf-8")).substitute(
        name=escape(name),
        policy=policy,
        styles=styles,
        many=f"{len(card.classes):,}",
        choice=escape(one_of(tuple(named))),
        several=several,
        megabytes=f"{size / 1e6:.0f}",
        classes=escape(", ".join(card.classes)),
        described=described,
        familiar=_FAMILIAR if "unknown" in data else "",
        width=str(width),
        height=str(height),
        version=escape(card.vitkit_version),
        licence=escape((_STATIC / "onnxruntime.LICENSE").read_text(encoding="utf-8")),
        card=script_data(data),
    )


def _block(block: tuple[str, list[list[str]]]) -> str:
    tag, items = block
    lines = []
    for item in items:
        line = ""
        for i, part in enumerate(item):  # text and code in turn
            line += f"<code>{escape(part)}</code>" if i % 2 else escape(part)
        lines.append(f"<li>{line}</li>" if tag == "ul" else line)
    separator = "" if tag == "ul" else "\n"
    return f"<{tag}>{separator.join(lines)}</{tag}>"


def _bytes(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return an array as base64, in row-major and little-endian order, with the number of bytes per value."""
    import numpy as np

    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"bytes": base64.b64encode(little.tobytes()).decode(), "size": array.dtype.itemsize}


def columns_first() -> bool:
    """Return whether the installed Pillow may resample the columns of a picture before its rows.

    Versions 11 and 12 never do so. The two orders give results that differ by at most one of 255 levels.
    """
    from PIL import Image

    picture = Image.frombytes("L", (30, 97), hashlib.shake_128(b"").digest(30 * 97))
    rows_first = picture.resize((18, 97)).resize((18, 58))
    return picture.resize((18, 58)).tobytes() != rows_first.tobytes()
