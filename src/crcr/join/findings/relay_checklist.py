"""The checklist of a new relay, from recorded facts alone: the App, its webhook, its installation, the allowlist, a first result.

`crcr doctor` asks GitHub and the store itself, and says more. The names of the findings are the doctor's.
"""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.health.relay import Health, ReasonCode
from crcr.decide.model import RepoName
from crcr.decide.number_format import count_things
from crcr.decide.views.overview import AllowlistState
from crcr.join.findings.finding import SetupFinding, ok, problem, unknown

_DOCTOR = "`crcr doctor` asks GitHub and says what is wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySetup:
    """What the relay knows about its own set-up, for one upstream."""

    upstream: RepoName
    health: Health | None
    """None while it cannot be read."""
    allowlist: AllowlistState
    backends: int
    last_delivery_at: datetime | None
    last_result_at: datetime | None
    installed: bool
    app_known: bool
    """Whether GitHub has answered this process about its App."""
    public_url: str

    def has_reason(self, code: ReasonCode) -> bool:
        return self.health is not None and any(reason.code is code for reason in self.health.reasons)


def is_set_up(setup: RelaySetup) -> bool:
    """Whether events arrive, an allowlist is in force and GitHub accepts the App: then no checklist is needed."""
    refused = setup.has_reason(ReasonCode.CREDENTIALS_REFUSED)
    return setup.last_delivery_at is not None and setup.allowlist.version is not None and not refused


def relay_checklist(setup: RelaySetup) -> tuple[SetupFinding, ...]:
    return (_app(setup), _installation(setup), _webhook(setup), _allowlist(setup), _result(setup))


def _app(setup: RelaySetup) -> SetupFinding:
    if setup.has_reason(ReasonCode.CREDENTIALS_REFUSED):
        return problem(
            "app_key",
            "GitHub refuses the App's credentials.",
            "check `CRCR_GITHUB_APP_ID`, `CRCR_GITHUB_APP_PRIVATE_KEY` and this machine's clock, then run `crcr doctor`",
        )
    if setup.app_known or setup.last_delivery_at is not None:
        return ok("app_key", "GitHub knows the App.")
    hint = f"`crcr setup` creates the App; {_DOCTOR}"
    return unknown("app_key", "GitHub has not answered about the App yet.", hint)


def _installation(setup: RelaySetup) -> SetupFinding:
    if setup.installed or setup.last_delivery_at is not None:
        return ok("installation", f"The App is installed on {setup.upstream}.")
    return unknown(
        "installation",
        f"No webhook says that the App is installed on {setup.upstream}.",
        f"install it there; {_DOCTOR}",
    )


def _webhook(setup: RelaySetup) -> SetupFinding:
    if setup.last_delivery_at is not None:
        return ok("webhook", f"Events of {setup.upstream} arrive.")
    if setup.has_reason(ReasonCode.WEBHOOKS_REFUSED):
        return problem(
            "webhook",
            f"No event of {setup.upstream} has arrived yet: webhooks came with a wrong signature.",
            "set `CRCR_GITHUB_WEBHOOK_SECRET` to the secret of the App's webhook, then restart the relay",
        )
    address = f"{setup.public_url.rstrip('/')}/github/webhook"
    return problem(
        "webhook",
        f"No event of {setup.upstream} has arrived yet.",
        f"set the App's webhook address to `{address}`, then open or push to a pull request; {_DOCTOR}",
    )


def _allowlist(setup: RelaySetup) -> SetupFinding:
    if setup.allowlist.version is None:
        if setup.allowlist.newest_is_bad:
            return problem(
                "allowlist",
                "The allowlist has errors, so nothing is dispatched.",
                "`crcr allowlist check FILE` prints them; then run `crcr allowlist refresh`",
            )
        return problem(
            "allowlist",
            "No allowlist has been read yet, so nothing is dispatched.",
            "set `CRCR_ALLOWLIST` to a file or a GitHub address, then run `crcr allowlist refresh`",
        )
    if not setup.backends:
        return problem(
            "allowlist",
            f"Version {setup.allowlist.version} of the allowlist is in force and lists no backend to show.",
            "add a line such as `L2: [org/repo]`; the page Join has the entry",
        )
    return ok(
        "allowlist",
        f"Version {setup.allowlist.version} of the allowlist lists {count_things(setup.backends, 'backend')}.",
    )


def _result(setup: RelaySetup) -> SetupFinding:
    if setup.last_result_at is not None:
        return ok("callback", "A backend has reported a result.")
    return unknown(
        "callback",
        "No backend has reported a result yet.",
        "the page Join has the workflow that reports;"
        f" `crcr doctor --relay {setup.public_url.rstrip('/')} --repo org/repo` checks a backend",
    )
