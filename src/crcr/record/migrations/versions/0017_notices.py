"""Notices: threads, their events, messages for channels, posts on GitHub, and marked backends"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SUBJECT = ["upstream", "topic", "backend", "number", "item"]


def upgrade() -> None:
    _add_threads()
    _add_events()
    _add_messages()
    op.create_table(
        "notice_posts",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.BigInteger(), nullable=False),
        sa.Column("attempted_at", sa.BigInteger(), nullable=False),
        sa.Column("remote_id", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(
            "upstream", "channel", "destination", "thread_id", name=op.f("pk_notice_posts")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "notice_marks",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "backend", name=op.f("pk_notice_marks")),
        sqlite_with_rowid=False,
    )


def _add_threads() -> None:
    op.create_table(
        "notice_threads",
        sa.Column("thread_id", _SERIAL, nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("item", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("thread_id", name=op.f("pk_notice_threads")),
        sqlite_autoincrement=True,
    )
    is_open = sa.text("state = 'open'")
    op.create_index(
        "uq_notice_threads_open",
        "notice_threads",
        _SUBJECT,
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_index("ix_notice_threads_subject", "notice_threads", [*_SUBJECT, "thread_id"])
    op.create_index("ix_notice_threads_pull", "notice_threads", ["upstream", "number", "thread_id"])
    closed = sa.text("state = 'closed'")
    op.create_index(
        "ix_notice_threads_closed",
        "notice_threads",
        ["upstream", "closed_at"],
        sqlite_where=closed,
        postgresql_where=closed,
    )
    op.create_index(
        "ix_notice_threads_open",
        "notice_threads",
        ["upstream", "topic", "backend"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )


def _add_events() -> None:
    op.create_table(
        "notice_events",
        sa.Column("event_id", _SERIAL, nullable=False),
        sa.Column("thread_id", sa.BigInteger(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("routed", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_notice_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notice_events_recent", "notice_events", ["upstream", "event_id"])
    op.create_index("ix_notice_events_thread", "notice_events", ["thread_id"])
    unrouted = sa.text("routed = 0")
    op.create_index(
        "ix_notice_events_unrouted",
        "notice_events",
        ["upstream", "event_id"],
        sqlite_where=unrouted,
        postgresql_where=unrouted,
    )


def _add_messages() -> None:
    op.create_table(
        "notice_messages",
        sa.Column("message_id", _SERIAL, nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("thread_id", sa.BigInteger(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("channel_kind", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("oncalls", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_notice_messages")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notice_messages_event", "notice_messages", ["event_id", "message_id"])
    op.create_index("ix_notice_messages_thread", "notice_messages", ["thread_id"])
    waiting = sa.text("state = 'waiting'")
    op.create_index(
        "ix_notice_messages_waiting",
        "notice_messages",
        ["upstream", "channel", "destination", "message_id"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )
