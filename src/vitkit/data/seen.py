"""The record of the pictures that weights have been trained on, and the search for these pictures in other data.

A run creates the record when it starts, and stores it with the weights: next to them in a model folder, or inside a
converted or exported file. Every run that starts from these weights extends the record. The entry of a picture consists
of its role (train, val or test), its label, the digest of its file, a 16 x 16 thumbnail in about 300 bytes, and up to
96 keypoints of 12 bytes (docs/decisions/0013-what-weights-have-seen.md).

A picture is recognised if it is the same file under any name, or a copy that was resized, recompressed, altered or
mirrored (docs/decisions/0009-duplicates.md). A mirror image in another class is not recognised.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import numpy as np
import numpy.typing as npt

from vitkit.data.doctor.altered import Appearance, ends_of
from vitkit.data.doctor.duplicates import Kind, SearchDepth, cosines, find_copies_of_known
from vitkit.data.doctor.keypoints import MOST
from vitkit.data.file_facts import THUMBNAIL, FactDatabase, Facts, FactTable, scan
from vitkit.data.table import UNLABELLED, ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import empty_array, from_json, to_json
from vitkit.system.progress import progress

# From the lowest to the highest role: the picture did not influence the weights, selected them, or trained them.
ROLES = ("test", "val", "train")
DIGEST = 16  # bytes of a file's SHA-256 that are kept
_FORMAT = 1
_PIXELS = THUMBNAIL**2
_TO_YCC = np.array([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]], np.float32)
_MIN_STEPS = np.array([1.0, 8.0, 8.0], np.float32)  # in grey levels; smaller steps do not help to distinguish pictures
_CHUNK = 1024  # the number of thumbnails that are processed at a time
_ROWS = 64  # the number of coefficients that are written at a time: the bytes of a line of a processor's cache
# The fields of a record that are stored as they are.
_ARRAYS = ("digests", "roles", "labels", "scales", "counts", "words", "places", "aspects")
_MAX_TEXT = 64 * 2**20  # characters; the header of a safetensors file may have 100 million


@dataclass(frozen=True)
class PictureRecord:
    """A record of n pictures. A picture that was used with several labels has one entry per label."""

    digests: npt.NDArray[np.uint8]  # the first 16 bytes of each file's SHA-256, (n, 16)
    # (n,), indices into `ROLES`. If several runs used a picture, its role is the highest: train, then val, then test.
    roles: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int32]  # (n,), indices into `names`
    names: tuple[str, ...]  # the distinct labels as text, with the classes of a multi-label picture joined by `;`
    scales: npt.NDArray[np.float16]  # the means of each thumbnail's channels, then their quantisation steps, (n, 6)
    codes: npt.NDArray[np.int8]  # quantised cosine coefficients of each thumbnail, (n, 768), or (0, 768) without them
    is_whole: bool  # False if training started from weights without a record, whose pictures are unknown
    counts: npt.NDArray[np.uint8]  # the number of keypoints of each picture, (n,), or (0,) without thumbnails
    words: npt.NDArray[np.uint64]  # the keypoints of all pictures, picture by picture, as in `altered.Appearance`
    places: npt.NDArray[np.uint16]
    aspects: npt.NDArray[np.float32]  # width / height, (n,); 0 in records without keypoints

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def has_thumbnails(self) -> bool:
        return len(self.codes) == len(self)

    @property
    def has_keypoints(self) -> bool:
        return len(self.aspects) == len(self) and bool((self.aspects > 0).all())

    @property
    def seen(self) -> int:
        """Return the number of pictures that were used to train or select the weights (train and val)."""
        return int((self.roles > ROLES.index("test")).sum())

    def role_of(self) -> dict[bytes, str]:
        """Return the role of each picture by the digest of its file."""
        return {digest.tobytes(): ROLES[role] for digest, role in zip(self.digests, self.roles.tolist(), strict=True)}

    def roles_of(self, contents: Mapping[str, str]) -> dict[str, str | None]:
        """Return the role of each file by path (None if it is not in the record), given its digest in hexadecimal."""
        role_of = self.role_of()
        return {path: role_of.get(bytes.fromhex(digest)) for path, digest in contents.items()}

    def label_of(self, index: int) -> str:
        return self.names[self.labels[index]]

    def thumbnails(self) -> npt.NDArray[np.uint8]:
        """Decode the thumbnails (n, 16, 16, 3) in RGB, which are exact enough to recognise copies."""
        result = np.empty((len(self.codes), THUMBNAIL, THUMBNAIL, 3), np.uint8)
        basis, to_rgb = cosines(), np.linalg.inv(_TO_YCC).T.astype(np.float32)
        for span in _spans(len(result)):  # the inverse of `_encode_thumbnails`
            means, steps = self.scales[span, :3].astype(np.float32), self.scales[span, 3:].astype(np.float32)
            spectrum = self.codes[span].reshape(-1, 3, THUMBNAIL, THUMBNAIL) * steps[:, :, None, None]
            channels = basis.T @ spectrum @ basis + means[:, :, None, None]  # (n, 3, 16, 16)
            result[span] = np.round(np.moveaxis(channels, 1, -1) @ to_rgb).clip(0, 255).astype(np.uint8)
        return result

    def appearance(self) -> Appearance:
        """Return the keypoints and thumbnails in the form in which `doctor.altered` compares pictures."""
        aspects = np.where(self.aspects > 0, self.aspects, 1).astype(np.float64)
        return Appearance(self.words, self.places, ends_of(self.counts), aspects, self.thumbnails())

    def without_thumbnails(self) -> PictureRecord:
        """Return the record without thumbnails and keypoints. Hashes, roles and labels remain."""
        empty = {name: getattr(self, name)[:0] for name in ("scales", "codes", "counts", "aspects")}
        return replace(self.without_keypoints(), **empty)

    def without_keypoints(self) -> PictureRecord:
        """Return the record without keypoints."""
        no_counts, no_aspects = np.zeros_like(self.counts), np.zeros_like(self.aspects)
        return replace(self, counts=no_counts, words=self.words[:0], places=self.places[:0], aspects=no_aspects)

    def merge(self, later: PictureRecord) -> PictureRecord:
        """Combine this record with a later one.

        A picture that is in both records gets its labels from the later record, and the higher of its two roles. If
        only one of the two records has thumbnails, and this record is not empty, the result has neither thumbnails nor
        keypoints.
        """
        if not len(self):
            return replace(later, is_whole=self.is_whole and later.is_whole)
        later_rows: dict[bytes, list[int]] = {}  # by digest
        for i, digest in enumerate(later.digests):
            later_rows.setdefault(digest.tobytes(), []).append(i)
        rest = [i for i, digest in enumerate(self.digests) if digest.tobytes() not in later_rows]
        roles = later.roles.copy()
        for digest, role in zip(self.digests, self.roles, strict=True):
            for i in later_rows.get(digest.tobytes(), ()):
                roles[i] = max(roles[i], role)
        names = tuple(dict.fromkeys((*later.names, *self.names)))
        number = {name: i for i, name in enumerate(names)}
        new_number = np.array([number[name] for name in self.names], np.int32)
        if self.has_thumbnails and later.has_thumbnails:
            old, new, rest_with_thumbnails = self, later, rest
        else:
            old, new, rest_with_thumbnails = self.without_thumbnails(), later.without_thumbnails(), []
        is_kept = np.repeat(np.isin(np.arange(len(old.counts)), rest_with_thumbnails), old.counts)  # for each keypoint
        return PictureRecord(
            digests=np.concatenate([later.digests, self.digests[rest]]),
            roles=np.concatenate([roles, self.roles[rest]]),
            labels=np.concatenate([later.labels, new_number[self.labels[rest]] if rest else self.labels[:0]]),
            names=names,
            is_whole=self.is_whole and later.is_whole,
            words=np.concatenate([new.words, old.words[is_kept]]),
            places=np.concatenate([new.places, old.places[is_kept]]),
            **{
                name: np.concatenate([getattr(new, name), getattr(old, name)[rest_with_thumbnails]])
                for name in ("scales", "codes", "counts", "aspects")
            },
        )

    def to_bytes(self) -> bytes:
        """Return the record as the bytes of a compressed .npz file, which includes checksums."""
        about = to_json({"format": _FORMAT, "names": self.names, "is_whole": self.is_whole})
        arrays = {"about": np.frombuffer(about.encode(), np.uint8), **{name: getattr(self, name) for name in _ARRAYS}}
        file = io.BytesIO()
        # Level 1 takes less than half of the time of the default, for 2 % more bytes.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            # Store the codes as (768, n): the zeros of high frequencies then lie next to each other, which compresses
            # better. Write a few rows at a time, because the codes of a million pictures take 768 MB.
            shape = self.codes.shape[::-1]
            header = {"descr": np.lib.format.dtype_to_descr(self.codes.dtype), "fortran_order": False, "shape": shape}
            with archive.open("codes.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for start in range(0, shape[0], _ROWS):
                    member.write(np.ascontiguousarray(self.codes[:, start : start + _ROWS].T).tobytes())
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, source: object) -> PictureRecord:
        """Read a record from the bytes that `to_bytes` returned; `source` names the origin of the bytes in messages.

        Raises:
            VitkitError: the bytes are damaged, or a later version of vitkit wrote them.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                about = from_json(file["about"].tobytes())
                if about["format"] > _FORMAT:
                    raise VitkitError(
                        "data.record-too-new",
                        f"the record of training pictures in {source} was written by a later version of vitkit: "
                        "upgrade vitkit",
                    )
                record = cls(
                    names=tuple(about["names"]),
                    is_whole=bool(about["is_whole"]),
                    codes=np.ascontiguousarray(file["codes"].T),
                    **{name: file[name] for name in _ARRAYS},
                )
            record._check()
        except VitkitError:
            raise
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError, OSError) as error:
            raise VitkitError(
                "data.record-damaged",
                f"the record of training pictures in {source} is damaged: {error}; restore {source}, or write it again",
            ) from error
        return record

    def _check(self) -> None:
        n = len(self.digests)
        shapes = [
            (self.digests.shape, (n, DIGEST)),
            (self.roles.shape, (n,)),
            (self.labels.shape, (n,)),
            (self.scales.shape, (len(self.codes), 6)),
            (self.codes.shape, (len(self.codes), 3 * _PIXELS)),
            (self.counts.shape, (len(self.codes),)),
            (self.aspects.shape, (len(self.codes),)),
            (self.words.shape, (int(self.counts.sum(dtype=np.int64)),)),
            (self.places.shape, (len(self.words), 2)),
        ]
        wrong = [f"{actual} in place of {expected}" for actual, expected in shapes if actual != expected]
        if wrong or len(self.codes) not in (0, n):
            raise ValueError(f"its parts do not fit together: {', '.join(wrong) or len(self.codes)}")
        if n and (self.roles.max() >= len(ROLES) or self.labels.max() >= len(self.names) or self.labels.min() < 0):
            raise ValueError("it refers to roles or labels that do not exist")
        dtypes = [array.dtype.str for array in (self.counts, self.words, self.places, self.aspects)]
        if dtypes != ["|u1", "<u8", "<u2", "<f4"] or self.counts.max(initial=0) > MOST:
            raise ValueError("its keypoints are damaged")
        if not (np.isfinite(self.aspects) & (self.aspects >= 0)).all():
            raise ValueError("it has pictures without width or height")


