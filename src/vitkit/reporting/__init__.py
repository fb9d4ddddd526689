"""HTML reports and figures about runs, data sets and comparisons.

Open `evaluation_report.py` first: it writes the page about a run. The page consists of sections, which need no script,
and of interactive views. The views are written in JavaScript (`static/`), and `report_data` provides their data.
`comparison` and `dataset_report` write the other pages. `plots` draws figures and shows photographs.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "comparison": "write_comparison",
        "dataset_report": "write_checkup write_drift",
        "evaluation_report": "confidence headline multi_class_table write_evaluation write_predictions write_report",
        "model_card": "model_card",
        "plots": "Album SIDE save_figure",
        "report_data": "Explained data_of_report lay_out",
    },
)
