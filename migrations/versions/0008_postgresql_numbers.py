"""PostgreSQL counts private scalars in 64 bits, as SQLite always did."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A candidate that is rejected for its private scalars may have more than 32 bits count."""
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("trials", "private_scalars", existing_type=sa.Integer(), type_=sa.BigInteger())
