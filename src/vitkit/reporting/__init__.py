"""HTML reports and figures about runs, data sets and comparisons.

Open `evaluation_report.py` first: it writes the page about a run. The page consists of sections, which need no script,
and of interactive views. The views are written in JavaScript (`static/`), and `report_data` provides their data.
`comparison` and `dataset_report` write the other pages. `plots` draws figures and shows photographs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.reporting.comparison import draw_lines, pictures_of, pictures_of_experiment
    from vitkit.reporting.comparison import verdict_of_comparison, write_comparison, write_trained_comparison
    from vitkit.reporting.dataset_report import verdict_of_data, write_checkup, write_drift
    from vitkit.reporting.evaluation_report import VIEWS_FOLDER, write_evaluation, write_predictions, write_report
    from vitkit.reporting.model_card import model_card_text
    from vitkit.reporting.plots import SIDE, gallery, save_figure, thumbnails
    from vitkit.reporting.report_data import Explained, data_of_report, lay_out
else:
    __getattr__ = lazily(__name__)
