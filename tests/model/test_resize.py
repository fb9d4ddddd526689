"""Positions and patch kernels are fitted to other sizes exactly as each convention's own code does it."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from tiny import largest_difference
from vitkit.model import PositionResize
from vitkit.weights import resize_grid, resize_patch

Grid = tuple[int, int]
CONVENTIONS: tuple[PositionResize, ...] = get_args(PositionResize)
SIZES: list[tuple[Grid, Grid]] = [
    *(((7, 7), (12, 12)), ((14, 14), (7, 28)), ((24, 24), (14, 14)), ((16, 16), (37, 37)), ((1, 1), (3, 5))),
    *(((5, 5), (1, 1)), ((3, 5), (6, 4)), ((14, 9), (7, 20)), ((1, 6), (4, 6))),
    ((2, 8), (4, 4)),  # a square hidden in an oblong: the old grid must not be guessed from the number of patches
]

sides = st.integers(1, 20)
grids = st.tuples(sides, sides)
conventions = st.sampled_from(CONVENTIONS)


def by_name(value: object) -> str | None:
    return "x".join(map(str, value)) if isinstance(value, tuple) else None


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def positions(grid: Grid, dim: int = 3) -> Tensor:
    return noise(grid[0] * grid[1], dim)


def assert_as(ours: Tensor, theirs: Tensor) -> None:
    assert largest_difference(ours.double(), theirs.double()) <= 1e-5


def scipy_zoom(table: Tensor, old: Grid, new: Grid, **kwargs: Any) -> Tensor:
    factors = (new[0] / old[0], new[1] / old[1], 1)
    zoomed = ndimage.zoom(table.reshape(*old, -1).numpy(), factors, order=1, **kwargs)
    assert zoomed.shape[:2] == new
    return torch.from_numpy(zoomed).flatten(0, 1)


@settings(max_examples=40)
@given(old=grids, new=grids)
def test_reference_is_scipys_zoom_at_any_size(old: Grid, new: Grid) -> None:
    table = positions(old)
    assert_as(resize_grid(table, old, new, "reference"), scipy_zoom(table, old, new, mode="nearest"))


def test_reference_reaches_the_edge_where_scipys_rounding_oversteps_it() -> None:
    """scipy looks for the last row at 27.000000000000004, finds nothing there and writes zeros."""
    old, new = (28, 28), (14, 14)
    table = positions(old)
    ours = resize_grid(table, old, new, "reference").view(*new, -1)
    theirs = scipy_zoom(table, old, new).view(*new, -1)
    assert_as(ours[:-1, :-1], theirs[:-1, :-1])
    assert_as(ours[-1, -1], table[-1])


def ask_timm(table: Tensor, old: Grid, new: Grid) -> Tensor:
    pos_embed = pytest.importorskip("timm.layers.pos_embed")
    return pos_embed.resample_abs_pos_embed(table[None], list(new), list(old), num_prefix_tokens=0)[0]


@pytest.mark.parametrize(("old", "new"), SIZES, ids=by_name)
def test_timm_is_resample_abs_pos_embed(old: Grid, new: Grid) -> None:
    table = positions(old)
    assert_as(resize_grid(table, old, new, "timm"), ask_timm(table, old, new))


def cubic(distance: np.ndarray) -> np.ndarray:
    """Keys' family of kernels (1981) at a = -0.75, where antialiased resizing has -0.5."""
    a, x = -0.75, np.abs(distance)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def cubic_matrix(coordinates: np.ndarray, before: int) -> np.ndarray:
    """(after, before): how much of each old place is in each new one; places beyond the edge are the edge's."""
    matrix = np.zeros((len(coordinates), before))
    for row, place in enumerate(coordinates):
        for tap in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
            matrix[row, np.clip(tap, 0, before - 1)] += cubic(place - tap)
    return matrix


def aligned_corners(before: int, after: int) -> np.ndarray:
    return np.arange(after) * ((before - 1) / (after - 1) if after > 1 else 0.0)


def half_pixels(before: int, after: int) -> np.ndarray:
    return (np.arange(after) + 0.5) * before / after - 0.5


def offset_half_pixels(before: int, after: int) -> np.ndarray:
    return (np.arange(after) + 0.5) * before / (after + 0.1) - 0.5


FORMULAS: dict[PositionResize, Callable[[int, int], np.ndarray]] = {
    "torchvision": aligned_corners,
    "huggingface": half_pixels,
    "dinov2": offset_half_pixels,
}


