"""Make the documentation site: `python benchmarks/documentation.py`, or `make site`.

The pages are the Markdown files of the repository, which a forge shows as they are, its notebooks with what they print
and draw, and a reference that is generated from the code. They are prepared in a folder of their own: pages of more
than ten minutes of reading are divided, headings get the anchors that GitHub gives them, and links follow the pages.
Zensical then builds site/ from them, and stops at any warning. docs/site.toml has its settings and the order of the
pages.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import fnmatch
import importlib
import inspect
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "docs" / "site.toml"
WORDS = 2300  # of a page, where it can be divided: ten minutes of reading
_TEXTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")  # besides docs/; the site has docs/index.md for README.md
_FENCE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) +(.+?)(?: \{#([^}]*)\})?[ \t]*$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_ADDRESS = re.compile(r"[a-z]+:")
# The theme loads this helper from elsewhere, so that search works in files: a worker that is a hidden frame. Ours also
# lets the keyboard scroll wide tables.
_SHIM = '<script src="https://unpkg.com/iframe-worker/shim" type="text/javascript"></script>'
_LOCAL_SHIM = """<script>
addEventListener("load", () => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap")) each.tabIndex = 0;
});
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    this.waiting = [];
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.inside = frame.contentWindow;
    window.addEventListener("message", (event) => {
      if (event.source !== this.inside) return;
      const copy = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(copy);
      if (this.onmessage) this.onmessage(copy);
    });
    const page = this.inside.document;
    page.open();
    page.write(`<script>postMessage = (data) => parent.postMessage(data, "*"); importScripts = (...all) =>
      all.reduce((done, each) => done.then(() => new Promise((next) => { const script =
      document.createElement("script"); script.src = each; script.onload = next; document.body.appendChild(script); })),
      Promise.resolve());<\\/script><body><script src="${new URL(url, location)}"><\\/script>`);
    page.close();
    frame.onload = () => { this.ready = true; this.waiting.splice(0).forEach((data) => this.postMessage(data)); };
  }
  postMessage(data) {
    if (!this.ready) this.waiting.push(data);
    else this.inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
  }
  terminate() {}
};
</script>"""

# --- Markdown: headings, links, pages --------------------------------------------------------------------


def _in_prose(change: Callable[[str], str], text: str) -> str:
    """Change what is not a fenced block of code."""
    done, end = [], 0
    for match in _FENCE.finditer(text):
        done += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*done, change(text[end:])])


def change_links(change: Callable[[str, str, str], str], text: str) -> str:
    """Replace links and images by what a function of `!`, text and target returns; what stands in code is none."""

    def in_part(part: str) -> str:
        codes = [match.span() for match in _CODE.finditer(part)]

        def write(link: re.Match[str]) -> str:
            if any(start <= link.start() and link.end() <= end for start, end in codes):
                return link[0]
            return change(link[1], change_links(change, link[2]) if "](" in link[2] else link[2], link[3])

        return _LINK.sub(write, part)

    return _in_prose(in_part, text)


def slug_of(title: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def with_anchors(text: str) -> tuple[str, list[str]]:
    """Return a page whose headings have explicit anchors, and these anchors in their order."""
    anchors: list[str] = []

    def write(heading: re.Match[str]) -> str:
        slug, repeated = slug_of(heading[2]), 0
        anchor = slug
        while anchor in anchors:
            repeated += 1
            anchor = f"{slug}-{repeated}"
        anchors.append(anchor)
        return f"{heading[1]} {heading[2]} {{#{anchor}}}"

    return _in_prose(lambda part: _HEADING.sub(write, part), text), anchors


def target_of(page: str, target: str) -> tuple[str, str]:
    """Return the file that a link leads to, relative to the repository, and the anchor in it."""
    path, _, anchor = target.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page, anchor


def sources() -> list[str]:
    """Return the Markdown files for readers, relative to the repository."""
    return [*_TEXTS, *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]


def dead_links(pages: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the links between files of the repository that lead nowhere, each as `PAGE: TARGET`."""
    anchors: dict[str, list[str]] = {}
    dead = []

    def look(_: str, text: str, target: str) -> str:
        file, anchor = target_of(page, target)
        if not _ADDRESS.match(target):
            if anchor and file.endswith(".md") and (root / file).is_file() and file not in anchors:
                anchors[file] = with_anchors((root / file).read_text(encoding="utf-8"))[1]
            if not (root / file).exists() or (anchor and anchor not in anchors.get(file, [anchor])):
                dead.append(f"{page}: {target}")
        return text

    for page in pages:
        change_links(look, (root / page).read_text(encoding="utf-8"))
    return dead


