"""Import the names of a package on first use, so that importing one name does not load the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def importer(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a function for a package's `__getattr__` (PEP 562) that imports names on first use.

    Args:
        package: the package's `__name__`.
        homes: the module of each name, relative to the package.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get


def public(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the `__all__` and the `__getattr__` of a package whose names are imported on first use.

    Args:
        package: the package's `__name__`.
        modules: the public names of each module, separated by spaces.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    return sorted(homes), importer(package, homes)
