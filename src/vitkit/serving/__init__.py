"""Serve classifiers over HTTP: `vitkit serve` and `vitkit.serve`.

Open `serve.py` first: it starts a server and stops it. A request passes `guard` (who may ask, and how much), the routes
in `application`, which read it with `questions`, and `service`, which chooses a model and collects pictures into
batches (`batching`). `models` holds the classifiers that answer.
"""