def words(text: str) -> int:
    """Count the words of a page, without the marks of tables."""
    return len(re.findall(r"\w[^\s|]*", text))


def divide(text: str) -> list[str]:
    """Divide a page of more than WORDS words at its headings, and a section that is too long at items of its lists."""
    parts = [""]
    for piece in _pieces(text, ("## ", "### ", "- ")):
        if parts[-1].strip() and words(parts[-1]) + words(piece) > WORDS:
            parts.append("")
        parts[-1] += piece
    return parts


def _pieces(text: str, marks: tuple[str, ...]) -> Iterator[str]:
    if words(text) <= WORDS or not marks:
        yield text
        return
    piece, is_code = "", False
    for line in text.splitlines(keepends=True):
        if piece and line.startswith(marks[0]) and not is_code:
            yield from _pieces(piece, marks[1:])
            piece = ""
        is_code ^= line.startswith(("```", "~~~"))
        piece += line
    yield from _pieces(piece, marks[1:])


@dataclass(frozen=True)
class Page:
    """A page of the site.

    Attributes:
        path: its path on the site.
        text: its Markdown.
        source: the file of the repository that it is from; for the reference, empty.
        end: the link to the part that follows.
    """

    path: str
    text: str
    source: str = ""
    end: str = ""

    @property
    def anchors(self) -> list[str]:
        """The anchors of its headings."""
        return re.findall(r"^#.* \{#([^}]*)\}$", self.text, re.MULTILINE)


def parts_of(path: str, text: str, source: str = "") -> list[Page]:
    """Return the pages that a text becomes: one, or several that link to the next."""
    parts = divide(with_anchors(text)[0])
    heads = [list(_HEADING.finditer(part)) for part in parts]
    name = heads[0][0][2].replace("`", "")
    titles = [name] + [
        f"{name}: {found[0][2]}" if found else f"{name}, part {i}" for i, found in enumerate(heads[1:], 2)
    ]
    paths = [path if i == 0 else f"{path.removesuffix('.md')}-{i + 1}.md" for i in range(len(parts))]
    ends = [f"\n\nNext: [{title}]({posixpath.basename(path)})\n" for path, title in zip(paths, titles, strict=True)]
    return [
        Page(paths[i], part if i == 0 else f"# {titles[i]}\n\n{part}", source, ([*ends, ""])[i + 1])
        for i, part in enumerate(parts)
    ]


def pages_of_repository() -> list[Page]:
    """Return the pages that are files of the repository, with links for the site."""
    pages = []
    for source in sources()[1:]:
        path = source.removeprefix("docs/").replace("README.md", "index.md").lower()
        pages += parts_of(path, (ROOT / source).read_text(encoding="utf-8"), source)
    return pages


def pages_of_notebooks() -> tuple[list[Page], dict[str, bytes]]:
    """Return a page for each notebook, with its outputs, and the pictures on them by their path on the site."""
    pages, files = [], {}
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_text(json.loads(notebook.read_text(encoding="utf-8")), notebook.stem)
        path = f"notebooks/{notebook.stem}.md"
        pages += parts_of(path, text, notebook.relative_to(ROOT).as_posix())
        files |= pictures | {f"notebooks/{notebook.name}": notebook.read_bytes()}
    return pages, files


