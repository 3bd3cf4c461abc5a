"""The tables of notices: threads, their events, what is sent to which channel, and where it was written.

A thread is one subject; at most one of a subject is open. A message is one event for one place of one channel; messages that
are sent together have the same `batch_id`, the id of the first of them, so that a repeated attempt sends the same again.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, text

from crcr.record.schema.main_tables import SERIAL, flag, key, metadata, partial_index

_SUBJECT = ("upstream", "topic", "backend", "number", "item")
_OPEN = text("state = 'open'")
_CLOSED = text("state = 'closed'")
_UNROUTED = text("routed = 0")
_WAITING = text("state = 'waiting'")

notice_threads = Table(
    "notice_threads",
    metadata,
    Column("thread_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("topic", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("item", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("details", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    Index("uq_notice_threads_open", *_SUBJECT, unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("ix_notice_threads_subject", *_SUBJECT, "thread_id"),
    Index("ix_notice_threads_pull", "upstream", "number", "thread_id"),
    partial_index("ix_notice_threads_closed", "upstream", "closed_at", where=_CLOSED),
    partial_index("ix_notice_threads_open", "upstream", "topic", "backend", where=_OPEN),
    sqlite_autoincrement=True,
)
"""`backend` is empty, and `number` 0, where the subject has none."""

notice_events = Table(
    "notice_events",
    metadata,
    Column("event_id", SERIAL, primary_key=True),
    Column("thread_id", BigInteger, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("details", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    flag("routed"),
    Index("ix_notice_events_recent", "upstream", "event_id"),
    Index("ix_notice_events_thread", "thread_id"),
    partial_index("ix_notice_events_unrouted", "upstream", "event_id", where=_UNROUTED),
    sqlite_autoincrement=True,
)

notice_messages = Table(
    "notice_messages",
    metadata,
    Column("message_id", SERIAL, primary_key=True),
    Column("event_id", BigInteger, nullable=False),
    Column("thread_id", BigInteger, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("channel_kind", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("oncalls", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("batch_id", BigInteger),
    Column("finished_at", BigInteger),
    Column("note", Text),
    Index("ix_notice_messages_event", "event_id", "message_id"),
    Index("ix_notice_messages_thread", "thread_id"),
    partial_index(
        "ix_notice_messages_waiting",
        *("upstream", "channel", "destination", "message_id"),
        where=_WAITING,
    ),
    sqlite_autoincrement=True,
)
"""`reason` is why the channel gets it, `note` why it was dropped; `batch_id` is set when sending is first attempted."""

notice_posts = Table(
    "notice_posts",
    metadata,
    key("upstream"),
    key("channel"),
    key("destination"),
    Column("thread_id", BigInteger, primary_key=True, autoincrement=False),
    Column("attempted_at", BigInteger, nullable=False),
    Column("remote_id", BigInteger),
    sqlite_with_rowid=False,
)
"""Issues and comments that the relay keeps up to date; `thread_id` is 0 for the one comment of a pull request. A row without
`remote_id` was attempted: its issue or comment may exist."""

notice_marks = Table(
    "notice_marks",
    metadata,
    key("upstream"),
    key("backend"),
    Column("at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Backends with a new failure on the base, which the leader's next look takes off."""

announcement_answers = Table(
    "announcement_answers",
    metadata,
    key("upstream"),
    Column("number", Integer, primary_key=True, autoincrement=False),
    key("backend"),
    key("who"),
    Column("at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Who answered a breakage that a pull request announces, for which backend; `at` is when the comment was written."""
