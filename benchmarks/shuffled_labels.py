"""Does any protocol flatter itself? `python benchmarks/shuffled_labels.py [--smoke] [--seeds 20] [--only train,lab]`.

The labels are randomly permuted, so whoever is right more often than chance has seen the pictures. For each seed, 60
pictures of 64 pixels in 5 classes are learned by heart by a small model, and every protocol that ends in a figure is
run on them and on data that share pictures with them: training, cross-validation, weights of a run, a teacher,
pre-training, choosing among weights, comparing, the lab, datasets of the caller's, the studio's list, the loop that
corrects labels by a run's suggestions, labels that are changed or left out after a run's mistakes were seen, and
patients whom the names of files reveal. It is counted how often chance lies in the 95 % interval of what is reported:
20 % for an accuracy, 0 for a difference between two models. A protocol passes with 18 of 20 seeds or more.

Controls show that the models did learn the pictures: the same figures with what was seen must not contain chance.

Some figures cannot be put right, because the labels themselves are wrong. A seed of such a protocol also passes if
vitkit refuses the data, or if the line that reports the figure names the reason. A caveat counts only if it contains
the words that the protocol expects; caveats about anything else do not. The column `told` has what was said.

Each protocol is a row of `PROTOCOLS`; `--only` names some. The table is written after each seed, and a second run on
the same day goes on where it ends: protocols and seeds that are there are not run again.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from tables import RESULTS, read_table, result_path, write_table

import vitkit
from vitkit.data import EXCLUDED, Edit, add_edits
from vitkit.evaluation import Headline, headline_of
from vitkit.experiments import comparison_table as comparison_costs
from vitkit.webapp import open_workspace, summaries

CLASSES, EACH, SIDE, COPIES, SEEDS = 5, 12, 64, 48, 20  # COPIES: pixels of altered copies
PATIENTS, EACH_PATIENT = 20, 6
CHANCE = 1 / CLASSES
MODEL = "vit_micro_patch8_16"
RECIPE: dict[str, Any] = {
    "epochs": 26,
    "batch_size": 7,
    "precision": "float32",
    "workers": 0,
    "crop_scale": (0.0, 0.0),
    "color_jitter": 0.0,
    "hflip": False,
    "drop_path": 0.0,
    "label_smoothing": 0.0,
    "lr": 4e-3,
    "weight_decay": 0.0,
    "keep": "last",
    "balance": "none",
}
SIZE = {"layers": 2}
SCRATCH: dict[str, Any] = {"model": MODEL, "model_fields": SIZE, "weights": "none"}
TUNED: dict[str, Any] = {"method": "full", "lp_ft": False}
GENTLE: dict[str, Any] = {"method": "full", "epochs": 3, "lr": 2e-4}  # what the weights know by heart is not forgotten
OTHER = 10_000  # the number from which on pictures are that no protocol tests


@dataclass(frozen=True)
class Figures:
    """What a protocol reports.

    Attributes:
        value, low, high: the figure and its 95 % interval.
        chance: what it must contain.
        told: the refusal, or the caveat that names the reason why the figure says nothing; empty if there is neither.
    """

    value: float
    low: float
    high: float
    chance: float = CHANCE
    told: str = ""

    @classmethod
    def of(cls, headline: Headline, reason: str | None = None) -> Figures:
        """A headline; where the weights had seen all images there is none, and so nothing flatters.

        Args:
            headline: what a protocol reports.
            reason: words that only a caveat about the reason contains; None if the figure itself must be of chance.
        """
        if headline.value is None or headline.interval is None:
            return cls(CHANCE, 0.0, 1.0)
        texts = [caveat.text for caveat in headline.caveats if reason is not None and reason in caveat.text]
        return cls(headline.value, *headline.interval, told="; ".join(texts))

    @classmethod
    def refused(cls, error: vitkit.VitkitError) -> Figures:
        """No figure, because vitkit refuses the data."""
        return cls(CHANCE, 0.0, 1.0, told=f"refused: {error}")


def picture(seed: int, number: int, side: int = SIDE) -> Image.Image:
    """A picture that differs from every other and survives resizing."""
    coarse = np.random.default_rng((seed, number)).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    whole = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return whole if side == SIDE else whole.resize((side, side))


def label_of(seed: int, number: int) -> int:
    """A random class, of which every five pictures in a row have each once."""
    block, place = divmod(number, CLASSES)
    return int(np.random.default_rng((seed, 77, block)).permutation(CLASSES)[place])


def pictures(root: Path, seed: int, numbers: Sequence[int], side: int = SIDE) -> Path:
    """Pictures in class folders that mean nothing; altered copies have another name."""
    for number in numbers:
        folder = root / f"class{label_of(seed, number)}"
        folder.mkdir(parents=True, exist_ok=True)
        picture(seed, number, side).save(folder / f"{'' if side == SIDE else 'copy-'}{number}.png")
    return root


class Drawn:
    """A caller's dataset of such pictures."""

    classes = tuple(f"class{label}" for label in range(CLASSES))

    def __init__(self, seed: int, numbers: Sequence[int], side: int = SIDE) -> None:
        self.seed, self.numbers, self.side = seed, numbers, side

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        number = self.numbers[index]
        return picture(self.seed, number, self.side), label_of(self.seed, number)


