"""The machine that vitkit runs on: files written whole or not at all, the cache, signals."""
