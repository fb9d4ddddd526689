"""The interface to the operating system: files, devices, folders for caches and state, processes and signals.

Open `files.py` first: it writes files completely or not at all, and locks them while a process works on them.
`processes` handles signals and starts processes, `environment` finds devices and folders, and `run_files` names the
files of a run.
"""

from __future__ import annotations

from vitkit.system.lazy import public

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
