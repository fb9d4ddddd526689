"""A folder of the Hugging Face hub, by its own library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError, first_line
from vitkit.system.cache import offline
from vitkit.system.progress import Progress, silent
from vitkit.weights.download import refuse_offline

_WORDS = ["tokenizer.json", "spiece.model", "vocab.json", "merges.txt", "tokenizer_config.json"]  # of text encoders
_DESCRIPTIONS = ["config.json", "preprocessor_config.json", "open_clip_config.json", *_WORDS]
_SAFETENSORS = ["*.safetensors", "*.safetensors.index.json"]
_OTHER_WEIGHTS = ["pytorch_model*.bin", "pytorch_model.bin.index.json", "*.npz"]


def fetch_hub(repo_id: str, progress: Progress = silent) -> Path:
    """The weights and their descriptions of a repository on the Hugging Face hub: a folder in the hub's own cache.

    Weights are safetensors, or what else there is. HF_HOME, HF_ENDPOINT (a mirror) and HF_HUB_OFFLINE are respected,
    and files that other programs put into that cache are used.

    Raises:
        VitkitError: offline and not in the cache, there is no such repository, it is private or gated, the hub cannot
            be reached, or the repository has no weights.
    """
    folder = _snapshot(repo_id, [*_DESCRIPTIONS, *_SAFETENSORS], progress)
    if not any(folder.glob("*.safetensors")):
        folder = _snapshot(repo_id, [*_DESCRIPTIONS, *_OTHER_WEIGHTS], progress)
    if not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin", "*.npz")):
        refuse_offline(repo_id, "download its files elsewhere and name their folder")
        raise VitkitError(
            f"{repo_id} on the hub has no weights: expected a .safetensors, pytorch_model.bin or .npz file"
        )
    return folder


def _snapshot(repo_id: str, patterns: list[str], progress: Progress) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(
            snapshot_download(
                repo_id,
                allow_patterns=patterns,
                ignore_patterns=["*/*"],  # other formats, other precisions
                local_files_only=offline() is not None,
                tqdm_class=_reporting(f"downloading {repo_id}", progress),
            )
        )
    except errors.GatedRepoError as error:
        raise VitkitError(
            f"{repo_id} is gated: accept its terms on https://huggingface.co/{repo_id} and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise VitkitError(
            f"the hub has no repository {repo_id}, or it is private: check the name, or log in with `hf auth login`"
        ) from error
    except errors.HFValidationError as error:
        raise VitkitError(f"{repo_id!r} is no repository on the hub: expected owner/name") from error
    except Exception as error:  # the errors of its HTTP library, which changes from release to release
        refuse_offline(repo_id, "download its files elsewhere and name their folder")
        reason = first_line(error)
        raise VitkitError(
            f"could not download {repo_id} from the hub: {reason}; or download its files by other means and name their "
            "folder instead"
        ) from error


def _reporting(what: str, progress: Progress) -> type[Any]:
    """A progress bar as the hub's library wants one, that draws nothing and tells `progress` instead."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Reporting(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **fields: Any) -> None:
            super().__init__(*args, **{**fields, "file": _Nowhere(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self.unit == "B":  # others count files
                progress(what, int(self.n), int(self.total or 0))
            return shown

    return Reporting


class _Nowhere:
    """A stream that forgets."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass
