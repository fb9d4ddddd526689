"""Serve classifiers over HTTP: `vitkit serve` and `vitkit.serve`.

Open `serve.py` first: it starts and stops a server. `guard` checks the origin, token and size of each request. The
routes in `application` parse requests with `questions`. `service` chooses a model and collects pictures into batches
(`batching`). `models` contains the classifiers that compute the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.serving.batching import ClosedError, FullError, Work, Workers
    from vitkit.serving.guard import MOST_HEAD, Connection, Guard, Listener, Rules, check_token, is_loopback
    from vitkit.serving.guard import keep_others_off, new_token, rules_of
    from vitkit.serving.models import ServedModel, ToExplain, split_name, version_of
    from vitkit.serving.questions import BadRequestError, Upload, merge_options, part_of_one, read_body, whole_number
    from vitkit.serving.serve import Server
    from vitkit.serving.service import Embedded
else:
    __getattr__ = lazily(__name__)
