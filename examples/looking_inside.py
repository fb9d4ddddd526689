"""Draw the pictures of docs/guide/looking-inside.md: `python examples/looking_inside.py DIGITS_RUN DEIT_WEIGHTS [OUT]`.

DIGITS_RUN is the run folder of `vitkit train digits`; DEIT_WEIGHTS is DeiT-Ti/16 (`deit_tiny_patch16_224`). The
photographs are the two sample images of scikit-learn.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_images

from vitkit.explanation import draw
from vitkit.explanation import model_analysis as anatomy
from vitkit.explanation import model_analysis as model_figures
from vitkit.weights import load

CHINA, FLOWER = (Image.fromarray(picture) for picture in load_sample_images().images)
NINE = Path(__file__).parents[1] / "docs" / "pictures" / "nine.png"


def save(path: Path, figure: Figure) -> None:
    """Save a figure as a JPEG or PNG, by the suffix of the path."""
    with Image.open(io.BytesIO(draw.to_png(figure))) as picture:
        picture.convert("RGB").save(path, quality=82, optimize=True)


def main(run: str, weights: str, out: Path) -> None:
    """Draw all pictures into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    digits, deit = load(run), load(weights)

    for name, classifier, picture in (("digit", digits, NINE), ("flower", deit, FLOWER)):
        result = classifier.explain(picture, "all")
        save(out / f"{name}-methods.jpg", draw.side_by_side(result.photograph, result.maps, result.box, result.title))
        assert result.heads is not None
        save(out / f"{name}-heads.png", draw.head_sheet(result.heads, result.layers, "Each head's attention"))

    answers = [deit.explain(CHINA, "gradient", name) for name in ("palace", "pirate")]
    maps = {f"{answer.target} {answer.probability:.2f}": answer.maps["gradient"] for answer in answers}
    maps["either, by rollout"] = deit.explain(CHINA, "rollout").maps["rollout"]
    save(out / "china-classes.jpg", draw.side_by_side(CHINA, maps, answers[0].box, "gradient, for two classes"))

    images = torch.stack([torch.from_numpy(deit.preprocess(picture)) for picture in (CHINA, FLOWER)])
    save(out / "filters.png", model_figures.filters(anatomy.filter_components(deit.model)))
    save(out / "positions.png", model_figures.position_grid(anatomy.position_similarity(deit.model)))
    distance = anatomy.attention_distance(deit.model, images)
    save(
        out / "attention-distance.png",
        model_figures.by_head(distance, "Attention distance, DeiT-Ti/16", "pixels of the input"),
    )
    print("lowest head of each layer:", np.round(distance.min(axis=1)).astype(int).tolist())
    save(
        out / "token-norms.png",
        model_figures.norms(anatomy.norms_by_layer(deit.model, images), deit.model.config.prefix_tokens),
    )


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3] if len(sys.argv) == 4 else "docs/pictures/looking-inside"))
