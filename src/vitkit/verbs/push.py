"""`vitkit.push`: publish a model on the Hugging Face hub, with a card that is made from its run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import vitkit
from vitkit.errors import VitkitError, first_line
from vitkit.model.names import is_model_name
from vitkit.model_folder import version_of
from vitkit.reporting.model_card import markdown_text, model_card_text
from vitkit.system.environment import offline
from vitkit.system.files import exclusive, is_empty, write_text
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.verbs.inputs import open_model
from vitkit.verbs.result import Notes, Result
from vitkit.weights.catalog import HUB, find, is_hub_id

if TYPE_CHECKING:
    from vitkit.classifier import Classifier

CARD = "README.md"  # the file that the hub shows


@check_arguments
def push(
    model: str | Path,
    repository: str,
    *,
    dry_run: Path | str | None = None,
    private: bool = False,
    licence: str | None = None,
    with_record: bool = False,
    progress: Progress = silent,
) -> Result:
    """Publish a model on the Hugging Face hub, with a model card that is made from its run.

    The repository contains the model folder, without local paths, and the card. The card describes the classes, the
    data and its splits, the figures with their intervals, the most frequent confusions, the recognition of unknown
    images, and the licence of the initial weights. It also explains how to use the model with vitkit, timm and
    transformers. Everything is uploaded in one commit. Log in first: `hf auth login`.

        import vitkit

        push = vitkit.push("runs/digits-1", "hf:me/digits", dry_run="published")  # without dry_run, it is uploaded
        print(push.files, vitkit.load("published").classes)  # once it is on the hub: vitkit.load("hf:me/digits")

    On the command line: `vitkit push runs/flowers-1 hf:me/flowers --dry-run published`.

    Args:
        model: a run or model folder.
        repository: the repository, as hf:OWNER/NAME, which is created if it does not exist.
        dry_run: write the files into this new folder, and upload nothing.
        private: create the repository as a private one.
        licence: the licence of the model by its identifier on the hub, such as mit; by default that of the weights that
            the training started from, if it is known.
        with_record: publish the record of the training images, too. It contains no pictures. However, anyone who has a
            photograph can find out from the record whether the model was trained on this photograph.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result with the facts `repository` (OWNER/NAME), `files` (the size of each file in bytes, by name), `folder`
        (None if the files were uploaded), `url` (the address of the commit; None if nothing was uploaded) and `notes`.

    Raises:
        VitkitError: the model cannot be read, `repository` is not the name of a repository, the folder of `dry_run` is
            not empty, or the hub refuses the upload.
    """
    name = repository.removeprefix(HUB)
    if not is_hub_id(name):
        raise VitkitError("verbs.repository-invalid", f"{repository!r} names no repository: write {HUB}OWNER/NAME")
    reason = offline()
    if dry_run is None and reason is not None:
        raise VitkitError(
            "verbs.upload-forbidden", f"{reason} forbids uploading: unset it, or write the files with --dry-run FOLDER"
        )
    notes = Notes()
    classifier = open_model(model, notes)
    run = Path(model) if Path(model).is_dir() else None
    if classifier.pictures is not None and not with_record:
        notes("the record of the training images is not published; --with-record adds it")
    initial = find(str(classifier.provenance.get("weights", {}).get("source", "")))
    licence = licence or (None if initial is None else initial.licence) or None  # the catalog may state none
    if licence is None:
        notes("the licence of the weights is not known: name it with --licence")
    card = _hub_card(name, classifier, run, licence)
    if dry_run is not None:
        folder = Path(dry_run)
        with exclusive(folder):
            if folder.is_file() or (folder.is_dir() and not is_empty(folder)):
                raise VitkitError("verbs.out-exists", f"--dry-run {folder} exists: choose a new name")
            files = _write(folder, classifier, card, with_record=with_record)
        return _result(name, files, folder, None, notes)
    with tempfile.TemporaryDirectory() as temporary:
        files = _write(Path(temporary), classifier, card, with_record=with_record)
        url = _upload(Path(temporary), name, progress, private=private)
    return _result(name, files, None, url, notes)


def _result(repository: str, files: dict[str, int], folder: Path | None, url: str | None, notes: Notes) -> Result:
    size = f"{len(files)} files, {sum(files.values()) / 1e6:.1f} MB"
    if folder is not None:
        lines = [f"{folder}: {size}, as they would be published; nothing was uploaded"]
    else:
        lines = [f"{url}: {size}", f"others use it with: vitkit predict {HUB}{repository} PHOTOS"]
    facts = {"repository": repository, "files": files, "folder": folder, "url": url, "notes": tuple(notes.lines)}
    return Result("push", lines, facts)


def _write(folder: Path, classifier: Classifier, card: str, *, with_record: bool) -> dict[str, int]:
    """Write the files to publish, and return their sizes."""
    if not with_record:
        classifier = replace(classifier, pictures=None)
    classifier.save(folder)
    write_text(folder / CARD, card)
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def _upload(folder: Path, name: str, progress: Progress, *, private: bool) -> str:
    """Create the repository if it does not exist, upload the files in one commit, and return the commit's address."""
    from huggingface_hub import HfApi, errors

    hub = HfApi()
    try:
        progress(f"uploading {name}", 0, 1)
        hub.create_repo(name, private=private or None, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Publish a model with vitkit", delete_patterns=["*.npz"]
        )
        progress(f"uploading {name}", 1, 1)
    except errors.LocalTokenNotFoundError as error:
        raise VitkitError("verbs.upload-forbidden", f"{name} was not published: log in with `hf auth login`") from error
    except Exception as error:  # the hub's HTTP library, and with it the errors, change between releases
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            message = f"the hub does not let you write to {name}: log in with `hf auth login`, or choose another owner"
            raise VitkitError("verbs.upload-forbidden", message) from error
        raise VitkitError("verbs.upload-failed", f"{name} was not published: {first_line(error)}") from error
    return str(commit.commit_url)


