"""Pages and pictures about runs, data sets and comparisons.

Open `evaluation_report.py` first: the page about a run, made of `sections` for readers without scripts and
`report_data` for the interactive views in `static/`. `comparison`, `dataset_report` and `pretraining_report` write the
other pages; `plots` draws figures and `gallery` shows photographs.
"""
