"""Write model cards, which say what a model does, how it was trained and how accurate it is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from vitkit.data.preprocess import Preprocess
from vitkit.data.table import task_of
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.registry import read_figures
from vitkit.system.files import read_json
from vitkit.system.run_files import EVALUATION, FOLDS, SPLIT

_FIGURES = {  # figures of evaluation.json, with their names in the card
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy (the mean over the classes)",
    "ece": "calibration error (the distance between confidence and accuracy)",
}
_SPLITS = {"train": "training", "val": "validation", "test": "test"}
_LISTED = 30  # classes


class CardFacts(Protocol):
    """The attributes of a model that its card describes.

    A `Classifier` has these attributes, and so does the result of `vitkit.weights.inspect`.
    """

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def thresholds(self) -> tuple[float, ...] | None: ...
    @property
    def preprocess(self) -> Preprocess: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...


def model_card_text(name: str, model: CardFacts, made_with: str, run: Path | None = None) -> str:
    """Return a model card in Markdown: the model, its training data and its accuracy, without local paths.

    `made_with` is the version of vitkit that wrote the model, and `run` the run folder with its evaluation and split.

    Raises:
        VitkitError: the evaluation of the run is damaged.
    """
    files = [] if run is None else [run / name for name in (EVALUATION, FOLDS) if (run / name).is_file()]
    figures = read_figures(files[0]) if files else {}
    classes = [f"- {markdown_text(label)}" for label in model.classes[:_LISTED]]
    if len(model.classes) > _LISTED:
        classes.append(f"- and {len(model.classes) - _LISTED} more")
    pixels = model.preprocess
    height, width = pixels.size
    parts = [
        [f"# {markdown_text(name)}", "", f"A classifier of photographs, made with vitkit {markdown_text(made_with)}."],
        [
            f"## Classes: {len(model.classes)}",
            "",
            f"The model knows no other classes. {task_of(model.thresholds).description}".rstrip(),
            "",
            *classes,
        ],
        _about_training(model.provenance, run),
        _about_figures(figures),
        _about_unknown(figures),
        [
            "## How to use it",
            "",
            f"    vitkit predict {shlex.quote(name)} PHOTOS",
            f"    vitkit serve {shlex.quote(name)}",
            "",
            f"The input has {width} x {height} pixels ({pixels.fit}). The preprocessing is stored with the model.",
        ],
    ]
    return "\n".join(line for part in parts for line in [*part, ""]).rstrip() + "\n"


def _about_training(provenance: Mapping[str, Any], run: Path | None) -> list[str]:
    counts: dict[str, int] = {}
    if run is not None:
        with suppress(OSError, VitkitError, AttributeError, TypeError):  # if split.json is missing or invalid
            splits = read_json(run / SPLIT).get("splits", {})
            counts = {name: sum(len(images) for images in by_class.values()) for name, by_class in splits.items()}
    recipe = provenance.get("recipe", {})
    weights = recipe.get("weights")
    images = [f"{number:,} {_SPLITS.get(split, split)}" for split, number in counts.items()]
    rows = {
        "model": recipe.get("model"),
        "initial weights": Path(str(weights)).name if weights else None,
        "training method": recipe.get("method"),
        "photographs": ", ".join(images) or None,
        "digest of the photographs": str(provenance.get("data_hash", ""))[:16] or None,
        "seed": recipe.get("seed"),
    }
    return [
        "## How it was made",
        "",
        *(f"- {name}: {markdown_text(value)}" for name, value in rows.items() if value is not None),
    ]


def _about_figures(figures: dict[str, Any]) -> list[str]:
    if not figures:
        return ["## How good it is", "", "The model was not evaluated, so its accuracy is not known."]
    headline = headline_of(figures)
    kind = _SPLITS.get(headline.split)
    where = f"photographs of the split {markdown_text(headline.split)}" if kind is None else f"{kind} photographs"
    if headline.folds:
        model = f"a model of a cross-validation with {headline.folds} folds that did not learn from it"
        where = f"photographs, each tested once by {model}"
    lines = ["## How good it is", "", "The accuracy is not known."]
    if headline.value is not None:
        lines = ["## How good it is", "", f"On {headline.images} {where}:", ""]
    lines += [f"- note: {markdown_text(caveat.text)}" for caveat in headline.caveats]
    for key, name in _FIGURES.items():
        value = figures.get(key)
        bounds = (figures.get("intervals_95") or {}).get(key)
        if isinstance(value, dict):  # of a cross-validation: the mean over its folds, and an interval
            bounds = value.get("interval_95")
            value = value.get("mean")
        if isinstance(value, (int, float)):
            spread = f" (95 % interval {100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %)" if bounds else ""
            lines.append(f"- {name}: {100 * value:.1f} %{spread}")
    confused = [
        f"{markdown_text(pair['true'])} classified as {markdown_text(pair['predicted'])}"
        for pair in figures.get("confused", [])[:5]
    ]
    if confused and headline.value is not None:
        lines.append(f"- most often wrong: {', '.join(confused)}")
    return [*lines, "", "The accuracy may be lower on other photographs, such as those of another camera or place."]


def _about_unknown(figures: Mapping[str, Any]) -> list[str]:
    entry = figures.get("unknown")
    if not entry:
        return []
    lines = [
        "## Images of unknown things",
        "",
        "The model has a score for images of unknown things (`familiar`: low is strange; `--unknown 0.01`).",
    ]
    limits = [limit for limit in entry["limits"] if limit["classes"]]  # earlier runs also measured generated pictures
    if not limits:
        return lines
    accepted = f"{100 * entry['accepted']:.0f} %"
    lines += [f"The limit that accepts {accepted} of known images also accepts this share of others:", ""]
    for limit in limits:
        low, high = (100 * bound for bound in limit["bounds"])
        lines.append(
            f"- {markdown_text(limit['kind'])}: {100 * limit['share']:.0f} % "
            f"(95 % interval for another class {low:.0f} to {high:.0f} %)"
        )
    return lines


def markdown_text(value: Any) -> str:
    """Escape a name so that Markdown shows it literally."""
    one_line = " ".join(str(value).split())
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>()#+!|~&" else character for character in one_line)
