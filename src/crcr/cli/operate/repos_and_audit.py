"""`crcr repos` and `crcr audit`: the downstreams with their ids, rebinding one, and the audit log."""

from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import (
    ConfigOption,
    JsonOption,
    LimitOption,
    RepoArgument,
    UpstreamOption,
    examples,
)
from crcr.cli.printing import print_json, print_line, print_outcome, print_table

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.model import RepoName
    from crcr.decide.views.operator import AuditLine, RepositoryLine

repos = CommandLine(name="repos", help="Downstream repositories and their ids.", no_args_is_help=True)
audit = CommandLine(name="audit", help="Log of manual actions and alarms.", no_args_is_help=True)


@repos.command("list", epilog=examples("crcr repos list", "crcr repos list --json"))
def list_repos(
    config: ConfigOption = None, upstream: UpstreamOption = None, as_json: JsonOption = False
) -> None:
    """List the known downstreams: level, bound id, installation, suspensions, alarms."""
    from crcr.cli.operator_session import run_in_session

    lines = run_in_session(
        config, lambda session: session.views.repositories(session.upstream_to_read(upstream))
    )
    if as_json:
        print_json(lines)
        return
    columns = ["repository", "level", "id", "bound", "confirmed", "installation", "~trouble"]
    print_table(columns, map(_repository_cells, lines))
    if not lines:
        print_line("no repositories known; `crcr allowlist refresh` reads the allowlist")


@repos.command(epilog=examples("crcr repos rebind org/backend 123456789"))
def rebind(
    repository: RepoArgument,
    repository_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, help="The repository's current id, from GitHub's API.")
    ],
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Accept that another repository now has this name, and its reports; audited."""
    from crcr.cli.operator_session import run_in_session

    def choose_upstream(session: "OperatorSession") -> "RepoName":
        return session.upstream_to_change(upstream)

    async def read_bound_id(session: "OperatorSession") -> "int | None":
        lines = await session.views.repositories(choose_upstream(session))
        return next((line.repository_id for line in lines if line.name.lower() == repository.key), None)

    if not yes:
        bound = run_in_session(config, read_bound_id)
        typer.confirm(
            f"{repository} is bound to id {bound}; bind it to {repository_id}?", abort=True, err=as_json
        )
    run_in_session(
        config,
        lambda session: session.targets.rebind(
            choose_upstream(session), repository, repository_id, who=session.who, now=session.now()
        ),
    )
    outcome = {"repository": str(repository), "repository_id": repository_id}
    print_outcome(f"{repository} is bound to id {repository_id}", outcome, as_json=as_json)


@audit.command("list", epilog=examples("crcr audit list --limit 100"))
def list_audit(
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    limit: LimitOption = 30,
    as_json: JsonOption = False,
) -> None:
    """List the newest manual actions and alarms."""
    from crcr.cli.operator_session import run_in_session

    lines = run_in_session(
        config, lambda session: session.views.audit(session.upstream_to_read(upstream), limit=limit)
    )
    if as_json:
        print_json(lines)
        return
    print_table(["when", "who", "act", "subject", "~detail"], map(_audit_cells, lines))


def _repository_cells(line: "RepositoryLine") -> list[str | int | bool | None]:
    suspended = "suspended" if line.suspended_at else None
    trouble = ", ".join(filter(None, [suspended, line.alarm])) or None
    bound = f"{line.bound_at:%Y-%m-%d}" if line.bound_at else None
    return [line.name, line.level, line.repository_id, bound, line.confirmed, line.installation_id, trouble]


def _audit_cells(line: "AuditLine") -> list[str]:
    detail = ", ".join(f"{key} {value}" for key, value in line.detail.items() if value is not None)
    return [f"{line.at:%Y-%m-%d %H:%M:%S}", line.who, line.act, line.subject, detail]
