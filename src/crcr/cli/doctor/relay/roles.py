"""The finding about roles: which processes `crcr serve` starts with these settings."""

from crcr.join.findings.finding import SetupFinding, ok, problem
from crcr.settings import Settings

_TEXTS = {
    "all": "Pages run in a process of their own, on the same port (CRCR_ROLE is all).",
    "intake": "This process takes in webhooks, callbacks and results; pages answer 404 (CRCR_ROLE is intake).",
    "hud": "This process serves pages and API; webhooks, callbacks and results answer 503 (CRCR_ROLE is hud).",
}


def role_finding(settings: Settings) -> SetupFinding:
    if not settings.uses_chdb:
        return ok("role", _TEXTS[settings.role])
    if settings.role == "all":
        text = "Pages run in the same process as the intake: chdb:/// can be opened by one process alone."
        return ok(
            "role", text, "with many readers use a ClickHouse server, so that pages cannot delay callbacks"
        )
    return problem(
        "role",
        f"`crcr serve` does not start: the role {settings.role} does not work with chdb:///, which one process alone can open.",
        "use a ClickHouse server, or the role all",
    )
