"""The interface to the operating system: files, devices, folders for caches and state, processes and signals.

Open `files.py` first: it writes files completely or not at all, and locks them while a process works on them.
`processes` handles signals and starts processes, `environment` finds devices and folders, and `run_files` names the
files of a run.

Packages use the function `lazily` of this module to import each of their public names only when it is first used.
Importing one name then does not load the modules of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any


def public_names(package: str) -> dict[str, str]:
    """Return the public names of a package, each with the module that defines it, relative to the package.

    They are the names that the package's `__init__.py` imports for type checkers, under `if TYPE_CHECKING:` and in
    lines such as `from vitkit.model.vit import LayerScale, VisionTransformer`.
    """
    module = sys.modules[package]
    modules: dict[str, str] = {}
    source = module.__loader__.get_data(module.__file__).decode()  # type: ignore[union-attr]  # of a file or an archive
    for line in source.splitlines():
        if line.startswith(f"    from {package}."):
            _, home, _, *names = line.replace(",", "").split()
            modules |= dict.fromkeys(names, home.removeprefix(f"{package}."))
    modules.pop("as", None)  # a word of `from vitkit.data.split import split as split`, which re-exports a name
    return modules


def lazily(package: str, otherwise: Callable[[str], Any] = lambda _: None) -> Callable[[str], Any]:
    """Return a function for a package's `__getattr__` (PEP 562) that imports its `public_names` on first use.

    Args:
        package: the package's `__name__`.
        otherwise: a function that returns the value of any other name, or None if the package has no such name.
    """
    modules: dict[str, str] = {}

    def get(name: str) -> Any:
        if not modules:  # the first call
            modules.update(public_names(package))
        if name == "__all__":
            return sorted(modules)
        if name in modules:
            return getattr(import_module(f"{package}.{modules[name]}"), name)
        if (value := otherwise(name)) is not None:
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


if TYPE_CHECKING:
    from vitkit.system.environment import IS_WINDOWS, STUDIO_PORT, DeviceName, best_precision, cache_folder
    from vitkit.system.environment import choose_device, offline, private, processor_precision, state_folder
    from vitkit.system.files import empty_array, exclusive, exclusive_in, fit_name, from_json, is_empty, is_locked
    from vitkit.system.files import public_path, read_json, read_text, replacing, to_json, write_bytes
    from vitkit.system.files import write_json, write_text
    from vitkit.system.processes import STOP_FILE, Deferral, Worker, detached_options, is_same_process, python_command
    from vitkit.system.processes import request_stop, serve_calls, start_time_of
    from vitkit.system.logger import labelled, log, muted
    from vitkit.system.progress import Progress, Say, ignore, receiver, reporting_to, reporting_within, silent
    from vitkit.system.run_files import EVALUATION, FILES, FOLDS, GROUPS, LABEL_ERRORS, LAST, LOG, METRICS, PICTURES
    from vitkit.system.run_files import PREDICTIONS, RECIPE, REPORT, SPLIT
else:
    __getattr__ = lazily(__name__)