@pytest.mark.parametrize("convention", FORMULAS)
@pytest.mark.parametrize(("old", "new"), SIZES, ids=by_name)
def test_unfiltered_bicubics_are_their_formula(convention: PositionResize, old: Grid, new: Grid) -> None:
    table = 0.5 * positions(old)  # torch's places are float32: near 36 they are 2e-6 off, times the steepest slope
    down, across = (
        cubic_matrix(FORMULAS[convention](before, after), before) for before, after in zip(old, new, strict=True)
    )
    expected = np.einsum("ih,jw,hwd->ijd", down, across, table.reshape(*old, -1).double().numpy())
    assert_as(resize_grid(table, old, new, convention), torch.from_numpy(expected).flatten(0, 1))


def test_dinov2_gives_the_size_asked_for_whatever_its_scale_rounds_to() -> None:
    for before in range(1, 41):
        table = torch.zeros(before, 1)
        for after in range(1, 61):
            assert resize_grid(table, (before, 1), (after, 1), "dinov2").shape == (after, 1)


def test_no_two_conventions_agree() -> None:
    table = positions((24, 24))
    resized = [resize_grid(table, (24, 24), (14, 10), convention) for convention in CONVENTIONS]
    for k, one in enumerate(resized):
        for other in resized[:k]:
            assert largest_difference(one, other) > 0.01


@settings(max_examples=40)
@given(convention=conventions, grid=grids, dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_an_unchanged_grid_changes_no_bit(convention: PositionResize, grid: Grid, dtype: torch.dtype) -> None:
    table = positions(grid).to(dtype)
    same = resize_grid(table, grid, grid, convention)
    assert same.dtype == dtype
    assert torch.equal(same, table)


@settings(max_examples=40)
@given(convention=conventions, old=grids, new=grids, leading=st.lists(st.integers(1, 3), max_size=2))
def test_dimensions_are_so_many_tables(convention: PositionResize, old: Grid, new: Grid, leading: list[int]) -> None:
    tables = noise(*leading, old[0] * old[1], 4)
    resized = resize_grid(tables, old, new, convention)
    assert resized.shape == (*leading, new[0] * new[1], 4)
    each = zip(resized.reshape(-1, *resized.shape[-2:]), tables.reshape(-1, *tables.shape[-2:]), strict=True)
    for ours, table in each:
        torch.testing.assert_close(ours, resize_grid(table, old, new, convention), rtol=0, atol=1e-6)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_the_sums_are_float32_the_type_is_kept_and_the_given_table_left_alone(convention: PositionResize) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        table = noise(2, 1 + 30, 4).to(dtype)
        before = table.clone()
        resized = resize_grid(table[:, 1:], (5, 6), (8, 3), convention)  # a view, as behind a class token
        assert resized.dtype == dtype
        expected = resize_grid(before[:, 1:].float(), (5, 6), (8, 3), convention).to(dtype)
        assert torch.equal(resized, expected)
        resized.zero_()
        assert torch.equal(table, before)


def kernels(size: Grid, dtype: torch.dtype = torch.float32) -> Tensor:
    return 0.2 * noise(6, 3, *size, dtype=dtype)


def shrink_or_grow(patches: Tensor, size: Grid) -> Tensor:
    return F.interpolate(patches, size, mode="bicubic", antialias=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(((16, 16), (32, 32)), ((14, 14), (16, 16)), ((32, 32), (16, 16)), ((16, 8), (12, 20)), ((4, 4), (1, 1))),
    ],
    ids=by_name,
)
def test_resized_kernels_are_timms(old: Grid, new: Grid) -> None:
    patch_embed = pytest.importorskip("timm.layers.patch_embed")
    kernel = kernels(old)
    ours = resize_patch(kernel, new)
    assert ours.shape == (6, 3, *new)
    assert_as(ours, patch_embed.resample_patch_embed(kernel, list(new)))


@settings(max_examples=40)
@given(old=st.tuples(st.integers(1, 12), st.integers(1, 12)), new=st.tuples(st.integers(1, 12), st.integers(1, 12)))
def test_a_resized_kernel_answers_as_nearly_as_any_could(old: Grid, new: Grid) -> None:
    """What it gets wrong on unit patches is orthogonal to everything that another kernel could change.

    So a grown kernel answers grown patches exactly as the old one answered the originals.
    """
    kernel = kernels(old, torch.float64)
    pixels = torch.eye(old[0] * old[1], dtype=torch.float64).view(-1, 1, *old)
    resized = shrink_or_grow(pixels, new).flatten(1)  # (p*q, p'*q')
    wrong = resize_patch(kernel, new).flatten(2) @ resized.T - kernel.flatten(2)  # (D, C, p*q)
    assert (wrong @ resized).abs().max() <= 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_kernel_keeps_its_type_and_is_computed_exactly(dtype: torch.dtype) -> None:
    kernel = kernels((4, 6)).to(dtype)
    resized = resize_patch(kernel, (6, 4))
    assert resized.dtype == dtype
    assert torch.equal(resized, resize_patch(kernel.double(), (6, 4)).to(dtype))
    assert torch.equal(resize_patch(kernel, (4, 6)), kernel)
