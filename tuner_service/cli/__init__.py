"""The ``tuner`` command."""

from tuner_service.cli.main import main

__all__ = ["main"]
