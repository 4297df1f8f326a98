"""``python -m tuner_service.cli``: the same as ``tuner``."""

from tuner_service.cli.main import main

main()
