"""The schema of the relay's database against this release's, as a line of the doctor."""

from crcr.join.findings.finding import SetupFinding, ok, problem, warning
from crcr.record.migrations.run import head, is_known


def schema_finding(found: str | None, shown: str) -> SetupFinding:
    """Judge the revision of a database: an older one is migrated at the next start, with a newer one nothing starts."""
    if found == head():
        return ok("store", f"The database {shown} is of this release (schema {found}).")
    text = f"The database's schema is {found or 'none'}, this release's is {head()}"
    if found is None or is_known(found):
        hint = "`crcr migrate` brings it up to date, and so does the next start of `crcr serve`"
        return warning("store", f"{text}.", hint)
    return problem(
        "store",
        f"{text}: a newer release has written it, and this one cannot work with it.",
        "install that release again, restore a backup from before its upgrade, or name another database in"
        " CRCR_DATABASE_URL; a schema is never taken back",
    )
