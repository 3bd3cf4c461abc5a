"""How far a deployment of crcr goes: which limit a workload meets first, and what must be bought for it.

`python -m bench.model --upstreams 100 --downstreams 1000` prints a table; docs/scale.md explains it. `--measure` measures
the constants on this machine, `--check` compares the model with measurements that it was not made from.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.model.capacity import Assumptions, make_plan
from bench.model.checks import check_rows
from bench.model.constants import CONSTANTS_FILE, BadConstants, load_constants
from bench.model.measure import measure_constants
from bench.model.report import plan_json, print_checks, print_plan, simulate_share
from bench.model.scale_page import write_scale_page
from bench.model.workload import BadWorkload, Workload, generated_peak_factor

_HELP = {
    "upstreams": "how many upstreams there are, all of the same size",
    "downstreams": "downstreams of each upstream",
    "prs_per_day": "new pull requests of one upstream on an average day",
    "pushes_per_pr": "further pushes to a pull request",
    "groups_per_pr": "merge groups for each pull request",
    "dispatches_per_head": "dispatches of a head to each downstream, with those for closed and labelled pull requests",
    "other_webhooks_per_head": "webhooks that are only recorded: labels, edits, comments, ends of runs",
    "visible": "downstreams of each upstream with a check on every head: L4, and L3 with its label",
    "failing_share": "share of the heads that fail at a visible downstream",
    "jobs_per_dispatch": "jobs that a downstream reports for each head; each has two callbacks",
    "readers": "live pages open at one upstream's dashboard in the busiest hour",
    "pages": "different pages among them",
    "views_per_reader": "pages that a reader opens in an hour, besides refreshes",
    "refresh_s": "shortest time between two refreshes of one live page",
    "peak_factor": f"busiest hour over the mean hour; 0 for that of the generated history ({generated_peak_factor():.2f})",
    "downstreams_per_installation": "downstreams that share an installation of the App: those of one organisation",
    "followed": "how many upstreams list each downstream",
    "keep_days": "CRCR_KEEP_JOBS_DAYS",
    "busy": "share of processors, locks and App limits to plan with",
    "github_latency_s": "seconds that GitHub takes for a call",
    "hour_limit": "an installation's calls an hour: 5000, up to 12500 for large organisations, 15000 on Enterprise Cloud",
    "database_cores": "cores of one PostgreSQL server",
    "database_bytes": "disk of one PostgreSQL server",
    "sqlite_bytes": "largest SQLite file to plan with",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser.add_argument_group("traffic, for each upstream"), Workload)
    _add_options(parser.add_argument_group("what to plan with"), Assumptions)
    actions = parser.add_argument_group("instead of a plan, and files")
    actions.add_argument(
        "--measure", action="store_true", help="measure the constants here, some 3 minutes of a quiet machine"
    )
    actions.add_argument(
        "--check", action="store_true", help="compare predictions with measurements; exit code 1 past 20 %%"
    )
    actions.add_argument(
        "--docs",
        action="store_true",
        help="write the tables and the picture of docs/scale.md from the constants",
    )
    actions.add_argument(
        "--hours", type=float, default=1.0, help="simulated hours of --check's peak (default 1)"
    )
    actions.add_argument(
        "--constants",
        type=Path,
        default=CONSTANTS_FILE,
        metavar="FILE",
        help="read, or with --measure write, the constants here",
    )
    actions.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def _add_options(group: Any, kind: type) -> None:
    for each in fields(kind):
        default = each.default
        if default is MISSING:
            raise TypeError(f"{kind.__name__}.{each.name} has no default")
        group.add_argument(
            f"--{each.name.replace('_', '-')}",
            type=type(default),
            default=default,
            metavar="N",
            help=f"{_HELP[each.name]} (default {default:g})",
        )


def _values(kind: type, options: argparse.Namespace) -> dict[str, Any]:
    return {each.name: getattr(options, each.name) for each in fields(kind)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser, console = _parser(), Console()
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="crcr-model-") as folder:
        try:
            if options.measure:
                measure_constants(Path(folder), console).save(options.constants)
                console.print(f"wrote {options.constants}")
                return 0
            constants = load_constants(options.constants)
            if options.docs:
                write_scale_page(constants)
                return 0
            if options.check:
                return print_checks(check_rows(constants, Path(folder), options.hours), console)
            workload, assumptions = (
                Workload(**_values(Workload, options)),
                Assumptions(**_values(Assumptions, options)),
            )
        except (BadConstants, BadWorkload) as error:
            parser.error(str(error))
    plan = make_plan(workload, constants, assumptions)
    share = simulate_share(plan, constants, assumptions)
    if options.json:
        sys.stdout.write(plan_json(plan, share, constants))
    else:
        print_plan(plan, share, constants, console)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
