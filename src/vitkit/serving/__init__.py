"""Serve classifiers over HTTP: `vitkit serve` and `vitkit.serve`.

Open `serve.py` first: it starts and stops a server. A request passes `guard`, which checks its origin, token and size.
The routes in `application` read it with `questions`. `service` chooses a model and collects pictures into batches
(`batching`). `models` holds the classifiers that compute the answers.
"""

from __future__ import annotations

from vitkit.system.lazy import public

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
