"""The interface to the operating system: files, devices, folders for caches and state, processes and signals.

Open `files.py` first: it writes files completely or not at all, and locks them while a process works on them.
`processes` handles signals and starts processes, `environment` finds devices and folders, and `run_files` names the
files of a run.

With the function `public` of this module, packages import each of their public names only when it is first used.
Importing one name then does not load the modules of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def importer(
    package: str, homes: Mapping[str, str], otherwise: Callable[[str], Any] = lambda _: None
) -> Callable[[str], Any]:
    """Return a function for a package's `__getattr__` (PEP 562) that imports names on first use.

    Args:
        package: the package's `__name__`.
        homes: a mapping from each name to the module that defines it, relative to the package.
        otherwise: a function that returns the value of any other name, or None if the package has no such name.
    """

    def get(name: str) -> Any:
        if name not in homes:
            if (value := otherwise(name)) is not None:
                return value
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get


def public(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the `__all__` and the `__getattr__` of a package whose names are imported on first use.

    Args:
        package: the package's `__name__`.
        modules: a mapping from each module to its public names, separated by spaces.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    return sorted(homes), importer(package, homes)


__all__, __getattr__ = public(
    __name__,
    {
        "environment": "best_precision cache_folder choose_device processor_precision state_folder",
        "files": (
            "empty_array exclusive exclusive_in fitting from_json is_empty is_held replacing to_json write_json "
            "write_text"
        ),
        "progress": "Progress reporting_to silent",
        "run_files": "EVALUATION FILES LABEL_ERRORS LAST PREDICTIONS REPORT SPLIT",
        "processes": "Deferral Worker answer_questions birth_of python",
    },
)
