"""Write a page of mistakes: each image with the regions that speak for its wrong class and for its true one."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from vitkit.data.decode import UnreadableImageError
from vitkit.data.storage import Place
from vitkit.errors import UnansweredError, VitkitError
from vitkit.explanation import draw
from vitkit.explanation.explanation import ON_PAGE, Explainable, explain_classes
from vitkit.explanation.methods import class_specific, methods_for
from vitkit.model.network import Network
from vitkit.system.files import without_place
from vitkit.text.html import image, write_page


def worst_mistakes_page(
    classifier: Explainable, rows: Iterable[tuple[str, str, str]], out: str | Path, method: str = "gradient"
) -> int:
    """Write a gallery of mistakes: each image as it is, where its wrong class comes from, and where its true one.

    Args:
        classifier: the classifier whose mistakes they are.
        rows: path, true class, predicted class; in the order of the page.
        out: the HTML file.
        method: a method that can tell classes apart.

    Returns:
        How many images the page shows; one that cannot be explained is a line with its reason.

    Raises:
        VitkitError: a class is not the classifier's, or the method is unknown or cannot tell classes apart.
    """
    if method not in class_specific():
        raise VitkitError(f"method {method!r} cannot tell two classes apart; take one of {', '.join(class_specific())}")
    tells = methods_for(is_network=isinstance(classifier.model, Network))[method].tells
    body, shown = ["<h1>Mistakes, explained</h1>", f"<p>{escape(tells)}</p>"], 0
    for path, true, predicted in rows:
        body.append(f"<h2>{escape(true)}, taken for {escape(predicted)}</h2>")
        figures = explain_mistake(classifier, path, true, predicted, method)
        if isinstance(figures, str):
            body.append(f"<p>{escape(without_place(path))}: {escape(figures)}</p>")
            continue
        shown += 1
        body.append(f'<div class="row">{"".join(_figure(*figure) for figure in figures)}</div>')
    write_page(Path(out), "Mistakes, explained", body)
    return shown


def explain_mistake(
    classifier: Explainable, path: str | Place, true: str, predicted: str, method: str = "gradient"
) -> list[tuple[str, bytes]] | str:
    """Show a misclassified photograph beside the maps of its wrong and its true class: captions and JPEGs.

    Returns:
        Why there are none, where the photograph cannot be read or explained.

    Raises:
        VitkitError: a class is not the classifier's, or the method is unknown.
    """
    try:
        for_predicted, for_true = explain_classes(classifier, path, (predicted, true), method)
    except (UnreadableImageError, UnansweredError) as error:
        return str(error)
    pictures = {
        without_place(str(path)): draw.fit(for_predicted.photograph, for_predicted.box, ON_PAGE)[0],
        f"what speaks for {predicted} ({for_predicted.probability:.3f})": for_predicted.overlay(method, ON_PAGE),
        f"what speaks for {true} ({for_true.probability:.3f})": for_true.overlay(method, ON_PAGE),
    }
    return [(caption, draw.thumbnail(picture, 480)) for caption, picture in pictures.items()]


def _figure(caption: str, picture: bytes) -> str:
    shown = image(caption, picture, "jpeg")
    return f'<figure class="large">{shown}<figcaption>{escape(caption)}</figcaption></figure>'
