"""Jobs have a priority, count the seconds that they hold their device, and say which limit ended them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Jobs that are there have the default priority; what they used was not counted."""
    op.add_column("jobs", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("device_seconds", sa.Double(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("stopped_by", sa.String(16), nullable=True))
