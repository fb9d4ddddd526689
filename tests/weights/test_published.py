"""timm's tags: every one is known by its name, with what timm says of it, and nothing that nobody says."""

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform
from timm.models import get_pretrained_cfg

import vitkit
from refusals import refused
from vitkit.model import config_for
from vitkit.profiling import describe
from vitkit.training import Recipe, blueprint_of
from vitkit.weights import (
    CATALOG,
    COLUMNS,
    FILE,
    facts_of,
    find,
    find_published,
    find_timm,
    inspect,
    load,
    names,
    tags_of,
    timm_names,
    weights_for,
)
from vitkit.weights import download as hub
from vitkit.weights.loading import _network_of

ROOT = Path(__file__).parents[2]
MODULES = ("vision_transformer", "deit", "eva", "beit", "naflexvit")
MODULES += ("vision_transformer_hybrid", "vision_transformer_relpos")
NAME = "vit_base_patch16_224.augreg2_in21k_ft_in1k"
PERMISSIVE = ("Apache-2.0", "MIT", "BSD-3-Clause")


def rows() -> list[dict[str, str]]:
    with FILE.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def test_every_tag_of_timm_is_known() -> None:
    assert timm.__version__ == "1.0.31", "write the table anew: python benchmarks/catalog.py"
    theirs = {tag for module in MODULES for tag in timm.list_models(module=module, pretrained=True, include_tags=True)}
    assert len(theirs) == 463
    assert theirs - set(names()) == set()
    assert set(timm_names()) == theirs - set(CATALOG)
    assert len(names()) == len(set(names())) == len(rows())


def test_what_only_timm_computes_is_refused_before_it_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch_hub", None)
    unknown = [name for name in timm_names() if re.match("vit_(dwee|dlittle|pwee|dpwee)_", name)]
    assert len(unknown) == 6
    for name in unknown:
        with refused("weights.name-unknown", f"timm:{name}"):
            load(name)


def test_an_entry_says_what_timm_says() -> None:
    licences = {"apache-2.0": "Apache-2.0", "mit": "MIT", "cc-by-nc-4.0": "CC-BY-NC-4.0", None: ""}
    for name in timm_names():
        entry: Any = find_timm(name)
        theirs, own = get_pretrained_cfg(name), entry.preprocess
        assert (own.size, own.mean, own.std) == (theirs.input_size[1:], theirs.mean, theirs.std), name
        assert own.crop_pct == theirs.crop_pct and own.interpolation == theirs.interpolation, name
        stretched = "squash" if theirs.crop_pct == 1 else "squash_crop"
        assert own.fit == {"center": "crop", "squash": stretched}[theirs.crop_mode], name
        assert entry.licence == licences.get(theirs.license, theirs.license), name
        assert entry.hub == theirs.hf_hub_id and bool(entry.hub) != bool(entry.url), name
        kinds = {0: "none", 1000: "imagenet1k", 21843: "imagenet21k"}
        assert entry.classes == kinds.get(theirs.num_classes, "other"), name
        assert entry.timm == own


def test_pictures_are_those_of_timms_transforms_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (180, 333, 3), dtype=np.uint8))
    every = {name: find_timm(name) or CATALOG[name] for name in names()}
    kinds = {str(entry.timm): (name, entry.timm) for name, entry in every.items() if entry.timm is not None}
    assert len(kinds) > 50
    for name, preprocess in kinds.values():
        theirs = get_pretrained_cfg(name)
        fields = ("interpolation", "mean", "std", "crop_pct", "crop_mode")
        transform = create_transform(theirs.input_size, False, **{field: getattr(theirs, field) for field in fields})
        assert np.array_equal(preprocess(picture), transform(picture).numpy()), name


def test_costs_are_those_that_vitkit_counts() -> None:
    for name in ("vit_base_patch16_224.augreg_in21k_ft_in1k", "deit_tiny_patch16_224.fb_in1k"):
        told, own = facts_of(name), describe(config_for(CATALOG[name].architecture))
        assert told.parameters == own.parameters
        assert told.gmacs == pytest.approx(own.gmacs, rel=0.005)


