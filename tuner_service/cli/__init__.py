"""The ``tuner`` command."""

from search.children.importing import uncollected

with uncollected():
    from tuner_service.cli.main import main

__all__ = ["main"]
