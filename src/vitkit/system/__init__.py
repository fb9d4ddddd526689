"""The machine that vitkit runs on: files, devices, folders for caches and state, processes and signals.

Open `files.py` first: files are written completely or not at all, and locked while one process works on them.
`stopping` handles signals and processes, `environment` finds devices and folders, `run_files` names the files of a run.
"""
