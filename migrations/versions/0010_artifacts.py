"""Artifacts that machines share, where the database is their store."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """An empty table: who kept artifacts in a directory goes on with it."""
    op.create_table(
        "artifacts",
        sa.Column("name", sa.String(96), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_artifacts")),
    )
