"""Alembic scripts; run from Python by ``tuner_service.db.migrate``."""
