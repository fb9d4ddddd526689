"""Decode every image once, and search for problems, copies and groups."""

from __future__ import annotations

from vitkit.data.doctor.examine import check_scenes, examine
from vitkit.data.picture_store import PictureStore
from vitkit.data.preprocess import Preprocess
from vitkit.data.splits import merge_by_scene
from vitkit.data.table import ImageTable
from vitkit.training.run_folder import Run
from vitkit.training.start import choose_workers, resolve_model


def examine_images(run: Run) -> None:
    """Decode every image, and search for problems. The pictures are kept for the training, if they fit."""
    preprocess = run.blueprint.preprocess
    if run.keeps_pictures:
        run.photographs = keep_pictures(run, run.source, preprocess)
    keep = None if run.photographs is None else run.photographs.add
    diagnosis = run.diagnosis = examine(run.source, preprocess, seek_groups=run.recipe.group_by is None, keep=keep)
    if run.photographs is not None:
        widths, heights = diagnosis.facts.columns("width", "height")
        sizes = zip(diagnosis.table.files(), widths, heights, strict=True)
        run.photographs.sizes = {str(file): (width, height) for file, width, height in sizes}
    if diagnosis.table.classes != run.source.classes:  # a class has no readable image
        run.blueprint, _ = resolve_model(run.recipe, run.fields, diagnosis.table)
        run.recipe = run.blueprint.recipe
    run.groups = tuple(merge_by_scene(diagnosis.table, run.recipe.group_by, diagnosis.twins))
    run.divided_groups = () if run.recipe.group_by is None else tuple(check_scenes(diagnosis.table, run.groups))


def keep_pictures(run: Run, table: ImageTable, preprocess: Preprocess) -> PictureStore | None:
    """Return a store for the pictures of a run; None if they are not kept."""
    workers = choose_workers(run.recipe, preprocess.size)
    processes = run.team.size // run.team.machines
    store = PictureStore(table.files(), preprocess, run.recipe.cache, workers=workers, processes=processes)
    return None if store.kind == "none" else store
