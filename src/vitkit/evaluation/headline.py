"""The headline figure of an evaluation, with the caveats that a reader must know.

All outputs use `headline_of`, so that none of them shows a more flattering figure: the terminal, evaluation.json, the
report, `compare`, `lab`, the studio, the model card and the Python results. Importing this module loads neither numpy
nor torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from vitkit.errors import VitkitError
from vitkit.text.cells import interval_text, listed, plural
from vitkit.text.verdict import Level, Verdict, share_in_words

BY_FOLDS = "cross-validated"  # used as the split if each training image tested a model that was trained without it
UNRECORDED = "whether the weights had seen these images before is not recorded"
Kind = Literal[
    "seen",  # the weights were, or may have been, trained on some of the images or selected by them
    "unrecorded",  # nothing, or not everything, is recorded of what the weights had seen
    "trained_on",  # the images are training images
    "of_folds",  # the figure describes the models of cross-validation folds, not the final one, trained on all images
    "problem",  # the data have a problem that invalidates results, such as pictures with two different labels
    "relabelled",  # some labels have changed since an earlier run, and the figure uses the earlier labels
    "missing",  # test images of an earlier run are missing, and the figure counts them as it predicted them
    "changed",  # some of the run's images have changed since the training
    "unreadable",  # some of the images cannot be read, so they do not count
    "groups",  # some of the images are copies of others, or of the same scene as others
    "baseline",  # always predicting the most frequent label gives a similar accuracy, or a high one
    "chosen_on",  # a choice, such as that of the epoch, was made on these images
    "zero_shot",  # the predictions are based on class names alone
    "tta",  # the probabilities are means over several views of each image
    "precision",  # the predictions were not computed in float32
]
_FREQUENT_BASELINE = 0.75  # the accuracy of always predicting the most frequent label is always stated if it is above


@dataclass(frozen=True)
class Caveat:
    """A limitation of a figure that its reader must know."""

    kind: Kind
    text: str  # for use in parentheses after the figure


@dataclass(frozen=True)
class Headline:
    """The main figure of a run or an evaluation."""

    figure: str  # `accuracy`, or `exact match` if an image may have several classes
    value: float | None  # from 0 to 1; None if the weights had seen every image
    interval: tuple[float, float] | None  # 95 % confidence interval, if there is one
    images: int  # number of images that the figure is based on
    split: str  # of these images: train, val, test, all or `BY_FOLDS`
    caveats: tuple[Caveat, ...] = ()  # limitations that a reader of the figure must know
    folds: int = 0  # number of folds if the figure is the mean of a cross-validation, else 0

    @property
    def described(self) -> str:
        """The images and the caveats, such as `40 test images (without 8 that the weights had seen; ...)`."""
        caveats = "; ".join(caveat.text for caveat in self.caveats)
        images = f"{self.images} {self.split} {'image' if self.images == 1 else 'images'}"
        return f"{images} ({caveats})" if caveats else images

    @property
    def words(self) -> str:
        """The figure with its images and caveats, in one line."""
        if self.value is None:
            return f"no {self.figure} can be given: {'; '.join(caveat.text for caveat in self.caveats)}"
        interval = "" if self.interval is None else f" (95 %: {interval_text(self.interval)})"
        folds = f" over {self.folds} folds," if self.folds else ""
        return f"{self.figure} {self.value:.4f}{interval}{folds} on {self.described}"

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes in plain JSON types, as in evaluation.json."""
        fields = {
            "figure": self.figure,
            "value": self.value,
            "interval_95": None if self.interval is None else list(self.interval),
            "images": self.images,
            "split": self.split,
            "caveats": [asdict(caveat) for caveat in self.caveats],
        }
        if self.folds:
            fields["folds"] = self.folds
        return fields


def headline_of(numbers: Mapping[str, Any]) -> Headline:
    """Return the headline figure of an evaluation.

    The figure excludes images that the weights had seen, unless the evaluated split is the training split. Every entry
    of evaluation.json that limits what the figure says becomes a caveat. A run passes the findings of severity
    `problem` on as the entry `problems`.

    `numbers` is the content of evaluation.json or folds.json.
    """
    if isinstance(numbers["accuracy"], Mapping):
        return _headline_of_folds(numbers)
    value = numbers["accuracy"]
    interval = numbers.get("intervals_95", {}).get("accuracy")
    images = numbers.get("images", 0)
    missing = numbers.get("missing_tests")
    if missing:
        value = missing["accuracy"]
        interval = missing["interval_95"]
        images += missing["images"]
    return Headline(
        figure="exact match" if numbers.get("task") == "multi" else "accuracy",
        value=value,
        interval=None if interval is None else tuple(interval),
        images=images,
        split=numbers["split"],
        caveats=(*_caveats(numbers), *_caveats_of_images(numbers, interval[0] if interval else 0.0)),
    )


