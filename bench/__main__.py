"""`make bench`: run the benchmarks, print a table, and compare each figure with its bar in docs/performance.md.

Every load is bounded and stops by itself; everything stays on loopback.
"""

import os
import platform
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.aws.cold_start import measure_cold_starts
from bench.callbacks.callback_rate import measure_callbacks
from bench.callbacks.fan_out import measure_fan_out
from bench.callbacks.replicas import measure_postgres_callbacks, measure_replicas
from bench.github_budget.calls_per_head import measure_calls_per_head
from bench.github_budget.demo_hours import measure_demo
from bench.github_budget.peak_hours import measure_peak
from bench.history.import_rate import measure_import
from bench.in_tree.check_cost import measure_in_tree
from bench.model.checks import measure_model
from bench.pages.compatibility import measure_compatibility
from bench.pages.live_streams import measure_live_streams
from bench.pages.many_backends import measure_many_backends
from bench.pages.many_pulls import measure_pulls
from bench.pages.page_latency import measure_pages
from bench.pages.verdict_cost import measure_verdict_cost
from bench.readers.flood import measure_flood
from bench.readers.many_readers import measure_readers
from bench.relay_process.relay_setup import Row


@dataclass(frozen=True, slots=True)
class Options:
    only: tuple[str, ...]
    jobs: int
    cache: Path | None
    hours: float


def _benchmarks(options: Options, folder: Path, console: Console) -> dict[str, Callable[[], Iterable[Row]]]:
    return {
        "fan-out-100": partial(measure_fan_out, 100, 0.5, folder / "hundred"),
        "fan-out-1000": partial(measure_fan_out, 1000, 3.0, folder / "thousand"),
        "callbacks": partial(measure_callbacks, folder / "callbacks"),
        "postgres-callbacks": partial(measure_postgres_callbacks, folder / "postgres-callbacks"),
        "lambda": partial(measure_cold_starts, folder / "lambda"),
        "in-tree": partial(measure_in_tree, folder / "in-tree"),
        "import": partial(measure_import, folder / "import"),
        "github-calls": partial(measure_calls_per_head, folder),
        "replicas": partial(measure_replicas, folder),
        "live-streams": partial(measure_live_streams, folder / "streams"),
        "many-backends": partial(measure_many_backends, folder),
        "pulls": partial(measure_pulls, folder),
        "pages": partial(measure_pages, folder, options.cache, options.jobs, console),
        "compat": partial(measure_compatibility, folder, options.cache, options.jobs, console),
        "verdicts": partial(measure_verdict_cost, folder, options.cache, options.jobs, console),
        "readers": partial(measure_readers, folder, console),
        "flood": partial(measure_flood, folder, console),
        "peak": partial(measure_peak, folder / "peak", options.hours),
        "demo": partial(measure_demo, folder / "demo", options.hours),
        "model": partial(measure_model, folder, options.hours),
    }


def _parse_options() -> Options:
    parser = ArgumentParser(prog="python -m bench", description=__doc__)
    names = (
        *(
            "fan-out-100",
            "fan-out-1000",
            "callbacks",
            "postgres-callbacks",
            "in-tree",
            "lambda",
            "import",
            "github-calls",
            "replicas",
        ),
        *(
            "many-backends",
            "live-streams",
            "pulls",
            "pages",
            "compat",
            "verdicts",
            "readers",
            "flood",
            "peak",
            "demo",
            "model",
        ),
    )
    parser.add_argument("--only", action="append", choices=names, help="run this benchmark; may be repeated")
    parser.add_argument("--jobs", type=int, default=5_000_000, help="rows of jobs behind the pages")
    parser.add_argument(
        "--cache", type=Path, help="folder that keeps the pages' database (some 9 GB) for the next run"
    )
    parser.add_argument("--hours", type=float, default=2.0, help="simulated hours of `peak` and `demo`")
    arguments = parser.parse_args()
    return Options(tuple(arguments.only or names), arguments.jobs, arguments.cache, arguments.hours)


def main() -> None:
    options, console = _parse_options(), Console()
    table = Table(
        "what",
        "measured",
        "bar",
        "",
        title=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    )
    missed = 0
    with tempfile.TemporaryDirectory(prefix="crcr-bench-") as folder:
        benchmarks = _benchmarks(options, Path(folder), console)
        for name in options.only:
            for what, measured, bar, reached in benchmarks[name]():
                console.print(f"{what}: {measured}")
                table.add_row(what, measured, bar, "ok" if reached else "missed")
                missed += not reached
    console.print(table)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
