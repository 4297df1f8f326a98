"""Alembic environment: runs on the connection that ``tuner_service.db.migrate`` gives it, in that transaction."""

from alembic import context

from tuner_service.db import (
    models_artifacts,  # noqa: F401  # tables of the metadata
    models_catalogs,  # noqa: F401
    models_deployment,  # noqa: F401
    models_workers,  # noqa: F401
)
from tuner_service.db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
context.run_migrations()
