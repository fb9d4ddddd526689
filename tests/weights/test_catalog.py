"""The catalog against what timm, torchvision and transformers publish about the same weights."""

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from huggingface_hub.utils import validate_repo_id
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform
from timm.models import deit, get_pretrained_cfg, vision_transformer, vision_transformer_hybrid
from torchvision import models

import vitkit
from refusals import refused
from tiny import some
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.model import VisionTransformer, config_for
from vitkit.profiling import describe
from vitkit.training import Recipe, blueprint_of
from vitkit.weights import (
    CATALOG,
    COLUMNS,
    FILE,
    cache_path,
    facts_of,
    find,
    inspect,
    is_hub_id,
    load,
    names,
    search,
    suggest,
    tags_of,
    weights_for,
)
from vitkit.weights import download as hub
from vitkit.weights.loading import inspect_source
from weights.spoiling import write_shapes

MODULES = (
    *("vision_transformer", "deit", "eva", "beit", "naflexvit", "vision_transformer_hybrid"),
    "vision_transformer_relpos",
)
ONLY_TIMMS = [name for name in names() if name not in CATALOG]
CLASSES = {"imagenet1k": 1000, "imagenet21k": 21843, "none": 0}


def test_an_entry_says_where_it_is_once_and_is_plausible() -> None:
    for name, entry in CATALOG.items():
        assert entry.name == name and find(name) is entry
        assert (entry.url is None) != (entry.hub is None)
        if entry.hub:
            assert entry.name == entry.hub and is_hub_id(entry.hub)
        else:
            assert not is_hub_id(entry.name)
        assert entry.licence in ("Apache-2.0", "BSD-3-Clause", "CC-BY-NC-4.0")
        assert re.fullmatch(r"2\d(0[1-9]|1[0-2])\.\d{5}", entry.paper)
        assert entry.top1 is None or (entry.classes == "imagenet1k" and 70 < entry.top1 < 90)
        assert entry.sha256 is None or re.fullmatch(r"[0-9a-f]{8}|[0-9a-f]{64}", entry.sha256)
        named = re.search(r"-([0-9a-f]{8})\.pth$", entry.url or "")
        assert entry.sha256 == (named[1] if named else None)
    urls = {entry.url for entry in CATALOG.values() if entry.url} | {"https://a.org/x?v=1", "https://a.org/x?v=2"}
    assert len({cache_path(url) for url in urls}) == len(urls) > 70, "no two files share a place in the cache"


def test_an_architecture_is_a_model_of_that_size_and_of_those_classes() -> None:
    for entry in CATALOG.values():
        if "dinov2" in entry.architecture:  # LayerScale, registers, a giant: no name stands for them
            with refused("model.name-unknown"):
                config_for(entry.architecture)
            continue
        config = config_for(entry.architecture)
        assert config.image_size == entry.preprocess.size, entry.name
        assert entry.classes == "none" or config.num_classes == CLASSES[entry.classes], entry.name
        assert config.distill_token == ("distilled" in entry.name)


@pytest.fixture(scope="module")
def timm_cfgs() -> dict[str, Any]:
    """timm's `PretrainedCfg` by its full name."""
    modules = (deit, vision_transformer, vision_transformer_hybrid)
    defaults = [own for module in modules for own in module.default_cfgs.items()]
    return {f"{model}.{tag}": cfg for model, default in defaults for tag, cfg in default.cfgs.items()}


def test_where_timm_has_the_name_it_means_the_same_weights(timm_cfgs: dict[str, Any]) -> None:
    shared = [entry for name, entry in CATALOG.items() if name in timm_cfgs]
    assert len(shared) > 60
    for entry in shared:
        theirs = timm_cfgs[entry.name]
        assert theirs.mean == entry.preprocess.mean and theirs.std == entry.preprocess.std, entry.name
        assert theirs.input_size[1:] == entry.preprocess.size, entry.name
        assert theirs.license == entry.licence.lower(), entry.name
        if ".orig_" not in entry.name:  # timm has converted copies of these
            assert theirs.url == entry.url, entry.name
            assert theirs.num_classes == CLASSES[entry.classes], entry.name
    for tag in ("augreg_in21k", "augreg_in21k_ft_in1k", "sam_in1k", "dino", "mae", "lvd142m", "fb_in1k"):
        own = {name for name, cfg in timm_cfgs.items() if name.endswith(f".{tag}") and cfg.url and "deit3" not in name}
        assert own == {name for name in CATALOG if name.endswith(f".{tag}")}, "nothing that timm has is left out"