def value_of(headline: Headline) -> float:
    """Return the value of the headline figure. It is an error if the weights had seen every image."""
    if headline.value is None:
        raise VitkitError("evaluation.images-seen", headline.words)
    return headline.value


def _headline_of_folds(numbers: Mapping[str, Any]) -> Headline:
    # The mean over the folds of a cross-validation, with the caveats of every fold.
    folds = numbers["folds"]
    headlines = [headline_of(fold) for fold in folds]
    mean = numbers["accuracy"]["mean"]
    low, high = numbers["accuracy"]["interval_95"] or (0.0, 1.0)
    caveats = list[Caveat]()
    if final := numbers.get("final"):
        all_images = plural(final["images"], "image", "images")
        text = f"of the folds' models; the final model was trained on all {all_images}, so none is left to test it"
        caveats.append(Caveat("of_folds", text))
    for fold in folds:
        caveats += _caveats(fold)
    combined = {
        "images": sum(fold.get("images", 0) for fold in folds),
        "independent_groups": sum(fold.get("independent_groups", 0) for fold in folds),
        "baseline": _majority_of_folds(numbers),
    }
    caveats += _caveats_of_images(combined, low)
    return Headline(
        figure=headlines[0].figure,
        value=mean,
        interval=None if mean is None else (low, high),
        images=sum(headline.images for headline in headlines),
        split=headlines[0].split,
        caveats=tuple(dict.fromkeys(caveats)),  # once each, although several folds may have it
        folds=len(folds),
    )


def _majority_of_folds(numbers: Mapping[str, Any]) -> dict[str, Any] | None:
    # The most frequent label of all folds, and the accuracy of always answering it.
    labels = Counter[str]()  # the number of images of each label in all folds
    for fold in numbers["folds"]:
        if "confused" in fold and fold.get("images"):  # one class for each image, and not all of them were seen
            labels.update({name: row["support"] for name, row in fold["per_class"].items()})
        elif baseline := fold.get("baseline"):  # of sets of classes, only the most frequent one of each fold is known
            labels[baseline["label"]] += round(baseline["accuracy"] * fold["images"])
    if not labels:
        return None
    ((label, count),) = labels.most_common(1)
    return {"label": label, "accuracy": count / sum(fold.get("images", 0) for fold in numbers["folds"])}


def _caveats(numbers: Mapping[str, Any]) -> Iterator[Caveat]:
    # The most serious come first. A new kind needs an entry here and in `Kind`.
    split = numbers["split"]
    if split == BY_FOLDS:
        yield Caveat(
            "of_folds", "each was tested by a last layer trained without it; the model's own was trained on all"
        )
    if split == "train":
        yield Caveat("trained_on", "training images: the figure says nothing about others")

    # The weights had seen some of the images, or may have.
    seen = numbers.get("seen", {})  # None if nothing is recorded of what the weights had seen
    if seen is None:
        if split != "train":
            yield Caveat("unrecorded", UNRECORDED)
        seen = {}
    count = seen.get("images", 0)
    if count and split != "train":
        if numbers["without_seen"] is None:
            kind = "images" if split == "all" else f"{split} images"
            text = f"the weights had seen all {count} {kind}"
        else:
            text = f"without {count} that the weights had seen"
        yield Caveat("seen", f"{text}; with them {numbers['with_seen']['accuracy']:.4f}")
    if seen.get("doubt"):
        yield Caveat("unrecorded", seen["doubt"])

    for problem in numbers.get("problems", ()):
        yield Caveat("problem", problem)
    yield from _caveats_of_labels(numbers)
    unreadable = numbers.get("unreadable", 0)
    if changed := numbers.get("changed"):
        yield Caveat("changed", changed["text"])
        unreadable -= changed["images"]  # changed images count as unreadable, too
    if unreadable > 0:
        yield Caveat("unreadable", f"without {unreadable} that cannot be read")
    if chosen := numbers.get("chosen_on"):
        yield Caveat("chosen_on", f"validation, flattered by selection: chosen on these images: {', '.join(chosen)}")
    if "zero_shot" in numbers:
        yield Caveat("zero_shot", "zero-shot: by the class names alone")
    tta = numbers.get("tta")
    if tta is not None:
        plain = "" if tta["plain"] is None else f"; with one view {tta['plain']['accuracy']:.4f}"
        yield Caveat("tta", f"mean of {tta['per_image']} views of each image{plain}")
    precision = numbers.get("precision", "float32")
    if precision != "float32":
        yield Caveat("precision", f"computed in {precision}")