class Place:
    """The folder of one seed, with the data and the runs that protocols share, each made when it is first asked for.

    Args:
        folder: empty.
        seed: of pictures, labels and trainings.
        elsewhere: a run that was trained on other pictures, for weights that know none of these.
    """

    def __init__(self, folder: Path, seed: int, elsewhere: Path) -> None:
        self.folder, self.seed, self.elsewhere = folder, seed, elsewhere

    @functools.cached_property
    def photos(self) -> Path:
        """60 pictures in class folders, not split."""
        return pictures(self.folder / "photos", self.seed, range(CLASSES * EACH))

    @functools.cached_property
    def patients(self) -> Path:
        """Several pictures of each patient, which resemble one another. The labels are random by patient."""
        root = self.folder / "patients"
        for patient in range(PATIENTS):
            own = root / f"class{label_of(self.seed, patient)}"
            own.mkdir(parents=True, exist_ok=True)
            for number in range(EACH_PATIENT):
                other = picture(self.seed, 10_000 + EACH_PATIENT * patient + number)
                Image.blend(picture(self.seed, patient), other, 0.35).save(own / f"patient{patient:03}_{number:02}.png")
        return root

    @functools.cached_property
    def unheeded(self) -> Path:
        """A run on the patients with no flag, which says that there are groups."""
        return self.train("unheeded", data=self.patients, **SCRATCH, seed=self.seed)

    @functools.cached_property
    def first(self) -> Path:
        """A run from scratch on them, which knows its 42 training pictures by heart."""
        return self.train("first", data=self.photos, **SCRATCH, seed=self.seed)

    @functools.cached_property
    def learned(self) -> list[int]:
        """The numbers of the pictures that the first run was trained on."""
        stored = json.loads((self.first / "split.json").read_text())
        return sorted(int(Path(path).stem) for paths in stored["splits"]["train"].values() for path in paths)

    @functools.cached_property
    def given(self) -> Path:
        """Data that come split, as `shared` has their numbers."""
        train, val, fresh, seen = self.shared
        root = self.folder / "given"
        for name, numbers in (("train", train), ("val", val), ("test", fresh)):
            pictures(root / name, self.seed, numbers)
        pictures(root / "test", self.seed, seen, COPIES)
        return root

    @property
    def shared(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Training pictures, of which the first run has learned some; validation pictures; 25 test pictures that nobody
        has seen; and 35 more, to be altered: 20 that the first run has learned, and 15 of the training pictures."""
        train = [*self.learned[20:], *range(1000, 1030)]
        return train, list(range(2000, 2010)), list(range(3000, 3025)), [*self.learned[:20], *train[-15:]]

    @functools.cached_property
    def spoilt(self) -> Path:
        """A run on data that come split, from the weights of the first run."""
        return self.train("spoilt", data=self.given, weights=str(self.first), **GENTLE, seed=self.seed)

    @functools.cached_property
    def sharing(self) -> Path:
        """A run from scratch on data that come split."""
        return self.train("sharing", data=self.given, **SCRATCH, seed=self.seed)

    def train(self, name: str, **fields: Any) -> Path:
        """Train into a folder of this name."""
        return vitkit.train(recipe=vitkit.Recipe(**{**RECIPE, **fields}), out=self.folder / "runs" / name).folder

    def headline(self, name: str, **fields: Any) -> Figures:
        """Train, and what the run reports."""
        return Figures.of(vitkit.TrainingRun(self.train(name, **fields)).headline)


# --- Protocols ----------------------------------------------------------------------------------------------------


def train(place: Place) -> Figures:
    return Figures.of(vitkit.TrainingRun(place.first).headline)


def given_splits(place: Place) -> Figures:
    return Figures.of(vitkit.TrainingRun(place.sharing).headline)


def from_a_run(place: Place) -> Figures:
    fields = {"weights": str(place.first), **TUNED, "seed": place.seed + 100}
    return place.headline("second", data=place.photos, **fields)


def from_a_run_with_more(place: Place) -> Figures:
    more = Path(shutil.copytree(place.photos, place.folder / "more"))
    pictures(more, place.seed, range(100, 160))
    return place.headline("third", data=more, weights=str(place.first), **TUNED, seed=place.seed + 100)


def from_a_run_on_given_splits(place: Place) -> Figures:
    return Figures.of(vitkit.TrainingRun(place.spoilt).headline)


def folds(place: Place) -> Figures:
    return place.headline("folds", data=place.photos, **SCRATCH, folds=3, seed=place.seed)


def pretrained(place: Place) -> Figures:
    fields = {"epochs": 5, "batch_size": 14, "precision": "float32", "workers": 0}
    shared = {"model": MODEL, "model_fields": SIZE, "seed": place.seed, "out": place.folder / "runs" / "encoder"}
    encoder = vitkit.pretrain(place.photos, vitkit.Recipe(**shared, **fields))
    fields = {"weights": str(encoder.folder), **TUNED, "seed": place.seed + 100}
    return place.headline("pretrained", data=place.photos, **fields)


def taught(place: Place) -> Figures:
    fields = {"teacher": str(place.first), "distillation": "soft", "seed": place.seed + 100}
    return place.headline("taught", data=place.photos, **SCRATCH, **fields)


def another_folder(place: Place) -> Figures:
    return Figures.of(_other_folder(place).headline)


@functools.lru_cache(maxsize=1)
def _other_folder(place: Place) -> vitkit.EvaluationResult:
    """The first run on altered copies of all its pictures."""
    own = pictures(place.folder / "other", place.seed, range(CLASSES * EACH), COPIES)
    return vitkit.evaluate(place.first, own)


@functools.lru_cache(maxsize=1)
def _compared(place: Place) -> Mapping[str, Any]:
    """Weights of the first run beside none, on data that come split."""
    names, out = [f"{MODEL}@{place.first}", f"{MODEL}@none"], place.folder / "compared"
    own = {**RECIPE, "model_fields": SIZE, **GENTLE, "seed": place.seed}
    return vitkit.compare(place.given, names, vitkit.Recipe(**own), seeds=1, out=out).figures


def compared_accuracy(place: Place) -> Figures:
    """Of the model whose weights have learned 20 of the 60 test pictures."""
    return _of_model(_compared(place)["models"][0])


def compared_difference(place: Place) -> Figures:
    (pair,) = _compared(place)["pairs"]
    return Figures(pair["difference"], *pair["interval"], chance=0.0)


def compared_with_runs(place: Place) -> Figures:
    """Both from runs, on data that are not split: the split is the first run's."""
    names, out = [f"{MODEL}@{place.first}", f"{MODEL}@none"], place.folder / "compared-runs"
    own = {**RECIPE, "model_fields": SIZE, "method": "full", "lp_ft": False, "seed": place.seed + 100}
    own |= {"split_from": str(place.first)}
    return _of_model(vitkit.compare(place.photos, names, vitkit.Recipe(**own), seeds=1, out=out).models[0])


def _of_model(model: Mapping[str, Any]) -> Figures:
    return Figures(model["accuracy"], *model["interval"])


def ablated(place: Place) -> Figures:
    own = {**RECIPE, **SCRATCH, "seed": place.seed}
    own.pop("lr")
    found = vitkit.lab("norm", place.given, vitkit.Recipe(**own), seeds=1, out=place.folder / "lab")
    variant = found.to_dict()["variants"][0]
    return Figures(variant["accuracy"], *variant["interval"])


def few_shot(place: Place) -> Figures:
    out = place.folder / "few-shot"
    found = vitkit.lab("few-shot", place.given, vitkit.Recipe(seed=place.seed), model=place.first, seeds=2, out=out)
    row = found.to_dict()["few_shot"][-1]
    return Figures(row["accuracy"], *row["interval"])


def datasets(place: Place) -> Figures:
    """A caller's datasets, of which the validation pictures are in part copies of training pictures."""
    return _on_datasets(place, "datasets", **SCRATCH)


def datasets_from_a_run(place: Place) -> Figures:
    return _on_datasets(place, "datasets-from-a-run", weights=str(place.first), **TUNED, epochs=3, lr=2e-4)


def _on_datasets(place: Place, name: str, **fields: Any) -> Figures:
    train, _, fresh, seen = place.shared
    val = _Several(Drawn(place.seed, fresh), Drawn(place.seed, seen, COPIES))
    datasets = vitkit.Datasets(_Several(Drawn(place.seed, train)), val)
    out = place.folder / "runs" / name
    return Figures.of(vitkit.train(datasets, vitkit.Recipe(**{**RECIPE, **fields}, seed=place.seed), out=out).headline)


class _Several:
    """Datasets one after the other."""

    classes = Drawn.classes

    def __init__(self, *parts: Drawn) -> None:
        self.items = [item for part in parts for item in (part[i] for i in range(len(part)))]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.items[index]


def studio(place: Place) -> Figures:
    """What the list of runs shows of the run on data that come split, from a run's weights."""
    workspace = open_workspace(place.given, runs=place.spoilt.parent)
    (own,) = (run for run in summaries(workspace) if run["name"] == place.spoilt.name)
    if own["interval"] is None:
        return Figures(CHANCE, 0.0, 1.0)
    return Figures(own["figures"]["accuracy"], *own["interval"])


def corrected(place: Place) -> Figures:
    """Three rounds of accepting all that label_errors.csv suggests, of test pictures too, and training again.

    The label file is a copy of the list with what is suggested in the column `label`, as the guide tells people to make
    it. The figure must be of labels that no model proposed.
    """
    labels, rows, run = place.folder / "labels.csv", dict[str, dict[str, str]](), None
    for number in range(4):
        fields = {"weights": str(place.elsewhere), **TUNED, "seed": place.seed + number}
        fields |= {"split": (0.5, 0.1, 0.4)} if run is None else {"split_from": str(run)}
        fields |= {"labels": str(labels)} if rows else {}
        run = place.train(f"corrected-{number}", data=place.photos, **fields)
        with (run / "label_errors.csv").open(encoding="utf-8", newline="") as text:
            rows |= {row["path"]: {**row, "label": row["suggested"]} for row in csv.DictReader(text)}
        if rows:
            write_table(labels, list(rows.values()))
    assert run is not None
    return Figures.of(vitkit.TrainingRun(run).headline)


def groups_in_names(place: Place) -> Figures:
    """With the flag that the run without it prints."""
    findings = json.loads((place.unheeded / "findings.json").read_text())
    (text,) = (entry["text"] for entry in findings if "--group-by" in entry["text"])
    flag = text[text.index("--group-by") :]
    return place.headline("heeded", data=place.patients, **SCRATCH, group_by=shlex.split(flag)[1], seed=place.seed)


def control_groups_in_names(place: Place) -> Figures:
    """Without the flag; the figures of all test images, whatever the headline has to say of them."""
    evaluation = vitkit.TrainingRun(place.unheeded).evaluation
    return Figures(evaluation["accuracy"], *evaluation["intervals_95"]["accuracy"])


def own_answers(place: Place) -> Figures:
    """The labels are what `vitkit predict` wrote of the pictures."""
    answers = place.folder / "answers.csv"
    vitkit.predict(place.first, place.photos, out=answers)
    try:
        return Figures.of(vitkit.evaluate(place.first, answers).headline, _OWN)
    except vitkit.VitkitError as error:
        return Figures.refused(error)


def own_answers_alone(place: Place) -> Figures:
    """The same without the columns by which vitkit knows its own tables, of pictures that the model never saw."""
    photos = pictures(place.folder / "unseen", place.seed, range(5000, 5040))
    rows = [{"path": str(row.path), "label": row.label} for row in vitkit.predict(place.first, photos)]
    write_table(place.folder / "labels-of-answers.csv", rows)
    return Figures.of(vitkit.evaluate(place.first, place.folder / "labels-of-answers.csv").headline, _OWN)


_OWN = "every label equals the prediction"


def torn_scenes(place: Place) -> Figures:
    return Figures.of(vitkit.TrainingRun(_of_torn_scenes(place)).headline)


@functools.lru_cache(maxsize=1)
def _of_torn_scenes(place: Place) -> Path:
    """A run on given splits: of 60 test pictures, 35 are second views of scenes in training. A view is no copy."""
    root = place.folder / "torn"
    views = {"train": (range(6000, 6060), 0), "val": (range(6100, 6110), 0), "test": (range(6200, 6225), 0)}
    for split, (numbers, view) in (*views.items(), ("test", (range(6000, 6035), 1))):
        for number in numbers:
            folder = root / split / f"class{label_of(place.seed, number)}"
            folder.mkdir(parents=True, exist_ok=True)
            own = Image.blend(picture(place.seed, number), picture(place.seed, 10 * number + view), _VIEW)
            own.save(folder / f"scene{number}-{view}.png")
    return place.train("torn-run", data=root, **SCRATCH, group_by=r"scene(\d+)-", seed=place.seed)


_VIEW = 0.15  # share of each view of a scene that is its own


def control_torn_scenes(place: Place) -> Figures:
    return _with_seen(vitkit.TrainingRun(_of_torn_scenes(place)).evaluation)


AUTOMATIC = {name: RECIPE[name] for name in ("batch_size", "precision", "workers")}  # as the studio trains


def accepted(place: Place) -> Figures:
    """40 photographs of a heap are labelled, and the other 20 get the labels that a run suggests.

    The run sets no photograph aside, as always with so few: it tests each by a head that was trained without it.
    """
    heap, labels = place.folder / "heap", place.folder / "heap.csv"
    heap.mkdir()
    for number in range(CLASSES * EACH):
        picture(place.seed, number).save(heap / f"{number}.png")
    add_edits(labels, [Edit(f"{n}.png", f"class{label_of(place.seed, n)}") for n in range(40)])
    own = {"data": heap, "labels": str(labels), "weights": str(place.elsewhere), "seed": place.seed, **AUTOMATIC}
    first = vitkit.train(recipe=vitkit.Recipe(**own), out=place.folder / "runs" / "heap-1")
    rest = vitkit.predict(first.folder, [heap / f"{number}.png" for number in range(40, CLASSES * EACH)])
    add_edits(labels, [Edit(Path(row.path).name, str(row.label), proposed_by="heap-1") for row in rest])
    run = vitkit.train(recipe=vitkit.Recipe(**own, split_from=str(first.folder)), out=place.folder / "runs" / "heap-2")
    return Figures.of(run.headline)


def changed(place: Place) -> Figures:
    """The test photographs that a run has wrong get the labels that it predicts."""
    return _after_mistakes(place, "changed", lambda row: Edit(row["path"], row["predicted"]))


def left_out(place: Place) -> Figures:
    """The test photographs that a run has wrong are left out by a label file."""
    return _after_mistakes(place, "left-out", lambda row: Edit(row["path"], EXCLUDED))


def deleted(place: Place) -> Figures:
    """The files of the test photographs that a run has wrong are deleted."""
    return _after_mistakes(place, "deleted", None)


def changed_everywhere(place: Place) -> Figures:
    """As `changed`, where each photograph tests a head that was trained without it."""
    return _after_mistakes(place, "changed-all", lambda row: Edit(row["path"], row["predicted"]), is_automatic=True)


def left_out_everywhere(place: Place) -> Figures:
    """As `left_out`, where each photograph tests a head that was trained without it."""
    return _after_mistakes(place, "left-out-all", lambda row: Edit(row["path"], EXCLUDED), is_automatic=True)


def changed_and_evaluated(place: Place) -> Figures:
    """As `changed`, but the same run is evaluated again."""
    labels = place.folder / "evaluated.csv"
    add_edits(labels, [Edit(row["path"], row["predicted"]) for row in _mistakes(place.first)])
    return Figures.of(vitkit.evaluate(place.first, labels=labels).headline)


def _mistakes(run: Path) -> list[dict[str, str]]:
    with (run / "predictions.csv").open(encoding="utf-8", newline="") as text:
        return [row for row in csv.DictReader(text) if row["label"] != row["predicted"]]


def _after_mistakes(
    place: Place, name: str, edit: Callable[[dict[str, str]], Edit] | None, *, is_automatic: bool = False
) -> Figures:
    """Train, edit the label of each test photograph that is wrong or delete it, and train again on the same split."""
    data = Path(shutil.copytree(place.photos, place.folder / name))
    own: dict[str, Any] = {"data": data, "weights": str(place.elsewhere), "seed": place.seed}
    own |= AUTOMATIC if is_automatic else {**RECIPE, **TUNED}
    split = {} if is_automatic else {"split": (0.5, 0.1, 0.4)}
    first = vitkit.train(recipe=vitkit.Recipe(**own, **split), out=place.folder / "runs" / f"{name}-1").folder
    for row in _mistakes(first):
        if edit is None:
            (data / row["path"]).unlink()
        else:
            add_edits(place.folder / f"{name}.csv", [edit(row)])
    labels = {} if edit is None else {"labels": str(place.folder / f"{name}.csv")}
    out = place.folder / "runs" / f"{name}-2"
    return Figures.of(vitkit.train(recipe=vitkit.Recipe(**own, **labels, split_from=str(first)), out=out).headline)


def control_another_folder(place: Place) -> Figures:
    return _with_seen(_other_folder(place).figures)


def control_given_splits(place: Place) -> Figures:
    return _with_seen(vitkit.TrainingRun(place.sharing).evaluation)


def control_given_splits_from_a_run(place: Place) -> Figures:
    return _with_seen(vitkit.TrainingRun(place.spoilt).evaluation)


def _with_seen(figures: Mapping[str, Any]) -> Figures:
    return Figures.of(headline_of({**figures["with_seen"], "seen": None}))


PROTOCOLS: dict[str, Callable[[Place], Figures]] = {
    "train": train,
    "train, given splits that share pictures": given_splits,
    "from a run, another seed": from_a_run,
    "from a run, photographs added": from_a_run_with_more,
    "from a run, given splits that it knows": from_a_run_on_given_splits,
    "three folds": folds,
    "pretrain, then train": pretrained,
    "a teacher that knows the pictures": taught,
    "eval, another folder with altered copies": another_folder,
    "compare, given splits, from a run": compared_accuracy,
    "compare, given splits, difference from none": compared_difference,
    "compare, split of a run": compared_with_runs,
    "lab, an ablation on given splits": ablated,
    "lab, few-shot from a run": few_shot,
    "datasets of the caller's": datasets,
    "datasets of the caller's, from a run": datasets_from_a_run,
    "studio, list of runs": studio,
    "labels corrected by suggestions, three rounds": corrected,
    "groups in names, with the flag that is printed": groups_in_names,
    "control: groups in names, without the flag": control_groups_in_names,
    "own answers as labels": own_answers,
    "own answers as labels, path and label alone": own_answers_alone,
    "scenes torn between given splits": torn_scenes,
    "control: scenes torn between given splits, with what was seen": control_torn_scenes,
    "unlabelled photographs, suggestions accepted": accepted,
    "labels changed after mistakes were seen": changed,
    "labels changed after mistakes were seen, all tested": changed_everywhere,
    "labels changed after mistakes were seen, eval": changed_and_evaluated,
    "mistakes left out": left_out,
    "mistakes left out, all tested": left_out_everywhere,
    "mistakes deleted": deleted,
    "control: another folder, with what was seen": control_another_folder,
    "control: given splits, with what was seen": control_given_splits,
    "control: given splits from a run, with what was seen": control_given_splits_from_a_run,
}


# --- All seeds ----------------------------------------------------------------------------------------------------


def _quiet(*_: object) -> None:
    """Says nothing."""


def _draw_nothing(_figure: Figure, target: Any, **_options: Any) -> None:
    """Drawing would take half of the time."""
    Image.new("RGB", (2, 1)).save(target, "PNG")


def runs_elsewhere(folder: Path) -> Path:
    """Two small runs on pictures that no protocol tests, `elsewhere` and `beyond`; the first."""
    for number, name in enumerate(("elsewhere", "beyond")):
        own = range(OTHER * (number + 1), OTHER * (number + 1) + CLASSES * EACH)
        data = pictures(folder / f"{name}-photos", 0, own)
        vitkit.train(data, vitkit.Recipe(**RECIPE, **SCRATCH, seed=number), out=folder / name)
    return folder / "elsewhere"


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How often chance is in the interval, by protocol."""
    lines = []
    for name in dict.fromkeys(row["protocol"] for row in rows):
        own = [row for row in rows if row["protocol"] == name]
        inside = sum(row["low"] <= row["chance"] <= row["high"] for row in own)
        mean = np.mean([row["value"] for row in own])
        told = sum(bool(row["told"]) for row in own)
        reason = f"; refused, or the reason told, {told} times" if told else ""
        lines.append(f"{name:62} chance in the interval {inside:2} of {len(own)} times; mean {mean:.3f}{reason}")
    return lines


def main() -> None:
    """All seeds, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", help="protocols, by a part of their name, with commas between them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="one seed, hardly trained, to see that the script works")
    options = parser.parse_args()
    if options.smoke:
        RECIPE["epochs"] = 1
    Figure.savefig = _draw_nothing  # type: ignore[method-assign]
    comparison_costs.ROUNDS = 1
    wanted = options.only.split(",") if options.only else [""]
    names = [name for name in PROTOCOLS if any(part in name for part in wanted)]
    path = result_path("shuffled", "float32", folder=options.out)
    rows = read_table(path)
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = runs_elsewhere(Path(folder) / "runs")
        for seed in range(1 if options.smoke else options.seeds):
            done = {row["protocol"] for row in rows if row["seed"] == seed}
            own = Path(folder) / str(seed)
            place = Place(own, seed, elsewhere)
            for name in (name for name in names if name not in done):
                found = PROTOCOLS[name](place)
                figures = {"value": found.value, "low": found.low, "high": found.high, "chance": found.chance}
                figures |= {"told": found.told}
                rows.append({"seed": seed, "protocol": name, **figures})
                write_table(path, rows)
            shutil.rmtree(own, ignore_errors=True)
            told = ", ".join(f"{row['value']:.2f}" for row in rows if row["seed"] == seed)
            print(f"seed {seed}: {told}", flush=True)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