def test_whether_timm_s_pixels_are_others_is_said_of_every_name(timm_cfgs: dict[str, Any]) -> None:
    others: dict[bool, int] = {True: 0, False: 0}
    for name, entry in CATALOG.items():
        theirs, own = timm_cfgs.get(name), entry.preprocess
        assert (entry.timm is None) == (theirs is None), name
        if theirs is None:
            continue
        assert theirs.crop_mode == "center" and entry.timm.fit == "crop", name
        assert (theirs.crop_pct, theirs.interpolation) == (entry.timm.crop_pct, entry.timm.interpolation), name
        assert (theirs.mean, theirs.std) == (entry.timm.mean, entry.timm.std), name
        assert theirs.input_size[1:] == entry.timm.size, name
        if entry.timm != own:
            others[own.fit != "crop"] += 1
    assert len(CATALOG) == 129
    assert others == {True: 41, False: 15}  # the whole picture is squashed (Google's); or another part is cropped


def test_every_vit_of_torchvision_is_here_with_its_pixels_and_accuracy() -> None:
    by_url = {entry.url: entry for entry in search("*.tv_*")}
    every = [weights for name in models.list_models(include="vit_*") for weights in models.get_model_weights(name)]
    assert by_url.keys() == {weights.url for weights in every}
    for weights in every:
        entry, theirs = by_url[weights.url], weights.transforms()
        ours = entry.preprocess
        assert entry.top1 == weights.meta["_metrics"]["ImageNet-1K"]["acc@1"]
        assert ours.size == tuple(theirs.crop_size * 2) and ours.fit == "crop"
        assert ours.short_side == theirs.resize_size[0]
        assert ours.interpolation == theirs.interpolation.value
        assert ours.mean == tuple(theirs.mean) and ours.std == tuple(theirs.std)
        assert config_for(entry.architecture).image_size == weights.meta["min_size"]
        assert ("SWAG" in weights.meta.get("license", "")) == (entry.licence == "CC-BY-NC-4.0")
        with torch.device("meta"):
            model = VisionTransformer(config_for(entry.architecture))
        assert sum(p.numel() for p in model.parameters()) == weights.meta["num_params"]


def test_pixels_of_google_s_and_facebook_s_repositories_are_those_of_transformers() -> None:
    processors: list[Any] = [transformers.ViTImageProcessor(), transformers.DeiTImageProcessor()]
    facebook = [own for own in search("deit*_224.fb_in1k") if own.name in CATALOG]
    for theirs, entries in zip(processors, (search("google/*-224*"), facebook), strict=True):
        for ours in (entry.preprocess for entry in entries):
            crops = bool(theirs.do_center_crop)
            size = theirs.crop_size if crops else theirs.size
            assert ours.fit == ("crop" if crops else "squash")
            assert ours.size == (size["height"], size["width"])
            assert not crops or ours.short_side == theirs.size["height"]
            assert ours.interpolation == {2: "bilinear", 3: "bicubic"}[int(theirs.resample)]
            assert crops or (list(ours.mean), list(ours.std)) == (list(theirs.image_mean), list(theirs.image_std))


def test_deit_s_files_and_repositories_are_the_same_weights() -> None:
    files = [own for own in search("deit_*.fb_in1k") if own.name in CATALOG]
    assert len(files) == 8
    for file in files:
        repository = CATALOG[f"facebook/{file.architecture.replace('_', '-')}"]
        assert replace(repository, name=file.name, hub=None, url=file.url, sha256=file.sha256) == file


def test_reference_files_are_squashed_and_scaled_to_one() -> None:
    for entry in (own for tag in ("augreg", "augreg_best", "orig") for own in search(f"*.{tag}_in21k*")):
        size = entry.preprocess.size
        assert entry.preprocess == Preprocess(size=size, fit="squash", interpolation="bilinear")
        assert str(entry.url).startswith("https://storage.googleapis.com/vit_models/")
        assert (entry.classes == "imagenet21k") == entry.name.endswith("_in21k")


