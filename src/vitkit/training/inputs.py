"""The images of a run and what is known of them (`Inputs`), in memory and in files of the run folder.

Users read these files, and a process that resumes the run. The process that starts a run never reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from vitkit.data.doctor.examine import Finding, read_findings
from vitkit.data.earlier_labels import UNCHANGED, ChangesSinceRuns, changes_since_run
from vitkit.data.seen import PictureRecord, make_record, roles_after_training
from vitkit.data.split_file import (
    groups_from_file,
    groups_to_list,
    images_of_run,
    read_contents,
    split_to_dict,
    table_from_split,
)
from vitkit.data.table import UNLABELLED, ImageTable
from vitkit.evaluation.figures import seen_to_exclude
from vitkit.model_folder import RECORD
from vitkit.system.files import read_bytes, write_bytes, write_json, write_text
from vitkit.system.run_files import CLASS_INDICES, EARLIER_LABELS, FINDINGS, GROUPS, RECIPE, SPLIT
from vitkit.training.lineage import SplitImages
from vitkit.training.recipe import Recipe


@dataclass(frozen=True)
class Inputs:
    """The images of a run and what is known of them."""

    table: ImageTable  # the images with their splits, in the order of split.json
    hash: str  # of split.json
    contents: Mapping[str, str]  # the first bytes of each file's SHA-256, in hexadecimal, by path
    groups: Mapping[str, int]  # the number of each image's group, by path; none for images independent of all others
    findings: tuple[Finding, ...] = ()  # the problems of the data
    earlier: ChangesSinceRuns = UNCHANGED  # the labels that the images had in earlier runs
    record_bytes: bytes | None = None  # the record of the images that the weights will have seen after the run, if any

    @classmethod
    def of(
        cls, part: SplitImages, before: PictureRecord, findings: Iterable[Finding], *, has_labels: bool = True
    ) -> Inputs:
        """Create the inputs of a run from split images.

        `before` is the record of the images that the initial weights have seen, and `has_labels` is whether the
        training uses the labels of the images.
        """
        images, table = part.images, part.images.table
        stored = split_to_dict(table)
        groups = groups_to_list(table, images.groups)
        labels = [table.name_of(i) if has_labels else UNLABELLED for i in range(len(table))]
        roles = roles_after_training(table, images.groups, part.overlap)
        record = before.merge(make_record(images.facts, labels, roles, is_whole=True))
        return cls(
            table=table_from_split(stored, table.storage),
            hash=stored["hash"],
            contents=images.contents,
            groups={path: number for number, paths in enumerate(groups) for path in paths},
            findings=tuple(findings),
            earlier=part.earlier,
            record_bytes=record.to_bytes(),
        )

    @classmethod
    def read(cls, folder: Path) -> Inputs:
        """Read the inputs of a run that another process has started."""
        table = images_of_run(folder / SPLIT)
        record = folder / RECORD
        pictures = read_bytes(record) if record.is_file() else None
        if pictures is not None:
            PictureRecord.from_bytes(pictures, record)  # a damaged one is refused before the training
        return cls(
            table=table,
            hash=split_to_dict(table)["hash"],
            contents=read_contents(folder / SPLIT),
            groups=groups_from_file(folder / GROUPS),
            findings=tuple(read_findings(folder / FINDINGS)),
            earlier=changes_since_run(folder, table),
            record_bytes=pictures,
        )

    @cached_property
    def record(self) -> PictureRecord | None:
        content = self.record_bytes
        return None if content is None else PictureRecord.from_bytes(content, "the record of the run")

    def seen(self, split: str) -> dict[str, str] | None:
        """Return the roles of the images of a split that the weights had seen before, by path; None if unknown."""
        return None if self.record is None else seen_to_exclude(self.record.roles_of(self.contents), split)

    def write(self, folder: Path, recipe: Recipe, *, has_labels: bool = True) -> None:
        """Write the inputs and the recipe into the run folder. The recipe is last: with it, the run can be resumed."""
        write_json(folder / FINDINGS, [asdict(finding) for finding in self.findings])
        if has_labels:
            write_json(folder / CLASS_INDICES, dict(enumerate(self.table.classes)))
        write_json(folder / SPLIT, {**split_to_dict(self.table), "contents": self.contents})
        if self.earlier != UNCHANGED:
            write_json(folder / EARLIER_LABELS, self.earlier.to_dict())
        groups: dict[int, list[str]] = {}
        for path, number in self.groups.items():
            groups.setdefault(number, []).append(path)
        write_json(folder / GROUPS, list(groups.values()))
        if self.record_bytes is not None:
            write_bytes(folder / RECORD, self.record_bytes)
        write_text(folder / RECIPE, recipe.to_toml())
