"""The first schema"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "allowlist_versions",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("good", sa.SmallInteger(), nullable=False),
        sa.Column("problems", sa.Text(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=True),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "version", name=op.f("pk_allowlist_versions")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "audit",
        sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_recent", "audit", ["upstream", "at"], unique=False)
    op.create_table(
        "changes",
        sa.Column("change_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=True),
        sa.Column("delivery", sa.Text(), nullable=True),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("change_id", name=op.f("pk_changes")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "deliveries",
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("head_sha", sa.Text(), nullable=True),
        sa.Column("ref", sa.Text(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("body_bytes", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("guid", "upstream", name=op.f("pk_deliveries")),
    )
    op.create_index(
        "ix_deliveries_body_age",
        "deliveries",
        ["received_at"],
        unique=False,
        sqlite_where=sa.text("body IS NOT NULL"),
        postgresql_where=sa.text("body IS NOT NULL"),
    )
    op.create_index("ix_deliveries_recent", "deliveries", ["upstream", "received_at"], unique=False)
    op.create_table(
        "dispatches",
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=True),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("head_sha", sa.Text(), nullable=True),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("test", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("unsure", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("attempted_at", sa.BigInteger(), nullable=True),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.Column("superseded_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("delivery", "upstream", "downstream", name=op.f("pk_dispatches")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_dispatches_backend", "dispatches", ["upstream", "downstream", "created_at"], unique=False
    )
    op.create_index("ix_dispatches_pull", "dispatches", ["upstream", "number"], unique=False)
    op.create_table(
        "effects",
        sa.Column("effect_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("delivery", sa.Text(), nullable=True),
        sa.Column("payload", sa.LargeBinary(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unsure", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("first_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("effect_id", name=op.f("pk_effects")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_effects_claimed",
        "effects",
        ["upstream", "target"],
        unique=False,
        sqlite_where=sa.text("state = 'claimed'"),
        postgresql_where=sa.text("state = 'claimed'"),
    )
    op.create_index(
        "ix_effects_lane",
        "effects",
        ["upstream", "target", "lane", "effect_id"],
        unique=False,
        sqlite_where=sa.text("state IN ('waiting', 'claimed')"),
        postgresql_where=sa.text("state IN ('waiting', 'claimed')"),
    )
    op.create_index(
        "ix_effects_over",
        "effects",
        ["finished_at"],
        unique=False,
        sqlite_where=sa.text("state IN ('done', 'cancelled')"),
        postgresql_where=sa.text("state IN ('done', 'cancelled')"),
    )
    op.create_index(
        "ix_effects_parked",
        "effects",
        ["upstream", "finished_at"],
        unique=False,
        sqlite_where=sa.text("state = 'parked'"),
        postgresql_where=sa.text("state = 'parked'"),
    )
    op.create_index(
        "ix_effects_queue",
        "effects",
        ["upstream", "target", "due_at"],
        unique=False,
        sqlite_where=sa.text("state IN ('waiting', 'claimed')"),
        postgresql_where=sa.text("state IN ('waiting', 'claimed')"),
    )
    op.create_table(
        "jobs",
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("reported_name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("conclusion", sa.Text(), nullable=True),
        sa.Column("first_conclusion", sa.Text(), nullable=True),
        sa.Column("disputed_conclusion", sa.Text(), nullable=True),
        sa.Column("late", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("late_start", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("disputed", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("superseded", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("unsigned", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("opened_by", sa.Text(), nullable=True),
        sa.Column("closed_by", sa.Text(), nullable=True),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("head_sha", sa.Text(), nullable=True),
        sa.Column("workflow_name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("artifact_url", sa.Text(), nullable=True),
        sa.Column("check_run_text", sa.Text(), nullable=True),
        sa.Column("environment", sa.Text(), nullable=True),
        sa.Column("in_progress_at", sa.BigInteger(), nullable=False),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("silent_at", sa.BigInteger(), nullable=False),
        sa.Column("swept_at", sa.BigInteger(), nullable=True),
        sa.Column("queue_s", sa.Double(), nullable=True),
        sa.Column("execution_s", sa.Double(), nullable=True),
        sa.Column("tests_passed", sa.Integer(), nullable=True),
        sa.Column("tests_failed", sa.Integer(), nullable=True),
        sa.Column("tests_skipped", sa.Integer(), nullable=True),
        sa.Column("tests_total", sa.Integer(), nullable=True),
        sa.Column("failed_tests", sa.Text(), nullable=True),
        sa.Column("failed_tests_cut", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("trusted", sa.Text(), nullable=False),
        sa.Column("untrusted", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "delivery",
            "upstream",
            "downstream",
            "workflow",
            "run_id",
            "attempt",
            "job_name",
            name=op.f("pk_jobs"),
        ),
    )
    op.create_index("ix_jobs_backend", "jobs", ["upstream", "downstream", "in_progress_at"], unique=False)
    op.create_index(
        "ix_jobs_running",
        "jobs",
        ["silent_at"],
        unique=False,
        sqlite_where=sa.text("state = 'in_progress'"),
        postgresql_where=sa.text("state = 'in_progress'"),
    )
    op.create_table(
        "pulls",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        sa.Column("previous_sha", sa.Text(), nullable=True),
        sa.Column("head_at", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("is_open", sa.SmallInteger(), nullable=False),
        sa.Column("draft", sa.SmallInteger(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("base_ref", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "number", name=op.f("pk_pulls")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "repositories",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=True),
        sa.Column("owner_id", sa.BigInteger(), nullable=True),
        sa.Column("confirmed", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("bound_at", sa.BigInteger(), nullable=True),
        sa.Column("installation_id", sa.BigInteger(), nullable=True),
        sa.Column("suspended_at", sa.BigInteger(), nullable=True),
        sa.Column("alarm", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("upstream", "downstream", name=op.f("pk_repositories")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_repositories_suspended",
        "repositories",
        ["upstream"],
        unique=False,
        sqlite_where=sa.text("suspended_at IS NOT NULL"),
        postgresql_where=sa.text("suspended_at IS NOT NULL"),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("downstream", sa.Text(), nullable=False),
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("workflow_name", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("superseded", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "upstream", "downstream", name=op.f("pk_runs")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_runs_delivery", "runs", ["delivery", "upstream", "downstream", "workflow"], unique=False
    )
    op.create_table(
        "upstreams",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=True),
        sa.Column("installation_id", sa.BigInteger(), nullable=True),
        sa.Column("paused_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", name=op.f("pk_upstreams")),
        sqlite_with_rowid=False,
    )
