"""Serve classifiers over HTTP: `vitkit serve` and `vitkit.serve`.

Open `serve.py` first: it starts and stops a server. `guard` checks the origin, token and size of each request. The
routes in `application` parse requests with `questions`. `service` chooses a model and collects pictures into batches
(`batching`). `models` contains the classifiers that compute the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.serving.batching import ClosedError, Computation, FullError, Workers
    from vitkit.serving.guard import Guard, Rules, bound_socket, is_loopback, new_token, rules_for_host, server_config
    from vitkit.serving.models import ServedModel, version_of
    from vitkit.serving.questions import BadRequestError, Upload, fraction_option, integer_option
    from vitkit.serving.questions import merge_options, read_body
    from vitkit.serving.serve import Server
else:
    __getattr__ = lazily(__name__)