def _caveats_of_images(numbers: Mapping[str, Any], low: float) -> Iterator[Caveat]:
    # The images are not independent, or always predicting one label is as good as `low`, the accuracy's lower bound.
    images, groups = numbers.get("images", 0), numbers.get("independent_groups", 0)
    if 0 < groups < images:
        yield Caveat("groups", f"only {groups} of them independent, the others being copies or of the same scenes")
    baseline = numbers.get("baseline")
    if baseline and (baseline["accuracy"] >= low or baseline["accuracy"] > _FREQUENT_BASELINE):
        yield Caveat("baseline", f"always answering {baseline['label']!r} gives {baseline['accuracy']:.4f}")


def _caveats_of_labels(numbers: Mapping[str, Any]) -> Iterator[Caveat]:
    # Labels have changed since earlier runs, or test images of these runs are missing.
    if relabelled := numbers.get("relabelled"):
        now = numbers["with_labels_now"]
        labels = plural(len(relabelled["paths"]), "label has", "labels have")
        figure = f"; with today's labels {now['accuracy']:.4f}" if "accuracy" in now else ""
        runs = listed(relabelled["runs"])
        yield Caveat("relabelled", f"{labels} changed since {runs}, and the earlier ones count{figure}")
    if missing := numbers.get("missing_tests"):
        images = plural(missing["images"], "test image", "test images")
        text = f"{images} of {listed(missing['runs'])} missing, counted as predicted there ({missing['right']} right)"
        yield Caveat("missing", f"{text}; without them {numbers['accuracy']:.4f}")


def describe_labels(numbers: Mapping[str, Any]) -> str | None:
    """Describe labels that have changed since earlier runs, and their missing test images; None if there are none.

    `numbers` is the content of evaluation.json.
    """
    return "; ".join(caveat.text for caveat in _caveats_of_labels(numbers)) or None


def images_in_words(count: int, split: str) -> str:
    """Return the number and kind of images in words, such as `359 test images` or `40 validation images`."""
    what = {"val": "validation ", "all": ""}.get(split, f"{split} ")
    return plural(count, f"{what}image", f"{what}images")


# Caveats that make a verdict a warning. `unrecorded` is none of them, because it applies to most weights.
_WARNING_KINDS = frozenset(
    {"chosen_on", "of_folds", "relabelled", "missing", "changed", "unreadable", "groups", "baseline", "seen"}
)
_WIDE_INTERVAL = 0.2  # an interval of 20 points says little
_OFTEN_CONFUSED = 0.2  # a pair of classes with at least this share of all mistakes is named


def verdict_of(numbers: Mapping[str, Any]) -> Verdict:
    """Return the headline as a sentence for people: how often the model is right, and what it mixes up.

    The level says how far the figure can be relied on, not whether it is high: a problem invalidates it, and after a
    warning its caveats must be read. `numbers` is the content of evaluation.json or folds.json.
    """
    headline = headline_of(numbers)
    if headline.value is None:
        return Verdict("problem", "Test it on other photographs: the weights had seen all of these")
    start = "All classes right for" if headline.figure == "exact match" else "Right for"
    words = f"{start} {share_in_words(headline.value, headline.images)} photographs"
    low, high = headline.interval or (0.0, 1.0)
    kinds = {caveat.kind for caveat in headline.caveats}

    if "trained_on" in kinds:
        return Verdict("problem", f"{words}, but it learned from these, so test it on others")
    if "problem" in kinds:
        return Verdict("problem", f"{words}, but the data have a problem to solve first")
    if "baseline" in kinds:
        baseline = _majority_of_folds(numbers) if headline.folds else numbers["baseline"]
        if baseline is not None and baseline["accuracy"] >= low:
            text = f"{words}, which is not clearly better than always answering {baseline['label']!r}"
            return Verdict("problem", text)

    is_wide = high - low > _WIDE_INTERVAL
    level: Level = "warning" if is_wide or kinds & _WARNING_KINDS else "good"
    mixed = most_mixed_up(numbers)
    if mixed is not None:
        words += f"; {' and '.join(mixed.classes)} are mixed up most often"
    return Verdict(level, words)


class MixedUp(NamedTuple):
    """Two classes that account for many of the mistakes."""

    classes: tuple[str, ...]
    between: int  # mistakes between the two, in both directions
    mistakes: int  # of all classes


def most_mixed_up(numbers: Mapping[str, Any]) -> MixedUp | None:
    """Return the two classes most often mixed up; None if they account for less than a fifth of the mistakes."""
    confused = Counter[tuple[str, ...]]()  # in either direction
    for pair in numbers.get("confused", ()):
        confused[tuple(sorted((pair["true"], pair["predicted"])))] += pair["count"]
    if numbers.get("accuracy") is None or not confused:
        return None
    mistakes = round((1 - numbers["accuracy"]) * numbers["images"])
    ((classes, count),) = confused.most_common(1)
    if count < 2 or count < _OFTEN_CONFUSED * mistakes:
        return None
    return MixedUp(classes, count, mistakes)
