"""The task queue of many machines: Procrastinate's own tables, on PostgreSQL only."""

from alembic import op

from tuner_service.db.queue_schema import create_queue

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The schema of the pinned version; the embedded engine keeps its queue in memory."""
    create_queue(op.get_bind())
