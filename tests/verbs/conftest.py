"""The command line beside the functions, and a trained run for both."""

from cli.conftest import Command, Outcome, data, trained, vitkit

__all__ = ["Command", "Outcome", "data", "trained", "vitkit"]