def notebook_text(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by their path on the site."""
    parts, pictures = [], {}  # type: list[str], dict[str, bytes]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        printed = "".join("".join(each["text"]) for each in cell.get("outputs", []) if each.get("name") == "stdout")
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        for data in [each["data"] for each in cell.get("outputs", []) if "data" in each]:
            if "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[f"notebooks/{file}"] = base64.b64decode("".join(data["image/png"]))
                parts.append(f'<img src="{file}" alt="What the cell above draws">')
            elif html := "".join(data.get("text/html", "")).strip():
                parts.append(f"<div>{html}</div>")
            elif "text/html" not in data:  # an empty one is a progress bar that has disappeared
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    title, *rest = parts
    head = f'This page is <a href="{name}.ipynb">a notebook</a> with what it prints and draws.'
    heading, _, text = title.partition("\n")
    return "\n\n".join([heading, head, text.strip(), *rest]) + "\n", pictures


def with_links(pages: list[Page], repository: str) -> tuple[list[Page], set[str]]:
    """Return the pages with links for the site, and the other files of the documentation that they link to.

    A link to a file that is not on the site leads to the repository, or becomes its text if there is no address.
    """
    places = {(page.source, ""): page.path for page in reversed(pages)} | {("README.md", ""): "index.md"}
    places |= {(page.source, anchor): page.path for page in pages for anchor in page.anchors}
    files: set[str] = set()

    def write(page: Page, mark: str, text: str, target: str) -> str:
        if _ADDRESS.match(target):
            return f"{mark}[{text}]({target})"
        file, anchor = target_of(page.source, target)
        place = places.get((file, anchor))
        if place is None and file.startswith("docs/") and (ROOT / file).is_file():
            files.add(file)
            place = file.removeprefix("docs/")
        if place is None:
            return f"[{text}]({repository}/blob/main/{file})" if repository else text
        path = posixpath.relpath(place, posixpath.dirname(page.path) or ".")
        return f"{mark}[{text}]({path}{'#' if anchor else ''}{anchor})"

    return [dataclasses.replace(page, text=change_links(partial(write, page), page.text)) for page in pages], files


# --- The reference, from the code ------------------------------------------------------------------------


def reference() -> list[Page]:
    """Return the generated pages; docs/reference/README.md, which leads to them, is written by hand."""
    return [*command_pages(), recipe_page(), files_page(), *python_pages()]


def markdown_of(doc: str) -> str:
    """Return a docstring as Markdown: the entries of its sections become lists."""
    head, *sections = re.split(r"^(Args|Attributes|Returns|Raises|Yields):\n", doc, flags=re.MULTILINE)
    done = [_escaped(head)]
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        body = re.match(r"(?:    .*\n?|\s*\n)*", text)
        entries = textwrap.dedent(body[0] if body else "")
        listed = re.sub(r"^([*\w, ]+): ", r"- `\1`: ", entries, flags=re.MULTILINE)
        done.append(f"**{'Arguments' if name == 'Args' else name}**\n\n{_escaped(listed)}")
        done.append(_escaped(text[body.end() if body else 0 :]))
    return "\n\n".join(part.strip("\n") for part in done if part.strip()) + "\n"


def _escaped(text: str) -> str:
    """Escape tags outside code, and lines of lists that would be headings."""
    parts = re.split(r"(`[^`]*`|^ {4}.*$)", text, flags=re.MULTILINE)
    return "".join(part if i % 2 else part.replace("<", "&lt;").replace("*", r"\*") for i, part in enumerate(parts))


def signature_of(name: str, thing: Any) -> str:
    """Return a signature with a line for each parameter, in a block of code."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return f"```python\n{name}\n```\n"
    texts = [_plain(parameter) for parameter in signature.parameters.values()]
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    first = next((i for i, kind in enumerate(kinds) if kind is inspect.Parameter.KEYWORD_ONLY), None)
    if first is not None and inspect.Parameter.VAR_POSITIONAL not in kinds:
        texts.insert(first, "*")
    answer = "" if signature.return_annotation is signature.empty else f" -> {_type(signature.return_annotation)}"
    short = f"{name}({', '.join(texts)}){answer}"
    long = f"{name}(\n{''.join(f'    {text},{chr(10)}' for text in texts)}){answer}"
    return f"```python\n{short if len(short) < 90 else long}\n```\n"


def _plain(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{kind}"
    default = "..." if " at 0x" in repr(parameter.default) else repr(parameter.default)
    return f"{parameter.name}{kind}{' = ' if kind else '='}{default}"


def _type(annotation: Any) -> str:
    """Return a type as it is written in the code, or for a recipe as readers need it."""
    if isinstance(annotation, str):
        return annotation
    if get_origin(annotation) is not None and hasattr(annotation, "__args__"):
        if str(annotation).startswith("typing.Literal"):
            return ", ".join(map(str, get_args(annotation)))
        return " or ".join(map(_type, get_args(annotation))) if "|" in str(annotation) else str(annotation)
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def entry_of(name: str, thing: Any, level: int = 2) -> str:
    """Return the documentation of a function or a class with its public members."""
    text = signature_of(name, thing) + "\n" + markdown_of(inspect.getdoc(thing) or "")
    if not inspect.isclass(thing):
        return text
    if dataclasses.is_dataclass(thing) and "Attributes:" not in (inspect.getdoc(thing) or ""):
        text += f"\n**Fields**\n\n```python\n{_field_lines(thing)}\n```\n"
    for member, value in _members(thing):
        doc = inspect.getdoc(value) or ""
        head = f"\n{'#' * level} `{member}`\n\n"
        text += head + ("" if isinstance(value, property) else signature_of(member, value)) + "\n" + markdown_of(doc)
    return text


def _field_lines(thing: type) -> str:
    """Return the lines of a class that declare its fields, with their comments."""
    fields = [field.name for field in dataclasses.fields(thing)]
    lines = [line[4:] for line in inspect.getsource(thing).splitlines() if re.match(r"    \S", line)]
    first = next((i for i, line in enumerate(lines) if re.match(rf"{fields[0]}\b", line)), len(lines)) if fields else 0
    end = next((i for i, line in enumerate(lines) if i > first and line.startswith(("def ", "@", '"""'))), len(lines))
    return "\n".join(lines[first:end]).rstrip()


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties with a docstring that a class or its bases in vitkit define."""
    for owner in thing.__mro__:
        if owner.__module__.startswith("vitkit"):
            for name, value in vars(owner).items():
                plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
                is_first = next(base for base in thing.__mro__ if name in vars(base)) is owner
                is_public = name[0] != "_" and (inspect.isfunction(plain) or isinstance(plain, property))
                if is_public and is_first and inspect.getdoc(plain):
                    yield name, plain


def _first_sentence(thing: Any) -> str:
    line = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return _escaped(re.split(r"(?<=\.)\s", line)[0])


def python_pages() -> list[Page]:
    """Return a page for each name of `vitkit`, one for each package that the guides import from, and their list."""
    import vitkit

    pages, rows = [], {"Functions": [], "Classes": []}  # type: dict[str, list[str]]
    for name in vitkit.__all__:
        thing = getattr(vitkit, name)
        kind = "Classes" if inspect.isclass(thing) else "Functions"  # in folders, as Export and export are one file
        pages += parts_of(f"reference/{kind.lower()}/{name}.md", f"# `vitkit.{name}`\n\n{entry_of(name, thing)}")
        rows[kind].append(f"| [`{name}`]({kind.lower()}/{name}.md) | {_first_sentence(thing)} |")
    lists = [f"## {kind}\n\n| name | |\n|---|---|\n" + "\n".join(lines) for kind, lines in rows.items()]
    packages = []
    for room in _public_packages():
        module = importlib.import_module(f"vitkit.{room}")
        pages += parts_of(f"reference/packages/{room}.md", _package_text(module, set(vitkit.__all__)))
        packages.append(f"| [`vitkit.{room}`](packages/{room}.md) | {_first_sentence(module)} |")
    lists.append("## Packages\n\n| name | |\n|---|---|\n" + "\n".join(packages))
    text = "# The Python API\n\n" + "\n\n".join(lists)
    return [*pages, Page("reference/python.md", text + "\n")]


def _public_packages() -> list[str]:
    """Return the packages of vitkit that the guides import from."""
    texts = [(ROOT / source).read_text(encoding="utf-8") for source in sources()]
    return sorted({name for text in texts for name in re.findall(r"\bfrom vitkit\.(\w+)[\w.]* import", text)})


def _package_text(module: ModuleType, known: set[str]) -> str:
    text = f"# `{module.__name__}`\n\n{markdown_of(inspect.getdoc(module) or '')}"
    constants, room = [], module.__name__.removeprefix("vitkit.")
    for name in module.__all__:
        thing = getattr(module, name)
        if name in known:
            kind = "classes" if inspect.isclass(thing) else "functions"
            text += f"\n## `{name}`\n\n[`vitkit.{name}`](../{kind}/{name}.md)\n"
        elif inspect.isclass(thing) or inspect.isfunction(thing):
            text += f"\n## `{room}.{name}`\n\n{entry_of(name, thing, level=3)}"
        else:
            constants.append(f"`{name}`")
    return text + (f"\n## Constants\n\n{', '.join(constants)}\n" if constants else "")


def command_pages() -> list[Page]:
    """Return a page for each command, with its help and all its flags, and their list."""
    from vitkit.cli.commands import VERBS

    env = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    program = (
        "import sys, io, contextlib, json\nfrom vitkit.cli.app import app\nhelps = {}\n"
        "for verb in sys.argv[1:]:\n    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        app([verb, '--help-all'], prog_name='vitkit', standalone_mode=False)\n"
        "    helps[verb] = out.getvalue()\n"
        "print(json.dumps(helps))"
    )
    done = subprocess.run([sys.executable, "-c", program, *VERBS], env=env, check=True, capture_output=True, text=True)
    pages, rows = [], []
    for verb, text in json.loads(done.stdout).items():
        page = f"# `vitkit {verb}`\n\n{VERBS[verb].sentence}\n\n```text\n{text.strip()}\n```\n"
        pages.append(Page(f"reference/commands/{verb}.md", page))
        rows.append(f"| [`vitkit {verb}`](commands/{verb}.md) | {VERBS[verb].sentence} |")
    head = "# Commands\n\nEach page is the command's own help, `vitkit VERB --help-all`.\n\n| command | |\n|---|---|\n"
    return [*pages, Page("reference/commands.md", head + "\n".join(rows) + "\n")]


def recipe_page() -> Page:
    """Return the page of all fields of recipes."""
    from vitkit.text.arguments import help_of
    from vitkit.training import Pretraining, Recipe

    text = (
        "# Fields of recipes\n\nA recipe is a TOML file with these fields. Each is also a flag of "
        "[`vitkit train`](commands/train.md), with `-` instead of `_`, or is set by `--set FIELD=VALUE`; in Python, "
        "they are the fields of `vitkit.Recipe`. Fields of the model are those of "
        "[`ViTConfig`](classes/ViTConfig.md), in the table `[model]`.\n"
    )
    for title, owner in (("", Recipe), ("Only for pre-training", Pretraining)):
        known = {field.name for field in dataclasses.fields(Recipe)} if title else set()
        text += f"\n## {title}\n\n{_TABLE}" if title else ""
        hints, meanings = get_type_hints(owner, include_extras=True), help_of(owner)
        for field in dataclasses.fields(owner):
            if field.name in known:
                continue
            declaring = next(base for base in owner.__mro__ if field.name in inspect.get_annotations(base))
            group = (declaring.__doc__ or "").partition(".")[0]
            if not title and f"## {group}\n" not in text:
                text += f"\n## {group}\n\n{_TABLE}"
            text += _field_row(field, hints[field.name], meanings[field.name])
    return Page("reference/recipe.md", text)


_TABLE = "| field | meaning | default | type |\n|---|---|---|---|\n"


def _field_row(field: dataclasses.Field[Any], hint: Any, meaning: str) -> str:
    kind, *marks = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    if field.default is None:
        default = "chosen"
    elif field.default is dataclasses.MISSING:
        default = ""
    else:
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    if any(isinstance(mark, str) for mark in marks):
        default = next(mark for mark in marks if isinstance(mark, str))
    meaning, kind = _escaped(meaning).replace("|", "&#124;"), _type(kind).replace("|", "or").replace("typing.", "")
    return f"| `{field.name}` | {meaning} | {default} | {kind} |\n"


def files_page() -> Page:
    """Return the page of the files of a run: their JSON keys and CSV columns, as a short training writes them now."""
    import vitkit

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        model, silent = "vit_micro_patch8_16", lambda *_: None
        run = vitkit.train(
            "digits",
            vitkit.Recipe(model=model, weights="none", epochs=1, max_images=200),
            out=out,
            progress=silent,
        )
        vitkit.evaluate(run.folder, progress=silent)
        files = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if path.is_file()}
        shown = {name: path for name, path in files.items() if path.suffix in (".json", ".csv")}
        text = (
            "# Files of a run\n\nThe JSON keys and CSV columns that a training writes, as a short training on the "
            "digits wrote them when this page was made. Names of classes and of images are those of the data. "
            "[Evaluation](../guide/evaluation.md) explains the figures.\n\n| file | content |\n|---|---|\n"
        )
        text += "".join(f"| `{name}` | {path.stat().st_size:,} bytes |\n" for name, path in files.items())
        for name, path in shown.items():
            text += f"\n## `{name}`\n\n" + (_csv_text(path) if path.suffix == ".csv" else _json_text(path))
    return Page("reference/files.md", text)


def _csv_text(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        return "Columns: " + ", ".join(f"`{column}`" for column in next(csv.reader(file), [])) + "\n"


def _json_text(path: Path) -> str:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        return f"{_kind(content)}\n"
    lines = ["| key | type |", "|---|---|"]
    for key, value in content.items():
        lines.append(f"| `{key}` | {_kind(value)} |")
        if isinstance(value, dict) and len(value) <= 40:
            lines += [f"| `{key}.{below}` | {_kind(each)} |" for below, each in value.items()]
    return "\n".join(lines) + "\n"


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "object"}
    return "null here" if value is None else f"list of {len(value)}" if isinstance(value, list) else names[type(value)]


# --- The site -------------------------------------------------------------------------------------------


def navigation(pages: list[Page], groups: list[dict[str, Any]]) -> list[Any]:
    """Return the order of the pages for Zensical.

    Raises:
        SystemExit: a group names a page that there is not, or a page is in no group.
    """
    left = [page.path for page in pages]
    order = [_entries(group, left) for group in groups]
    if left:
        sys.exit(f"docs/site.toml: no group has {', '.join(left)}")
    return order


def _entries(group: dict[str, Any], left: list[str]) -> dict[str, Any]:
    """Return a group of the navigation, and remove its pages from those that are left.

    A page brings its further parts along. A pattern stands for all pages that no group before has listed.
    """
    entries: list[Any] = []
    for each in group["pages"]:
        if isinstance(each, dict):
            entries.append(_entries(each, left))
            continue
        first = [path for path in left if fnmatch.fnmatch(path, each)]
        if not first:
            sys.exit(f"docs/site.toml: there is no {each}")
        for path in [path for path in left if path in first or re.sub(r"-\d+\.md$", ".md", path) in first]:
            entries.append(path)
            left.remove(path)
    return {group["title"]: entries}


def prepare(stage: Path) -> Path:
    """Write all pages and the configuration of Zensical, and return the configuration's file."""
    import tomli_w

    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    project, groups = settings["project"], settings["group"]
    notebooks, drawn = pages_of_notebooks()
    pages, files = with_links([*pages_of_repository(), *notebooks], project.get("repo_url", ""))
    pages += reference()
    front = next(page for page in pages if page.path == "reference/index.md")
    names = {
        "Commands": "commands",
        "Fields of recipes": "recipe",
        "Files of a run": "files",
        "The Python API": "python",
    }
    text = re.sub("|".join(names), lambda match: f"[{match[0]}]({names[match[0]]}.md)", front.text)
    pages[pages.index(front)] = dataclasses.replace(front, text=text)
    for page in pages:
        path = stage / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.text + page.end, encoding="utf-8")
    for file in {*files, "docs/site.css"}:
        path = stage / file.removeprefix("docs/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, path)
    for name, content in drawn.items():
        (stage / name).write_bytes(content)
    project |= {"docs_dir": stage.name, "site_dir": "site"}
    config = stage.parent / "zensical.toml"
    config.write_text(tomli_w.dumps({"project": project | {"nav": navigation(pages, groups)}}), encoding="utf-8")
    return config


def build(folder: Path) -> None:
    """Build the site in a folder, which is replaced; exit with the code of Zensical if it finds anything wrong."""
    with tempfile.TemporaryDirectory() as place:
        config = prepare(Path(place) / "pages")
        program = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", config]
        if code := subprocess.run(program, check=False).returncode:
            sys.exit(code)
        made = config.parent / "site"
        for path in made.rglob("*.html"):
            path.write_text(path.read_text(encoding="utf-8").replace(_SHIM, _LOCAL_SHIM), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(made, folder)


if __name__ == "__main__":
    build(ROOT / "site")
    print("open site/index.html")
