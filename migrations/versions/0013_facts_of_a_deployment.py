"""What every process of a deployment has to agree on, and where a worker's tasks are in the queue."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is recorded yet: the next process to start says what holds from now on."""
    op.create_table(
        "deployment_facts",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.String(32), nullable=False),
        sa.Column("recorded_by", sa.String(320), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_deployment_facts")),
    )
    op.add_column("workers", sa.Column("queue_worker", sa.BigInteger(), nullable=True))
