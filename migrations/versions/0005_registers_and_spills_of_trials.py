"""Registers and spills of a trial's code stand beside it, so that trials are filtered and sorted by them."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows that are there have neither: they are of CPU code, whose facts name no registers."""
    op.add_column("trials", sa.Column("registers", sa.Integer(), nullable=True))
    op.add_column("trials", sa.Column("spill_bytes", sa.Integer(), nullable=True))
