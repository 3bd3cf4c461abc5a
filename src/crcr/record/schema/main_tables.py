"""The tables, defined once for every dialect.

`upstream` is part of every key. Names in key columns (`upstream`, `downstream`) are lower case, because GitHub
compares them so; the written form stands beside them where people read it. Times are microseconds since 1970
in UTC (`_at`), so that both dialects compare, index and bucket them alike; durations are seconds (`_s`).
Keys lead with what tells rows apart (a delivery, a run): a planner without statistics believes that the first
column of a key does, and `upstream` does not. Tables of checks, gate and recovery are in `schema.checks`.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TextClause,
    text,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s",
    }
)

SERIAL = BigInteger().with_variant(Integer(), "sqlite")  # which counts only INTEGER up
# `sqlite_with_rowid=False`: narrow rows that are found by their key live in the key's own tree, one page write less.


def key(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)


def flag(name: str) -> Column[int]:
    return Column(name, SmallInteger, nullable=False, server_default=text("0"))


def partial_index(name: str, *columns: str, where: TextClause) -> Index:
    return Index(name, *columns, sqlite_where=where, postgresql_where=where)


upstreams = Table(
    "upstreams",
    metadata,
    key("upstream"),
    Column("name", Text, nullable=False),
    Column("repository_id", BigInteger),
    Column("installation_id", BigInteger),
    Column("paused_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("gate_since", BigInteger),
    Column("default_branch", Text),
    sqlite_with_rowid=False,
)

allowlist_versions = Table(
    "allowlist_versions",
    metadata,
    key("upstream"),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("good", SmallInteger, nullable=False),
    Column("problems", Text, nullable=False),
    Column("etag", Text),
    Column("read_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

_SUSPENDED = text("suspended_at IS NOT NULL")

repositories = Table(
    "repositories",
    metadata,
    key("upstream"),
    key("downstream"),
    Column("name", Text, nullable=False),
    Column("repository_id", BigInteger),
    Column("owner_id", BigInteger),
    flag("confirmed"),
    Column("bound_at", BigInteger),
    Column("installation_id", BigInteger),
    Column("suspended_at", BigInteger),
    Column("alarm", Text),
    Column("reads_actions", SmallInteger),
    Column("run_webhook_at", BigInteger),
    Column("default_branch", Text),
    Index("ix_repositories_id", "repository_id", "upstream"),
    Index("ix_repositories_suspended", "upstream", sqlite_where=_SUSPENDED, postgresql_where=_SUSPENDED),
    sqlite_with_rowid=False,
)

_IS_OPEN = text("is_open = 1")
_IS_MERGED = text("merge_commit_sha IS NOT NULL")
_ANNOUNCES = text("is_open = 1 AND downstream_note <> ''")

pulls = Table(
    "pulls",
    metadata,
    key("upstream"),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("head_sha", Text, nullable=False),
    Column("previous_sha", Text),
    Column("head_at", BigInteger),
    Column("updated_at", BigInteger, nullable=False),
    Column("is_open", SmallInteger, nullable=False),
    Column("draft", SmallInteger, nullable=False),
    Column("labels", Text, nullable=False),
    Column("base_ref", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("author_association", Text, nullable=False, server_default=text("'NONE'")),
    flag("merged"),
    Column("base_at", BigInteger),
    Column("base_sha", Text),
    Column("merge_base", Text),
    Column("stacked_on", Text),
    Column("merge_commit_sha", Text),
    Column("opened_at", BigInteger),
    Column("downstream_note", Text),
    Column("downstream_note_at", BigInteger),
    Index("ix_pulls_head", "head_sha", "upstream", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
    partial_index("ix_pulls_merged_as", "merge_commit_sha", "upstream", where=_IS_MERGED),
    Index("ix_pulls_author", text("lower(author)"), "upstream"),
    Index("ix_pulls_updated", "upstream", "updated_at", "number"),
    partial_index("ix_pulls_open", "upstream", "updated_at", "number", where=_IS_OPEN),
    partial_index("ix_pulls_announcing", "number", "upstream", where=_ANNOUNCES),
    sqlite_with_rowid=False,
)

_OF_PULL = text("number IS NOT NULL")
_OF_COMMIT = text("head_sha IS NOT NULL")
_HAS_BODY = text("body IS NOT NULL")
_OF_PAIR = text("event = 'crcr_pair'")

deliveries = Table(
    "deliveries",
    metadata,
    key("guid"),
    key("upstream"),
    Column("event", Text, nullable=False),
    Column("action", Text),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("source", Text, nullable=False),
    Column("number", Integer),
    Column("head_sha", Text),
    Column("ref", Text),
    Column("received_at", BigInteger, nullable=False),
    Column("body_bytes", Integer, nullable=False),
    Column("body", LargeBinary),
    Column("base_ref", Text),
    Column("relay_reason", Text),
    Index("ix_deliveries_recent", "upstream", "received_at"),
    partial_index("ix_deliveries_pull", "upstream", "number", "received_at", where=_OF_PULL),
    Index("ix_deliveries_head", "head_sha", "upstream", sqlite_where=_OF_COMMIT, postgresql_where=_OF_COMMIT),
    partial_index("ix_deliveries_pairs", "upstream", "received_at", where=_OF_PAIR),
    Index("ix_deliveries_body_age", "received_at", sqlite_where=_HAS_BODY, postgresql_where=_HAS_BODY),
)

_NOT_SUPERSEDED = text("superseded_at IS NULL")
_HELD = text("state = 'held'")
_UNSENT = text("state <> 'sent' AND state <> 'cancelled' AND state <> 'left_out'")  # `IN` costs each write

dispatches = Table(
    "dispatches",
    metadata,
    key("delivery"),
    key("upstream"),
    key("downstream"),
    Column("level", SmallInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("event", Text, nullable=False),
    Column("action", Text),
    Column("number", Integer),
    Column("head_sha", Text),
    Column("lane", Text, nullable=False),
    flag("test"),
    flag("unsure"),
    Column("created_at", BigInteger, nullable=False),
    Column("attempted_at", BigInteger),
    Column("sent_at", BigInteger),
    Column("superseded_at", BigInteger),
    Column("answer", Text),
    Column("concerned", SmallInteger),
    Column("listed_at", BigInteger),
    Column("delay_s", Double),
    Column("repository_id", BigInteger),
    Column("labels", Text),
    Column("reads_actions", SmallInteger),
    Column("trimmed", Text),
    flag("tests_merged"),
    flag("downgraded"),
    flag("imported"),
    Index("ix_dispatches_backend", "upstream", "downstream", "event", "created_at"),
    Index("ix_dispatches_unsent", "upstream", "downstream", sqlite_where=_UNSENT, postgresql_where=_UNSENT),
    Index(
        "ix_dispatches_live",
        "upstream",
        "number",
        sqlite_where=_NOT_SUPERSEDED,
        postgresql_where=_NOT_SUPERSEDED,
    ),
    partial_index("ix_dispatches_held", "upstream", "number", where=_HELD),
    partial_index(
        "ix_dispatches_imported", "upstream", "downstream", "number", "created_at", where=text("imported = 1")
    ),
    sqlite_with_rowid=False,
)

runs = Table(
    "runs",
    metadata,
    key("run_id"),
    key("upstream"),
    key("downstream"),
    Column("delivery", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("workflow_name", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    flag("superseded"),
    Column("first_seen_at", BigInteger, nullable=False),
    Column("reported", SmallInteger, nullable=False, server_default=text("1")),
    Column("attempt", Integer, nullable=False, server_default=text("1")),
    Column("attempt_at", BigInteger),
    Column("over_attempt", Integer),
    Column("conclusion", Text),
    Column("rerun_from", Integer),
    Column("rerun_at", BigInteger),
    Index("ix_runs_delivery", "delivery", "upstream", "downstream", "workflow"),
    sqlite_with_rowid=False,
)

_RUNNING, _ENDED = text("state = 'in_progress'"), text("ended_as IS NOT NULL")
NOT_PASSED = "(state <> 'completed' OR coalesce(conclusion, '') <> 'success' OR expected IS NOT NULL OR superseded <> 0)"
"""The condition of `ix_jobs_not_passed`, never NULL: all jobs but those that passed without more to say about them."""
_ENDED_AT_NIGHT = text("event IN ('nightly', 'periodic') AND ended_as IS NOT NULL")
_ENDED_ON_BASE = text("ended_as IS NOT NULL AND event <> 'pull_request'")

jobs = Table(
    "jobs",
    metadata,
    key("delivery"),
    key("upstream"),
    key("downstream"),
    key("workflow"),
    key("run_id"),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    key("job_name"),
    Column("reported_name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("conclusion", Text),
    Column("first_conclusion", Text),
    Column("disputed_conclusion", Text),
    flag("late"),
    flag("late_start"),
    flag("disputed"),
    flag("superseded"),
    flag("unsigned"),
    Column("opened_by", Text),
    Column("closed_by", Text),
    Column("level", SmallInteger, nullable=False),
    Column("event", Text, nullable=False),
    Column("number", Integer),
    Column("head_sha", Text),
    Column("workflow_name", Text, nullable=False),
    Column("url", Text),
    Column("artifact_url", Text),
    Column("check_run_text", Text),
    Column("environment", Text),
    Column("in_progress_at", BigInteger, nullable=False),
    Column("completed_at", BigInteger),
    Column("started_at", BigInteger),
    Column("forwarded", Text),
    Column("forwarded_no", Integer, nullable=False, server_default=text("0")),
    Column("silent_at", BigInteger, nullable=False),
    Column("swept_at", BigInteger),
    Column("asked_at", BigInteger),
    Column("verification", Text, nullable=False, server_default=text("'unchecked'")),
    Column("github_conclusion", Text),
    Column("queue_s", Double),
    Column("execution_s", Double),
    Column("tests_passed", Integer),
    Column("tests_failed", Integer),
    Column("tests_skipped", Integer),
    Column("tests_total", Integer),
    Column("failed_tests", Text),
    Column("failed_tests_cut", Integer, nullable=False, server_default=text("0")),
    Column("log_excerpt", Text),
    Column("expected", Text),
    Column("ended_as", Text),
    Column("trusted", Text, nullable=False),
    Column("untrusted", LargeBinary, nullable=False),
    flag("imported"),
    Index("ix_jobs_backend", "upstream", "downstream", "in_progress_at"),
    Index("ix_jobs_running", "silent_at", sqlite_where=_RUNNING, postgresql_where=_RUNNING),
    partial_index("ix_jobs_ended", "upstream", "downstream", "event", "completed_at", where=_ENDED),
    partial_index(
        "ix_jobs_base",  # with what tells a pass on the base: the rows of jobs are large
        *("upstream", "downstream", "job_name", "in_progress_at"),
        *("workflow", "event", "ended_as", "head_sha", "imported"),
        where=_ENDED_ON_BASE,
    ),
    partial_index(
        "ix_jobs_nights",
        *("upstream", "downstream", "job_name", "in_progress_at"),
        where=_ENDED_AT_NIGHT,
    ),
    partial_index(
        "ix_jobs_later_attempts",
        *("delivery", "upstream", "downstream", "workflow", "run_id", "job_name", "attempt"),
        where=text("attempt > 1"),
    ),
    partial_index(
        "ix_jobs_not_passed",
        *("delivery", "upstream", "downstream", "state", "conclusion", "expected", "superseded"),
        where=text(NOT_PASSED),
    ),
)

_OPEN_EFFECT = text("state IN ('waiting', 'claimed')")
_CLAIMED = text("state = 'claimed'")
_PARKED = text("state = 'parked'")
_OVER = text("state IN ('done', 'cancelled')")

effects = Table(
    "effects",
    metadata,
    Column("effect_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("delivery", Text),
    Column("payload", LargeBinary),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    flag("unsure"),
    Column("due_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger),
    Column("lease_owner", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("first_attempt_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("last_error", Text),
    Column("held_by", Text),
    Column("fault", Text),
    Column("fault_since", BigInteger),
    Index(
        "ix_effects_queue",
        "upstream",
        "target",
        "due_at",
        sqlite_where=_OPEN_EFFECT,
        postgresql_where=_OPEN_EFFECT,
    ),
    Index(
        "ix_effects_lane",
        "upstream",
        "target",
        "lane",
        "effect_id",
        sqlite_where=_OPEN_EFFECT,
        postgresql_where=_OPEN_EFFECT,
    ),
    Index("ix_effects_claimed", "upstream", "target", sqlite_where=_CLAIMED, postgresql_where=_CLAIMED),
    Index("ix_effects_parked", "upstream", "finished_at", sqlite_where=_PARKED, postgresql_where=_PARKED),
    Index("ix_effects_over", "finished_at", sqlite_where=_OVER, postgresql_where=_OVER),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    Column("audit_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("act", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Index("ix_audit_recent", "upstream", "at"),
    sqlite_autoincrement=True,
)

changes = Table(
    "changes",
    metadata,
    Column("change_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("downstream", Text),
    Column("delivery", Text),
    Column("number", Integer),
    Column("at", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)


# The process that leads each duty which only one process may do at a time; a dead holder loses it at `until_at`.
leaders = Table(
    "leaders",
    metadata,
    key("duty"),
    Column("holder", Text, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("until_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
