"""Fitting the tensors of another library's network to another set of classes, or to another image size."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vitkit.errors import VitkitError
from vitkit.model.network import anatomy_of
from vitkit.model.network_config import NetworkConfig
from vitkit.weights.adapt import Adapted, Read
from vitkit.weights.match import shapes_of


def adapt_network(
    read: Mapping[str, Read], source: NetworkConfig, target: NetworkConfig, shapes: Mapping[str, torch.Size]
) -> Adapted:
    """From the tensors of `source` to those of `target`, which may have another head and another image size.

    Raises:
        VitkitError: a tensor depends on the image size, which another library's network does not resize.
    """
    adapted = Adapted(dict(read))
    head = anatomy_of(target).head
    if source.num_classes != target.num_classes:
        for name in [name for name in adapted.read if name.startswith(f"{head}.")]:
            if name in shapes:
                adapted.read[name] = lambda name=name: torch.zeros(shapes[name])  # type: ignore[misc]
                adapted.replaced[name] = f"{target.num_classes} classes, zero until it is trained"
            else:
                del adapted.read[name]
                adapted.dropped[name] = "no head was asked for"
    if source.image_size != target.image_size:
        before = shapes_of(source.replace(num_classes=target.num_classes))
        if bound := [name for name in shapes if before.get(name) != shapes[name]]:
            size = "x".join(map(str, source.image_size))
            raise VitkitError(f"{bound[0]} of {target.full_name} is made for {size} pixels: leave image_size as it is")
    return adapted