def test_the_nine_recommended_files_and_their_fine_tunings_are_here() -> None:
    pretrained, tuned = search("*.augreg_best_in21k"), search("*.augreg_best_in21k_ft_in1k")
    assert len(pretrained) == len(tuned) == 9
    for before, after in zip(pretrained, tuned, strict=True):
        assert str(after.url).startswith(str(before.url).removesuffix(".npz") + "--imagenet2012-steps_20k-lr_0.0")
        assert str(after.url).endswith("-res_384.npz")
    accuracies = {Path(str(entry.url)).name.split("-i21k")[0]: entry.top1 for entry in tuned}
    published = {"L_16": 85.59, "B_16": 85.49, "S_16": 83.73, "Ti_16": 78.22, "B_32": 83.59, "S_32": 79.58}
    assert accuracies == {**published, "R50_L_32": 85.99, "R26_S_32": 83.85, "R_Ti_16": 75.40}


def test_searching_takes_a_pattern_or_a_part_and_close_names_are_suggested() -> None:
    assert search()[: len(CATALOG)] == list(CATALOG.values())
    assert [entry.name for entry in search()] == names()
    assert {entry.name for entry in search("mae")} == {entry.name for entry in search("*mae*")} != set()
    assert search("nothing like it") == []
    assert "vit_base_patch16_224.augreg_in21k" in suggest("vit_base_patch16_224.augreg_in21")
    assert "google/vit-base-patch16-224" in suggest("google/vit-base-patch16_224")
    assert suggest("?") == ""


def test_what_counts_as_a_repository_of_the_hub() -> None:
    for name in ("timm/vit_base_patch16_224.augreg_in21k", "google/vit-base-patch16-224-in21k", "owner/a"):
        assert is_hub_id(name)
        validate_repo_id(name)
    others = (
        *("vit_base_patch16_224", "a/b/c", "/root", "./model", "../model", "~/model", "runs/", "a\\b/c", "a b/c", ""),
        *("weights/vit.pth", "weights/ViT-B_16.npz", "C:/model", "https://example.org", "a/b\n", "a/b..c", "a/b--c"),
    )
    assert [name for name in others if is_hub_id(name)] == []


def test_what_exists_is_a_path_a_mistyped_run_is_no_such_folder_and_hf_names_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(repository: str, *_: object) -> Path:
        asked.append(repository)
        raise VitkitError("weights.download-failed", "asked the hub")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "fetch_hub", fetch)
    assert is_hub_id("google/vit")
    assert not is_hub_id("runs/digits-9"), "a run is none where there is no run at all"
    with refused("weights.source-missing", "runs/digits-9"):
        load("runs/digits-9")
    (tmp_path / "runs" / "digits-1").mkdir(parents=True)
    (tmp_path / "google").mkdir()
    assert not is_hub_id("google/vit"), "a mistyped path is no name on the hub"
    with refused("weights.source-missing", "runs/digits-9"):
        load("runs/digits-9")
    for path in ("google/my-vit", tmp_path / "vit"):
        with refused("weights.source-missing", str(path)):
            load(path)
    assert asked == []
    for name in ("hf:google/my-vit", "somebody/vit", "hf:runs/digits-9"):
        with refused("weights.download-failed", "asked the hub"):
            load(name)
    assert asked == ["google/my-vit", "somebody/vit", "runs/digits-9"]


LARGEST = 3_000_000_000  # parameters; files of larger models cannot be mapped everywhere
TAGS = [tag for module in MODULES for tag in timm.list_models(module=module, pretrained=True, include_tags=True)]
FEW = {
    *("vit_giantopt_patch16_siglip_256", "aimv2_1b_patch14_224", "test_vit3", "vit_base_patch16_clip_quickgelu_224"),
    *("vit_base_patch16_rpn_224", "vit_base_patch16_gap_224", "vit_base_patch16_sapiens2"),
}
GELU = {"GELU": "erf", "GELUTanh": "tanh", "GeluTanh": "tanh", "QuickGELU": "quick"}


def folder_of(model: Any, name: str, path: Path) -> Path:
    """As the hub has it, of tensors without numbers."""
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    write_shapes(shapes, path / "model.safetensors")
    pixels = {key: model.pretrained_cfg[key] for key in ("input_size", "mean", "std", "interpolation", "crop_pct")}
    described = {"architecture": name, "global_pool": model.global_pool, "pretrained_cfg": pixels}
    (path / "config.json").write_text(json.dumps(described))
    return path


def test_pixels_that_no_patch_reads_are_told(tmp_path: Path) -> None:
    with torch.device("meta"):
        theirs = timm.create_model("vit_so400m_patch14_siglip_384")
    found = inspect(folder_of(theirs, "vit_so400m_patch14_siglip_384", tmp_path))
    assert found.config.image_size == (378, 378)
    assert found.report.assumed["image_size"].startswith("378x378, to which photographs are resized")