def test_what_has_no_source_has_no_figure() -> None:
    published: dict[str, float] = {}
    for file in ("timm-results-imagenet.csv", "dinov2-readme.csv"):
        with (ROOT / "benchmarks" / "sources" / file).open(newline="") as text:
            published |= {row["model"]: float(row["top1"]) for row in csv.DictReader(text)}
    assert len(published) == 136
    for row in rows():
        assert bool(row["top1"]) == bool(row["source"]) == bool(row["measured"]), row["name"]
        entry = find(row["name"])
        wanted = entry.top1 if entry is not None and entry.top1 is not None else published.get(row["name"])
        assert (float(row["top1"]) if row["top1"] else None) == wanted, row["name"]
        assert row["measured"] in ("", "linear", "fine-tuned", "trained")
        assert row["gated"] in ("", "yes", "no")
        assert row["gated"] == "no" or (row["hub"] or "/" in row["name"]), "a file at an address is not gated"
    assert sum(bool(row["top1"]) for row in rows()) > 150


def test_the_guide_says_what_the_table_says() -> None:
    guide = (ROOT / "docs" / "guide" / "choosing-weights.md").read_text(encoding="utf-8")
    told = [re.split(r" *\| *", line.strip("| ")) for line in guide.splitlines() if re.match(r"\| `.* %", line)]
    assert len(told) == 17
    for name, size, gmacs, pixels, top1, measured, source in told:
        own, entry = facts_of(name.strip("`")), find_published(name.strip("`"))
        assert entry is not None and own.parameters is not None
        assert (size, gmacs) == (f"{own.parameters / 1e6:.1f} M", f"{own.gmacs:.1f}")
        assert (pixels, top1) == (str(entry.preprocess.size[0]), f"{own.top1:g} %")
        assert (measured, source) == (own.measured, own.source)
    for name in re.findall(r"`([\w]+\.[a-z]\w+)`", guide):
        assert find_published(name) is not None or name.endswith("csv"), name


def test_the_table_is_what_its_program_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import catalog

    by_name = {row["name"]: row for row in rows()}
    assert tuple(rows()[0]) == COLUMNS
    for name in timm_names():
        assert {column: str(value) for column, value in catalog.row_of_tag(name).items()} == by_name[name]
    for entry in CATALOG.values():
        assert {column: str(value) for column, value in catalog.row_of_entry(entry).items()} == by_name[entry.name]
    for name in ("catalog", "published"):
        sys.modules.pop(name, None)


def test_a_tag_is_loaded_from_timm_s_repository_wherever_a_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=1000)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    cfg = get_pretrained_cfg(NAME).to_dict()
    described = {"architecture": "vit_base_patch16_224", "num_classes": 1000, "pretrained_cfg": cfg}
    (tmp_path / "config.json").write_text(json.dumps(described))
    repository: list[str] = []
    monkeypatch.setattr(hub, "fetch_hub", lambda repo, *_: repository.append(repo) or tmp_path)
    classifier = load(NAME)
    assert repository == [f"timm/{NAME}"]
    entry = find_published(NAME)
    assert entry is not None and classifier.preprocess == entry.preprocess
    assert classifier.classes[0] == "tench" and classifier.provenance["weights"] == NAME
    again = load(f"timm/{NAME}")
    assert again.preprocess == classifier.preprocess
    assert torch.equal(*(own.model.state_dict()["cls_token"] for own in (classifier, again)))
    assert repository == [f"timm/{NAME}"] * 2
    begun = blueprint_of(Recipe(weights=NAME), ("a", "b"))
    assert (begun.config.num_classes, begun.preprocess.crop_pct) == (2, 0.9)
    assert vitkit.info(NAME).cost.config.num_classes == 1000
    assert inspect(NAME, use="training").config.layers == 1


def test_a_model_of_timm_s_without_its_tag_is_told_the_tags_and_timm_ahead_of_one_is_its_network() -> None:
    for ask in (load, vitkit.info):
        with refused("weights.source-missing", *tags_of("eva02_tiny_patch14_224")):
            ask("eva02_tiny_patch14_224")
    name = _network_of("timm:vit_base_patch16_clip_224.openai", None)
    assert name is not None and name.startswith("timm:")


def test_what_training_begins_from_is_ungated_permissive_and_the_best_of_its_cost() -> None:
    entry = weights_for("vit_small_patch16_224", "training")
    own = facts_of(entry.name)
    assert own.gated == "no" and entry.licence in PERMISSIVE
    best = facts_of("vit_small_patch16_384.augreg_best_in21k_ft_in1k").top1  # the same run, fine-tuned
    assert best is not None and own.parameters is not None
    for name in names():
        other, theirs = facts_of(name), find_published(name)
        if "augreg" in name:  # of its own family, whose runs timm's table measures anew: 83.80 for 83.73
            continue
        if other.gated == "no" and theirs.licence in PERMISSIVE and other.parameters and other.top1:
            assert other.parameters > 1.1 * own.parameters or other.top1 <= best, name