def _hub_card(repository: str, model: Classifier, run: Path | None, licence: str | None) -> str:
    """Return the model card of a repository. It begins with metadata for the hub, and ends with instructions."""
    metadata = [
        *([] if licence is None else [f"license: {licence.lower()}"]),
        "library_name: vitkit",
        "pipeline_tag: image-classification",
        "tags:",
        "- vitkit",
        "- vision-transformer",
        "- image-classification",
    ]
    version = "" if run is None else version_of(run)
    card = model_card_text(f"hf:{repository}", model, version or vitkit.__version__, run)
    source = str(model.provenance.get("weights", {}).get("source") or "")
    origin = f"The training started from {markdown_text(Path(source).name)}. " if source else ""
    if licence is None:
        terms = "The licence of the weights was not stated: ask before you use them."
    else:
        terms = f"The weights are published under {markdown_text(licence)}. The photographs are not included."
    usage = _IN_PYTHON
    if is_model_name(str(model.provenance.get("recipe", {}).get("model", ""))):
        usage += _IN_OTHER_LIBRARIES
    usage = usage.replace("REPOSITORY", f"hf:{repository}")
    return "\n".join(["---", *metadata, "---", "", card, "## Licence", "", origin + terms, "", usage])


_IN_PYTHON = """## In Python

```python
import vitkit

classifier = vitkit.load("REPOSITORY")
prediction = next(classifier.predict("photo.jpg"))
```
"""
_IN_OTHER_LIBRARIES = """
## In timm and transformers

`vitkit convert` writes the layouts of other libraries:

    vitkit convert REPOSITORY model.safetensors --to timm
    vitkit convert REPOSITORY transformers-model --to hf

timm loads the file by `timm.create_model(NAME, num_classes=N, checkpoint_path='model.safetensors')`,
transformers the folder by `AutoModelForImageClassification.from_pretrained('transformers-model')`. The
conversion divides the head by the temperature, so that their probabilities are calibrated, too.
"""