def make_record(
    facts: Sequence[Facts], labels: Sequence[str], roles: Sequence[str], *, is_whole: bool
) -> PictureRecord:
    """Make the record of the readable images of a run.

    Args:
        facts: the `Facts` of each image.
        labels: the class name of each image, or its class names joined by `;`.
        roles: the role of each image: train, val or test.
        is_whole: whether these are all pictures that the weights have been trained on.
    """
    names = tuple(dict.fromkeys(labels))
    number = {name: i for i, name in enumerate(names)}
    numbers = np.array([number[label] for label in labels], np.int32)
    table = FactTable.of(facts)
    packed = b"".join(digest[:DIGEST] for digest in table.column("digest"))
    digests = np.frombuffer(packed, np.uint8).reshape(-1, DIGEST)
    _, content = np.unique(digests.view(f"V{DIGEST}")[:, 0], return_inverse=True)  # equal for identical files
    role_of_content = np.zeros(len(digests), np.uint8)
    np.maximum.at(role_of_content, content, np.array([ROLES.index(role) for role in roles], np.uint8))
    # Keep the first image of each pair of a content and a label.
    _, first = np.unique(content * max(1, len(names)) + numbers, return_index=True)
    order = np.sort(first)
    chosen, parts = table.take(order), list[Appearance]()
    scales = np.empty((len(order), 6), np.float16)
    codes = empty_array((len(order), 3 * _PIXELS), "int8")
    for span in _spans(len(order)):
        part = Appearance.of(chosen[span])
        scales[span], codes[span] = _encode_thumbnails(part.pixels)
        parts.append(replace(part, pixels=part.pixels[:0].copy()))  # a view would keep all pixels in memory
    return PictureRecord(
        digests=digests[order],
        roles=role_of_content[content[order]],
        labels=numbers[order],
        names=names,
        scales=scales,
        codes=codes,
        is_whole=is_whole,
        counts=np.concatenate([np.diff(part.ends) for part in parts]).astype(np.uint8),
        words=np.concatenate([part.words for part in parts]),
        places=np.concatenate([part.places for part in parts]),
        aspects=np.concatenate([part.aspects for part in parts]).astype(np.float32),
    )


