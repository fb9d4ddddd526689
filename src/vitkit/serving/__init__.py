"""Serve classifiers over HTTP: `vitkit serve` and `vitkit.serve`.

Open `serve.py` first: it starts and stops a server. `guard` checks the origin, token and size of each request. The
routes in `application` parse requests with `questions`. `service` chooses a model and collects pictures into batches
(`batching`). `models` contains the classifiers that compute the answers.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "batching": "ClosedError FullError Work Workers",
        "guard": "Guard Rules check_token is_loopback new_token rules_of",
        "models": "ServedModel ToExplain split_name version_of",
        "questions": "BadRequestError Upload part_of_one read_body settle_options whole_number",
        "serve": "Server",
        "service": "Embedded",
    },
)