@pytest.mark.parametrize("name", some(dict.fromkeys(tag.partition(".")[0] for tag in TAGS), FEW))
def test_what_no_tensor_tells_is_timms(tmp_path: Path, name: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name)
    if sum(parameter.numel() for parameter in theirs.parameters()) > LARGEST:
        pytest.skip("too large")
    try:
        config = inspect(folder_of(theirs, name, tmp_path)).config
    except VitkitError:
        assert re.search(r"_(sapiens2|xp|18x2|mci|dwee|dlittle|pwee|dpwee)_?", name), name
        return
    block = theirs.blocks[0]
    assert config.heads == block.attn.num_heads
    assert (config.qk_scale or config.head_size**-0.5) == pytest.approx(block.attn.scale)
    assert {config.norm_eps} == {
        part.eps for key, part in theirs.named_modules() if key.startswith("blocks.") and hasattr(part, "eps")
    }
    assert config.pool == {"avg": "gap"}.get(theirs.global_pool, theirs.global_pool)
    assert config.norm == ("res-post" if "Post" in type(block).__name__ else "pre")
    if config.mlp_kind == "mlp":
        act = block.mlp.act
        assert config.gelu == ("tanh" if getattr(act, "approximate", "") == "tanh" else GELU[type(act).__name__])
    if config.pool == "map":
        assert (config.pool_heads or config.heads) == theirs.attn_pool.num_heads
    assert (config.rotary == "none") == (getattr(theirs, "rope", None) is None)


ROOT = Path(__file__).parents[2]
NAME = "vit_base_patch16_224.augreg2_in21k_ft_in1k"
PERMISSIVE = ("Apache-2.0", "MIT", "BSD-3-Clause")


def rows() -> list[dict[str, str]]:
    with FILE.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def test_every_tag_of_timm_is_known() -> None:
    assert timm.__version__ == "1.0.31", "write the table anew: python benchmarks/catalog.py"
    theirs = set(TAGS)
    assert len(theirs) == 463
    assert theirs - set(names()) == set()
    assert set(ONLY_TIMMS) == theirs - set(CATALOG)
    assert len(names()) == len(set(names())) == len(rows())


def test_what_only_timm_computes_is_refused_before_it_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch_hub", None)
    unknown = [name for name in ONLY_TIMMS if re.match("vit_(dwee|dlittle|pwee|dpwee)_", name)]
    assert len(unknown) == 6
    for name in unknown:
        with refused("weights.name-unknown", f"timm:{name}"):
            load(name)


def test_an_entry_says_what_timm_says() -> None:
    licences = {"apache-2.0": "Apache-2.0", "mit": "MIT", "cc-by-nc-4.0": "CC-BY-NC-4.0", None: ""}
    for name in ONLY_TIMMS:
        entry: Any = find(name)
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
    every = {name: find(name) for name in names()}
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
        own, entry = facts_of(name.strip("`")), find(name.strip("`"))
        assert entry is not None and own.parameters is not None
        assert (size, gmacs) == (f"{own.parameters / 1e6:.1f} M", f"{own.gmacs:.1f}")
        assert (pixels, top1) == (str(entry.preprocess.size[0]), f"{own.top1:g} %")
        assert (measured, source) == (own.measured, own.source)
    for name in re.findall(r"`([\w]+\.[a-z]\w+)`", guide):
        assert find(name) is not None or name.endswith("csv"), name


def test_the_table_is_what_its_program_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import catalog

    by_name = {row["name"]: row for row in rows()}
    assert tuple(rows()[0]) == COLUMNS
    for name in ONLY_TIMMS:
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
    entry = find(NAME)
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
    assert inspect_source("timm:vit_base_patch16_clip_224.openai").network is not None


def test_what_training_begins_from_is_ungated_permissive_and_the_best_of_its_cost() -> None:
    entry = weights_for("vit_small_patch16_224", "training")
    own = facts_of(entry.name)
    assert own.gated == "no" and entry.licence in PERMISSIVE
    best = facts_of("vit_small_patch16_384.augreg_best_in21k_ft_in1k").top1  # the same run, fine-tuned
    assert best is not None and own.parameters is not None
    for name in names():
        other, theirs = facts_of(name), find(name)
        if "augreg" in name:  # of its own family, whose runs timm's table measures anew: 83.80 for 83.73
            continue
        if other.gated == "no" and theirs.licence in PERMISSIVE and other.parameters and other.top1:
            assert other.parameters > 1.1 * own.parameters or other.top1 <= best, name
