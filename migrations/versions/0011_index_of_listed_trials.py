"""One index that holds what lists of trials are filtered and sorted by, so that a page reads no other trial."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

LISTED = (
    "id",
    "outcome",
    "stage",
    "reason",
    "width",
    "is_default",
    "in_space",
    "median_seconds",
    "private_scalars",
    "score",
    "registers",
    "spill_bytes",
    "finished_at",
)


def upgrade() -> None:
    """SQLite has no columns beside the key: there it finds a job's trials in order."""
    op.create_index("ix_trials_listed", "trials", ["job_id", "case_id", "ordinal"], postgresql_include=list(LISTED))
