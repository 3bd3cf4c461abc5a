"""Of which ref a run must be before its report counts: of the repository's default branch.

Whoever may push a branch may start its workflows by hand, and the token of such a run signs the same repository, run and
workflow file as one of the default branch. Only `repository_dispatch` and `schedule` always run the default branch's
files. `ref_protected` is not read: it is true under any ruleset, whatever that asks for, and false for tags.
"""

from collections.abc import Collection

from crcr.decide.globs import path_glob
from crcr.decide.report.identity import Identity
from crcr.decide.report.match_job import MatchRefusal
from crcr.errors import DefaultBranchUnknown

DEFAULT_BRANCH_EVENTS = frozenset({"repository_dispatch", "schedule"})
"""Events whose runs GitHub takes from the default branch only."""
BRANCHES = "refs/heads/"


def check_ref(
    identity: Identity, default_branch: str | None, report_refs: Collection[str] = ()
) -> MatchRefusal | None:
    """None when the run is of a ref that may report. `report_refs` are globs over further ones, for self-reports."""
    if identity.event_name is None:
        return None  # another CI's, whose registration names the branches that may report
    elsewhere = _check_workflow(identity)
    if elsewhere is not None or identity.event_name in DEFAULT_BRANCH_EVENTS:
        return elsewhere
    if identity.ref is None or identity.workflow_from is None:
        missing = "ref" if identity.ref is None else "workflow_ref"
        return _wrong_ref(
            f"the token of a run started by {identity.event_name!r} has no usable claim {missing!r}",
            "start the workflow by repository_dispatch or on a schedule",
        )
    if any(path_glob(glob).matches(identity.ref) for glob in report_refs):
        return None
    if default_branch is None:
        return MatchRefusal(
            DefaultBranchUnknown.code,
            f"the default branch of {identity.repository} is not known yet; GitHub is being asked",
            "send the report again in a few seconds; if this stays, install the relay's App on the repository",
        )
    if identity.ref == BRANCHES + default_branch:
        return None
    return _wrong_ref(
        f"the run is of {_shown(identity.ref)}; a run started by {identity.event_name!r} reports from"
        f" {BRANCHES}{default_branch}, the default branch",
        "start the workflow on the default branch; for nightly and periodic reports of another ref, ask for it in the"
        " allowlist entry's report_refs",
    )


def _check_workflow(identity: Identity) -> MatchRefusal | None:
    """The workflow file must be the repository's own, and of the ref that ran: another one's says what it likes."""
    if identity.workflow_from is not None and identity.workflow_from != identity.repository:
        return _wrong_ref(
            f"the workflow file is one of {identity.workflow_from}, the run one of {identity.repository}",
            "report from a workflow file of the repository itself; reusable workflows may be called from it",
        )
    if None in (identity.ref, identity.workflow_at) or identity.ref == identity.workflow_at:
        return None
    return _wrong_ref(
        f"the run is of {_shown(identity.ref)}, its workflow file of {_shown(identity.workflow_at)}",
        "report from a run whose workflow file is of the ref that it runs on",
    )


def _wrong_ref(detail: str, hint: str) -> MatchRefusal:
    return MatchRefusal("wrong_ref", detail, hint)


def _shown(ref: str | None) -> str:
    """As text of the sender's that stands in logs and on pages."""
    return ascii(ref)[1:-1][:200]