def encode_record(data: bytes, max_length: int = _MAX_TEXT) -> str:
    """Encode a record, the bytes of `PictureRecord.to_bytes`, as text.

    If it has more than `max_length` characters, keypoints are left out, and thumbnails too if this is not enough.
    """
    text = base64.b64encode(data).decode()
    if len(text) > max_length:
        record = PictureRecord.from_bytes(data, "this model")
        for smaller in (record.without_keypoints(), record.without_thumbnails()):
            text = base64.b64encode(smaller.to_bytes()).decode()
            if len(text) <= max_length:
                break
    return text


def decode_record(text: str, source: object) -> bytes:
    """Decode the text that `encode_record` returned. `source` names its origin in messages."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise VitkitError(
            "data.record-damaged",
            f"the record of training pictures in {source} is damaged: {error}; restore {source}, or write it again",
        ) from error


def _spans(n: int) -> Iterator[slice]:
    # While a thumbnail is processed, its coefficients in float32 take 12 kB. There is a slice even if n is 0.
    return (slice(start, start + _CHUNK) for start in range(0, max(n, 1), _CHUNK))


def _encode_thumbnails(pixels: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
    """Return the means and steps (n, 6) and the cosine coefficients (n, 768) of thumbnails (n, 16, 16, 3).

    The quantisation step of a channel is a hundredth of the norm of the channel after its mean is subtracted. No
    coefficient exceeds this norm, so every quantised coefficient fits into a byte. The decoded grey values correlate
    with the original ones by at least 0.9985, and colours differ by at most 5 of 255 levels (measured on 2,500
    flowers).
    """
    n, side = len(pixels), THUMBNAIL
    basis = cosines()
    # Products of two large matrices take a third of the time of n products of small ones.
    channels = (pixels.astype(np.float32).reshape(-1, 3) @ _TO_YCC.T).reshape(n, _PIXELS, 3).transpose(0, 2, 1)
    rows = (channels.reshape(-1, side) @ basis.T).reshape(n, 3, side, side)
    spectrum = (rows.swapaxes(2, 3).reshape(-1, side) @ basis.T).reshape(n, 3, _PIXELS)  # frequency along x, then y
    means = spectrum[:, :, 0] / side
    spectrum[:, :, 0] = 0
    norm = np.sqrt(np.einsum("ncf,ncf->nc", spectrum, spectrum))
    steps = np.maximum(norm / 100, _MIN_STEPS).astype(np.float16)
    spectrum /= steps.astype(np.float32)[:, :, None]
    codes = np.rint(spectrum, out=spectrum).astype(np.int8).reshape(n, 3, side, side).swapaxes(2, 3)
    return np.hstack([means.astype(np.float16), steps]), codes.reshape(n, 3 * _PIXELS)


@dataclass(frozen=True)
class Overlap:
    """The result of searching a picture record for the images of a table.

    The role of an image is that of the identical file in the record, or else the highest role of its copies.

    `looked_for` is the extent of the search: `altered` if it covered all kinds of copies, `near` if it did not cover
    altered copies, and `exact` if it covered only identical files. The search is reduced if the images are too similar
    to one another, as those from a fixed camera, or if the record has no thumbnails or no keypoints.
    """

    roles: tuple[str | None, ...]  # None if the record contains neither the file nor a copy
    kinds: tuple[Kind | None, ...]  # how each image was recognised
    copy_roles: tuple[frozenset[str], ...]  # the role of the identical file, or else the roles of all copies
    relabelled: frozenset[int] = frozenset()  # images whose identical file is in the record, but with other labels
    looked_for: SearchDepth = "altered"

    @property
    def known(self) -> int:
        return sum(role is not None for role in self.roles)

    def seen(self) -> list[int]:
        """Return the indices of the images that were used to train or select the weights (train and val)."""
        return [i for i, role in enumerate(self.roles) if role in ("train", "val")]

    def take(self, indices: Sequence[int]) -> Overlap:
        """Return the result for the images at these indices only."""
        return Overlap(
            tuple(self.roles[i] for i in indices),
            tuple(self.kinds[i] for i in indices),
            tuple(self.copy_roles[i] for i in indices),
            frozenset(new for new, i in enumerate(indices) if i in self.relabelled),
            self.looked_for,
        )


def find_overlap(
    record: PictureRecord,
    table: ImageTable,
    facts: Sequence[Facts],
    progress: Callable[[int, int], None] | None = None,
) -> Overlap:
    """Search a record for every image of a table, given the `Facts` of each. All images must be readable.

    `progress` receives the number of comparisons done and their total.
    """
    if not len(record):
        n = len(facts)
        return Overlap((None,) * n, (None,) * n, (frozenset(),) * n)

    # Identical files.
    role_of = record.role_of()
    fact_table = FactTable.of(facts)
    digests = [digest[:DIGEST] for digest in fact_table.column("digest")]
    labels_of: dict[bytes, set[str]] = {}  # the labels in the record, by digest
    for j, digest in enumerate(record.digests):
        labels_of.setdefault(digest.tobytes(), set()).add(record.label_of(j))
    relabelled = set()
    for i, digest in enumerate(digests):
        if digest in labels_of and labels_of[digest].isdisjoint((table.name_of(i), UNLABELLED)):
            relabelled.add(i)
    roles: list[str | None] = [role_of.get(digest) for digest in digests]
    kinds: list[Kind | None] = [None if role is None else "exact" for role in roles]
    copy_roles: list[set[str]] = [set() if role is None else {role} for role in roles]

    # Copies, which are other files.
    rest = [i for i, role in enumerate(roles) if role is None]
    looked_for: SearchDepth = "altered"
    if rest and not record.has_thumbnails:
        looked_for = "exact"
    elif rest:
        appearance = Appearance.of(fact_table.take(rest))
        pairs, looked_for = find_copies_of_known(appearance, record.appearance(), progress)
        if looked_for == "altered" and not record.has_keypoints:
            looked_for = "near"
        for number, j, kind in pairs:
            i, role = rest[number], ROLES[record.roles[j]]
            if kind == "mirrored" and record.label_of(j) not in (table.name_of(i), UNLABELLED):
                continue  # a mirror image in another class counts as another picture
            copy_roles[i].add(role)
            kinds[i] = min(kind, kinds[i] or kind, key=get_args(Kind).index)  # the one that `Kind` lists first
            roles[i] = highest_role(role, roles[i])
    return Overlap(
        roles=tuple(roles),
        kinds=tuple(kinds),
        copy_roles=tuple(map(frozenset, copy_roles)),
        relabelled=frozenset(relabelled),
        looked_for=looked_for,
    )


def search_readable_images(record: PictureRecord, table: ImageTable) -> tuple[ImageTable, Overlap]:
    """Search a picture record for the readable images of a table. Return these images and the result of the search.

    Files that vitkit has not examined before are read.
    """
    facts = _read_facts(table)
    readable = [i for i, error in enumerate(facts.column("error")) if error is None]
    rows = table.take(readable)
    return rows, find_overlap(record, rows, facts.take(readable), partial(progress, "comparing images"))


def read_digests(table: ImageTable) -> dict[str, str]:
    """Return the digest of each readable image by its path."""
    facts = _read_facts(table)
    rows = zip(table.paths, facts.column("digest"), facts.column("error"), strict=True)
    return {path: digest[:DIGEST].hex() for path, digest, error in rows if error is None}


def _read_facts(table: ImageTable) -> FactTable:
    with FactDatabase() as database:
        return scan(table.files(), database, partial(progress, "reading images"))


def highest_role(*roles: str | None) -> str | None:
    """Return the highest of some roles. From high to low, the order is train, val, test, None."""
    known = [role for role in roles if role is not None]
    return max(known, key=ROLES.index, default=None)


def inherit_splits(overlap: Overlap, groups: Sequence[int]) -> tuple[list[str | None], list[int]]:
    """Assign each image the split in which it was used for the weights, and find images with conflicting splits.

    - An image whose identical file is in the record with the same label gets the recorded role as its split.
    - An image whose identical file is not in the record gets the split of its other copies in the record, and of its
      group.
    - An image whose identical file is in the record with another label gets the split of its group. However, if this
      split is lower than the recorded role (from high to low: train, val, test), the image counts as conflicting,
      because results on the lower split would be too good.

    Images with the same number in `groups` must be in the same split. The result is the split of each image, or None if
    it may be in any split or has conflicting splits, and the indices of the images with conflicting splits.
    """
    states = []  # whether the file of an image is in the record
    for i, kind in enumerate(overlap.kinds):
        if kind != "exact":
            states.append("new")
        else:
            states.append("relabelled" if i in overlap.relabelled else "same label")
    roles_of = defaultdict[tuple[str, int], set[str]](set)  # of the copies of a group's images, by state and group
    for state, group, roles in zip(states, groups, overlap.copy_roles, strict=True):
        roles_of[state, group].update(roles)
    kept: list[str | None] = []
    conflicting = []
    for i, (state, group, role) in enumerate(zip(states, groups, overlap.roles, strict=True)):
        if state == "same label":
            kept.append(role)
            continue
        fixed, relabelled, copies = (roles_of[s, group] for s in ("same label", "relabelled", "new"))
        if relabelled and not fixed:
            # No image determines the split of this group, so the whole group gets the highest role.
            kept.append(highest_role(*relabelled, *copies))
            continue
        splits = fixed | copies if state == "new" else fixed
        split = next(iter(splits), None)
        if len(splits) > 1 or highest_role(role, split) != split:
            kept.append(None)
            conflicting.append(i)
        else:
            kept.append(split)
    return kept, conflicting


def roles_after_training(table: ImageTable, groups: Sequence[int], overlap: Overlap | None) -> list[str]:
    """Return the role of each image after training on a split table.

    The role is the highest of the image's split, the splits of its group, and the image's role before this training. A
    model cannot be tested on an image if it was trained on a copy, or on another image of the same scene.

    Args:
        table: the images, each with a split.
        groups: a number for each image, which is the same for copies of one picture and images of one scene.
        overlap: the roles of the images before this training; None if the weights have no record.
    """
    of_group: dict[int, str | None] = {}
    for group, split in zip(groups, table.splits, strict=True):
        of_group[group] = highest_role(of_group.get(group), split)
    before = overlap.roles if overlap is not None else (None,) * len(table)
    return [highest_role(of_group[group], role) or "test" for group, role in zip(groups, before, strict=True)]
