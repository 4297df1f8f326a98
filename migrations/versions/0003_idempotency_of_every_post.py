"""An Idempotency-Key may have made anything, not a job alone."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """``job_id`` becomes ``made_id``, which refers to no one table."""
    with op.batch_alter_table("idempotency_keys") as batch:
        batch.drop_constraint("fk_idempotency_keys_job_id", type_="foreignkey")
        batch.alter_column("job_id", new_column_name="made_id", existing_type=sa.String(length=40))
