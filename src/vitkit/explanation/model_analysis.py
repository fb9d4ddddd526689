"""Measure properties of a trained model, as in the paper's Figure 7 and app. D.7, and draw the results.

The colour maps are viridis and cividis. They are perceptually uniform, and readable in grey print and for colour-blind
readers.

Shapes: B images, C channels, L layers, H heads, N tokens, h x w patch grid. All results are numpy arrays.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.explanation.attention import attention_layers, attention_maps, copy_with_attention, unwrap_compiled
from vitkit.explanation.draw import label_mosaic, mosaic, rescale
from vitkit.model.config import ViTConfig
from vitkit.model.vit import Attention, VisionTransformer
from vitkit.text.pages import new_figure, whole_numbers

FloatArray = npt.NDArray[np.float32]
_BATCH = 8  # images whose attention matrices are in memory together
_TINY = 1e-12


def filter_components(model: VisionTransformer, number: int = 28) -> FloatArray:
    """Return the first principal components of the patch embedding's filters (Figure 7, left).

    The mean filter is subtracted first. The sign of a component is arbitrary; here its largest entry is positive.

    Returns:
        Components of length 1 in decreasing order of explained variance, (number, patch height, patch width, C). There
        are fewer than `number` if the model has fewer filters or filter weights.

    Raises:
        VitkitError: the model is a hybrid, whose filters apply to a feature map and cannot be drawn.
    """
    model = unwrap_compiled(model)
    if model.config.stem is not None:
        text = "the patch filters of a hybrid apply to the feature map of a ResNet and cannot be drawn"
        raise VitkitError("explanation.filters-undrawable", text)
    filters = model.patch_embed.proj.weight.detach().double().cpu().numpy()  # (D, C, p, p)
    flat = filters.reshape(len(filters), -1)
    _, _, components = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    components = components[:number]
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)  # (n, 1)
    pictures = (components * np.sign(largest)).reshape(-1, *filters.shape[1:])  # (n, C, p, p)
    return np.ascontiguousarray(pictures.transpose(0, 2, 3, 1), dtype=np.float32)


def position_similarity(model: VisionTransformer) -> FloatArray:
    """Return the cosine similarity of the position embeddings of each pair of patches (Figure 7, middle).

    If each layer adds its own position embeddings, those of the first layer are compared.

    Returns:
        (h, w, h, w). Entry [i, j] contains the similarities of the patch in row i and column j to all patches.

    Raises:
        VitkitError: the model has no position embeddings that are added to the tokens.
    """
    model = unwrap_compiled(model)
    positions = model.positions()
    if positions is None:
        kind = "no positions" if model.config.position == "none" else "relative positions, inside attention"
        text = f"the model has {kind}, so there are no position embeddings to compare"
        raise VitkitError("explanation.positions-missing", text)
    h, w = model.config.grid
    table = positions.detach()[model.config.prefix_tokens :].double().cpu().numpy()  # (h*w, D)
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), _TINY)
    return (table @ table.T).reshape(h, w, h, w).astype(np.float32)


def attention_distance(model: VisionTransformer, images: Tensor) -> FloatArray:
    """Return the mean attention distance of each head in pixels (Figure 7, right).

    The attention distance of a query patch is the mean distance to all patches, weighted by attention (app. D.7). The
    result is averaged over queries and images. Prefix tokens have no position, so they are ignored, and attention to
    the patches is normalised to sum to 1. Distances are between the centres of patches, in pixels of the model's input.

    Args:
        model: the model.
        images: (B, C, height, width), preprocessed.

    Returns:
        (L, H); NaN in convolutional layers.

    Raises:
        VitkitError: there are no images, or no layer has attention.
    """
    config = unwrap_compiled(model).config
    _check_images(images)
    distances = torch.from_numpy(_patch_distances(config))
    layers = attention_layers(config)
    sums = np.full((config.layers, config.heads), np.nan)
    sums[layers] = 0.0
    for batch in torch.split(images, _BATCH):
        for layer, attention in zip(layers, attention_maps(model, batch), strict=True):
            to_patches = attention[:, :, config.prefix_tokens :, config.prefix_tokens :]  # (B, H, h*w, h*w)
            weighted = (to_patches * distances.to(attention)).sum(-1) / to_patches.sum(-1).clamp_min(_TINY)
            sums[layer] += weighted.mean(-1).double().sum(0).cpu().numpy()
    return (sums / len(images)).astype(np.float32)


def uniform_distance(model: VisionTransformer) -> float:
    """Return the `attention_distance` of a head that attends to all patches equally, as a reference."""
    return float(_patch_distances(unwrap_compiled(model).config).mean())


def norms_by_layer(model: VisionTransformer, images: Tensor) -> FloatArray:
    """Return the norm of each token after each layer, before the final normalisation.

    A few patches with very large norms in late layers are artefacts (arXiv 2309.16588).

    Returns:
        (L, B, N), prefix tokens first.
    """
    model = copy_with_attention(unwrap_compiled(model), Attention)  # which is in evaluation mode
    _check_images(images)
    images = images.detach().to(model.patch_embed.proj.weight)
    batches = [model.embed(batch) for batch in torch.split(images, _BATCH)]
    norms = []
    for layer in range(model.config.layers):
        batches = [model.layer(layer, batch) for batch in batches]
        norms.append(torch.cat(batches).float().norm(dim=-1).cpu().numpy())
    return np.stack(norms).astype(np.float32)


def _patch_distances(config: ViTConfig) -> npt.NDArray[np.float64]:
    """Return the distances between the centres of patches in pixels of the input, (h*w, h*w)."""
    h, w = config.grid
    positions = np.stack(np.meshgrid(np.arange(h), np.arange(w), indexing="ij"), axis=-1).reshape(h * w, 2)
    pixels = positions * np.array(config.patch_size) * config.stem_stride
    return np.linalg.norm(pixels[:, None] - pixels[None], axis=-1)


def _check_images(images: Tensor) -> None:
    if len(images) == 0:
        raise VitkitError("explanation.images-too-few", "there are no images; pass at least one")


_AMOUNT, _SIMILARITY = "viridis", "cividis"


def filters(components: FloatArray) -> Figure:
    """Draw the components of the patch embedding's filters, seven in a row (Figure 7, left).

    Each of the components (number, patch height, patch width, C) is scaled to the range from black to white.
    """
    channels = components.shape[-1]
    if channels not in (1, 3):
        text = f"filters over {channels} channels cannot be drawn: expected 1 (grey) or 3 (colours)"
        raise VitkitError("explanation.filters-undrawable", text)
    columns = min(7, len(components))
    rows = -(-len(components) // columns)
    figure = new_figure(max(0.85 * columns, 3.0), 0.85 * rows + 0.5)
    figure.suptitle("Patch filters, principal components", fontsize=10)
    for axis in figure.subplots(rows, columns, squeeze=False).flat:
        axis.axis("off")
    for axis, component in zip(figure.axes, components, strict=False):
        axis.imshow(rescale(component).repeat(3 // channels, axis=-1), interpolation="nearest")
    return figure


def position_grid(similarity: FloatArray) -> Figure:
    """Draw the similarities (h, w, h, w) of each position to all positions as a grid of grids (Figure 7, middle).

    In large grids, only every second (third, ...) position is drawn.
    """
    h, w = similarity.shape[:2]
    step = -(-max(h, w) // 14)  # at most 14 rows and columns, for readability
    rows = np.arange((h - 1) % step // 2, h, step)  # as far from the first as from the last row
    columns = np.arange((w - 1) % step // 2, w, step)
    cells = similarity[np.ix_(rows, columns)]
    figure, axis = mosaic(cells, _SIMILARITY, cell=0.32, limits=(float(similarity.min()), 1.0), extra_width=0.9)
    label_mosaic(axis, cells, rows + 1, columns + 1)  # numbered from 1
    axis.set(xlabel="column of the patch", ylabel="row of the patch")
    axis.set_title("Position embedding similarity", fontsize=10)
    figure.colorbar(axis.images[0], ax=axis, label="cosine similarity", shrink=0.8)
    return figure


def by_head(values: FloatArray, title: str, label: str, reference: float | None = None) -> Figure:
    """Plot values (L, H) for each head by layer (Figure 7, right); NaN is not drawn.

    The value of a head that attends to all patches equally (`reference`) is a dotted line.
    """
    figure = new_figure(5.2, 3.8)
    axis = figure.subplots()
    heads = values.shape[1]
    colours = colormaps[_AMOUNT].resampled(heads) if heads > 1 else colormaps[_AMOUNT]
    for head, column in enumerate(values.T):
        axis.plot(np.arange(len(values)), column, "o", color=colours(head), markersize=5, label=f"head {head}")
    xlabel = "layer"
    highest = float(np.nanmax(values, initial=0))
    if reference is not None:
        axis.axhline(reference, color="#777777", linewidth=0.8, linestyle=":")
        xlabel += "\n(dotted: equal attention to all patches)"
        highest = max(highest, reference)
    axis.set(title=title, xlabel=xlabel, ylabel=label, ylim=(0, 1.06 * highest or None))
    whole_numbers(axis.xaxis)
    axis.grid(alpha=0.25)
    if heads <= 6:
        figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    else:
        scale = figure.colorbar(ScalarMappable(Normalize(-0.5, heads - 0.5), colours), ax=axis, label="head")
        whole_numbers(scale.ax.yaxis)
    return figure


def norms(values: FloatArray, prefix_tokens: int) -> Figure:
    """Draw token norms (L, B, N) by layer, prefix tokens first.

    Drawn are the median, the middle 98 % and the maximum of patches, and the mean of the first prefix token.
    """
    layers = np.arange(len(values))
    patches = values[:, :, prefix_tokens:].reshape(len(values), -1)  # (L, B*h*w)
    low, middle, high = np.percentile(patches, (1, 50, 99), axis=1)
    figure = new_figure(5.2, 3.8)
    axis = figure.subplots()
    colours = colormaps[_AMOUNT]
    axis.fill_between(layers, low, high, color=colours(0.5), alpha=0.3, linewidth=0, label="patches, middle 98 %")
    axis.plot(layers, middle, color=colours(0.5), label="patches, median")
    axis.plot(layers, patches.max(axis=1), ":", color=colours(0.2), label="patches, highest")
    if prefix_tokens:
        axis.plot(layers, values[:, :, 0].mean(axis=1), "--", color=colours(0.8), label="first prefix token, mean")
    axis.set(title="Length of tokens", xlabel="layer", ylabel="Euclidean norm", ylim=(0, None))
    whole_numbers(axis.xaxis)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    return figure
