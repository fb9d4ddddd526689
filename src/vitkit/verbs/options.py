"""The options that several verbs share. Each option is declared here, once, with its type, its default and its help.

Functions take them as objects, and commands as flags: `vitkit.predict(model, photos, promises=Promises(reject=0.5))`
is `vitkit predict MODEL PHOTOS --reject 0.5`. The recipe of a training is such a class, too (`training/recipe.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from vitkit.inference.backends.registry import PRECISIONS, backend_names
from vitkit.system.environment import DeviceName
from vitkit.text.arguments import Between, Options

if TYPE_CHECKING:
    BackendName: TypeAlias = str  # the choices are only known at run time
    PrecisionName: TypeAlias = str
else:
    BackendName, PrecisionName = Literal[backend_names()], Literal[PRECISIONS]


@dataclass(frozen=True, kw_only=True)
class Compute(Options):
    """Where and how the model computes.

    It is the argument `compute` of `vitkit.predict` and of other functions.

        >>> import vitkit
        >>> vitkit.Compute(precision="float32", batch_size=8).batch_size
        8
    """

    backend: BackendName = "auto"
    """The library that runs the model; auto is the fastest installed one whose start-up time is worthwhile."""
    precision: PrecisionName = "auto"
    """float32, bfloat16, or auto for bfloat16 if the hardware can multiply bfloat16 numbers, else float32; float16 is
    for GPUs without bfloat16.
    """
    batch_size: Annotated[int | None, Between(1)] = None
    """The number of images in a batch; by default a value that suits the backend."""
    device: DeviceName = "auto"
    """The device to compute on: cpu, cuda, mps, or auto for a CUDA GPU if there is one, else the CPU."""


@dataclass(frozen=True, kw_only=True)
class Promises(Options):
    """What is promised about labels, and which labels are withheld for it.

    It is the argument `promises` of `vitkit.predict` and `vitkit.evaluate`.

        >>> import vitkit
        >>> vitkit.Promises(accuracy=0.99).accuracy
        0.99
    """

    reject: Annotated[float | None, Between(0, 1)] = None
    """Withhold labels whose confidence is below this value from 0 to 1."""
    accuracy: Annotated[float | None, Between(0, 1)] = None
    """Withhold uncertain labels, so that at least this fraction of the others is right, such as 0.99. The threshold is
    chosen on the validation images of the run. The fraction is reached with a probability of 95 %.
    """
    coverage: Annotated[float | None, Between(0, 1)] = None
    """Add a column with a set of classes, which contains the true class for at least this fraction of the images, such
    as 0.95. It requires enough validation images in the run. Some sets are empty if the model is right more often than
    requested.
    """
    unknown: Annotated[float | None, Between(0, 1)] = None
    """Give the label ? to unfamiliar images: those whose value in the column familiar is at most this number, such as
    0.01. They look less familiar than nearly all validation images of the run. On average, at most this fraction of the
    images of known classes also gets the label ?.
    """


@dataclass(frozen=True, kw_only=True)
class Names(Options):
    """The classes of a model of CLIP or SigLIP, which needs no training for them.

    See `vitkit.zero_shot`.

        >>> import vitkit
        >>> vitkit.Names(classes=("daisy", "rose")).classes
        ('daisy', 'rose')
    """

    classes: str | tuple[str, ...] | None = None
    """Names of classes for a model of CLIP or SigLIP, such as 'daisy, rose', or a .txt file with a name a line."""
    templates: tuple[str, ...] = ()
    """With `classes`, a sentence with {} in place of the class name; the vectors of several sentences are averaged. By
    default the published sentences.
    """
