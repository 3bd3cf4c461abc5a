"""The tables behind verdicts: the order of base commits, failed results with their fingerprints, groups of them.

A failure is written in the transaction of its result, with the verdict that history gives it then; it keeps its row when a
later attempt passes. Passing results have no rows here: `ix_jobs_base` finds those of the base branch among the jobs.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, SmallInteger, Table, Text, text

from crcr.record.schema.main_tables import SERIAL, flag, key, metadata, partial_index

base_commits = Table(
    "base_commits",
    metadata,
    key("sha"),
    key("upstream"),
    key("ref"),
    Column("position", BigInteger, nullable=False),
    Column("before", Text),
    Column("pushed_at", BigInteger, nullable=False),
    Column("title", Text),
    Column("number", Integer),
    Column("reverts", Text),
    Column("paths", Text),
    Column("path_count", Integer),
    Index("ix_base_commits_order", "upstream", "ref", "position"),
    Index("ix_base_commits_age", "upstream", "pushed_at"),
    sqlite_with_rowid=False,
)
"""The commits of each branch in the order of its pushes; `before` is the commit that the push of this one started from.

`number` is the pull request that its message names, `reverts` the commit that it says it reverts. `paths` has the first of
the files that it touches, as a JSON list, and `path_count` is the number of all; null where the push does not describe it."""

upstream_tags = Table(
    "upstream_tags",
    metadata,
    key("upstream"),
    key("name"),
    Column("sha", Text, nullable=False),
    Column("object_sha", Text, nullable=False),
    Column("pushed_at", BigInteger, nullable=False),
    Index("ix_upstream_tags_age", "upstream", "pushed_at"),
    sqlite_with_rowid=False,
)
"""The upstream's tags that name a version, and the commit of each. `object_sha` is what its push names: of an annotated tag the tag
object, otherwise the commit."""

_ON_BASE = text("kind <> 'pull_request'")
_ON_PULL = text("kind = 'pull_request'")

failures = Table(
    "failures",
    metadata,
    Column("failure_id", SERIAL, primary_key=True),
    Column("delivery", Text, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("downstream", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("job_name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("number", Integer),
    Column("head_sha", Text),
    Column("base_ref", Text),
    Column("built_on", Text),
    flag("built_on_exact"),
    Column("author", Text),
    flag("trusted"),
    Column("at", BigInteger, nullable=False),
    Column("ended", Text, nullable=False),
    Column("fingerprint", Text),
    Column("rules", SmallInteger, nullable=False),
    Column("sample", Text),
    Column("fingerprints", Text),
    Column("log_fingerprint", Text),
    Column("passed_at", BigInteger),
    Column("verdict", Text),
    Column("confidence", Text),
    Column("sentence", Text),
    Column("evidence", LargeBinary),
    Column("test_verdicts", LargeBinary),
    Column("judged_at", BigInteger),
    Column("verdict_before", Text),
    Column("excused_at", BigInteger),
    Index(
        "uq_failures_job",
        *("delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name"),
        unique=True,
    ),
    Index("ix_failures_history", "upstream", "downstream", "job_name", "at"),
    Index("ix_failures_backend", "upstream", "downstream", "at"),
    Index("ix_failures_verdict", "upstream", "downstream", "verdict"),
    Index("ix_failures_rules", "rules", "failure_id"),
    partial_index("ix_failures_pull", "upstream", "number", where=_ON_PULL),
    partial_index("ix_failures_unjudged", "at", where=text("judged_at IS NULL")),
    partial_index(
        "ix_failures_base",
        *("upstream", "kind", "downstream", "workflow", "job_name", "at"),
        where=_ON_BASE,
    ),
    partial_index(
        "ix_failures_base_commits",  # with what is compared of most failures: their rows are large
        *("upstream", "kind", "downstream", "workflow", "job_name", "at", "passed_at", "head_sha"),
        where=_ON_BASE,
    ),
    sqlite_autoincrement=True,
)
"""`built_on` is the base commit that the tested commit contains: the merge base where it is exact, else the base's newest
commit by the webhook. `fingerprints` has the different ones of its tests, separated by blanks. `passed_at` is when the same job
passed on the same commit. `log_fingerprint` is that of the first error line of its log, where it reported no failed test: it makes
groups, and no verdict reads it. `rules` is the version of the fingerprints. `excused_at` is when the present verdict first excused it
at the gate."""

failure_fingerprints = Table(
    "failure_fingerprints",
    metadata,
    key("fingerprint"),
    key("upstream"),
    Column("failure_id", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

failure_groups = Table(
    "failure_groups",
    metadata,
    key("fingerprint"),
    key("upstream"),
    key("downstream"),
    Column("sample", Text, nullable=False),
    Column("number", Integer, nullable=False, server_default=text("0")),
    Column("first_at", BigInteger),
    Column("last_at", BigInteger),
    Index("ix_failure_groups_recent", "upstream", "last_at"),
    sqlite_with_rowid=False,
)
"""How often a backend failed with a fingerprint, and when first and last; a group is the rows of one fingerprint."""

failed_tests = Table(
    "failed_tests",
    metadata,
    key("fingerprint"),
    key("upstream"),
    key("downstream"),
    key("test"),
    Column("number", Integer, nullable=False, server_default=text("0")),
    Column("last_at", BigInteger),
    Index("ix_failed_tests_recent", "upstream", "last_at"),
    sqlite_with_rowid=False,
)
"""The names of tests that failed in a backend with a fingerprint, for the search; deleted with their group."""

known_failures = Table(
    "known_failures",
    metadata,
    key("fingerprint"),
    key("upstream"),
    Column("url", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("reason", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("until_at", BigInteger, nullable=False),
    Column("checked_at", BigInteger),
    Column("ended_at", BigInteger),
    sqlite_with_rowid=False,
)
"""Groups that a maintainer has linked to an issue; `state` is the issue's."""

person_verdicts = Table(
    "person_verdicts",
    metadata,
    Column("person_verdict_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("head_sha", Text, nullable=False),
    Column("downstream", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("rules_verdict", Text),
    Column("who", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("ix_person_verdicts_head", "head_sha", "upstream"),
    Index("ix_person_verdicts_recent", "upstream", "at"),
    sqlite_autoincrement=True,
)
"""What a person says against a verdict of the rules; shown, counted, and never an excuse."""
