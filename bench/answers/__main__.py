"""`make bench-answers`: how often the relay's verdicts are right, on histories whose causes are known.

Each history is played into a relay in this process through signed webhooks and authenticated callbacks, with a clock that
is moved by hand; then its answers are read from the JSON API and compared with the truth. The same seed gives the same
histories. Exit status 1 when a bar is missed.
"""

import json
import secrets
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console

from bench.answers.bisections.score import BisectionScore, print_bisections, run_bisections
from bench.answers.culprit_score import CulpritScore, print_culprits, run_breakages
from bench.answers.history import History
from bench.answers.report import describe, figures, print_score, print_wrong
from bench.answers.run import run_histories
from bench.answers.scenarios import SCENARIOS
from bench.answers.scoring import Score
from crcr import log as logs

_SHOWN_EVERY = 20


def _parse_options() -> Namespace:
    parser = ArgumentParser(prog="python -m bench.answers", description=__doc__)
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--seed", type=int, help="drawn and printed if it is not given")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), help="only this one")
    parser.add_argument("--only", type=int, help="only the history of this number")
    parser.add_argument(
        "--breakages", type=int, metavar="N", help="instead, ask who broke the base branch, N times"
    )
    parser.add_argument(
        "--in-tree", action="store_true", help="with --breakages, the upstream's own CI tests commits too"
    )
    parser.add_argument(
        "--bisections", type=int, metavar="N", help="instead, bisect breakages of the base branch, N times"
    )
    parser.add_argument("--explain", type=int, default=0, metavar="N", help="print N wrong answers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and wrong answer there")
    return parser.parse_args()


def main() -> None:
    options, console = _parse_options(), Console(width=140)
    logs.configure("auto", "error", sys.stderr)
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    console.print(f"seed {seed}")
    numbers = range(options.histories) if options.only is None else [options.only]
    began = time.process_time()
    if options.breakages or options.bisections:
        reached = _run_base_branch(options, seed, console)
        console.print(f"seed {seed}, {time.process_time() - began:.0f} s of processor time")
        raise SystemExit(0 if reached else 1)

    def show(_: History, score: Score) -> None:
        if score.histories % _SHOWN_EVERY == 0:
            spent = time.process_time() - began
            console.print(f"{score.histories} histories, {spent:.0f} s, {score.accuracy():.1%} right so far")

    score = run_histories(numbers, seed, options.scenario, show)
    reached = print_score(score, console)
    for refused in score.refused[:10]:
        console.print(f"refused: {refused}", markup=False)
    if options.explain:
        print_wrong(score, options.explain, console)
    if options.json:
        options.json.write_text(json.dumps(_as_json(score, seed), indent=1))
    console.print(f"seed {seed}, {time.process_time() - began:.0f} s of processor time")
    raise SystemExit(0 if reached else 1)


def _run_base_branch(options: Namespace, seed: int, console: Console) -> bool:
    """Ask about breakages of the base branch, or bisect them; return whether every bar is reached."""
    score: CulpritScore | BisectionScore
    if options.bisections:
        score = run_bisections(options.bisections, seed, console)
        reached = print_bisections(score, console, options.explain)
    else:
        score = run_breakages(options.breakages, seed, console, with_in_tree=options.in_tree)
        reached = print_culprits(score, console, options.explain)
    for refused in score.refused[:10]:
        console.print(f"refused: {refused}", markup=False)
    return reached


def _as_json(score: Score, seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "histories": score.histories,
        "figures": [
            {"what": figure.what, "value": figure.value, "bar": figure.bar, "reached": figure.is_reached}
            for figure in figures(score)
        ],
        "confusion": [
            {"truth": truth, "answer": answer, "count": number}
            for (truth, answer), number in sorted(score.confusion().items())
        ],
        "undecidable": len(score.undecidable()),
        "completeness": score.completeness(),
        "wrong": [describe(each) for each in score.wrong()],
    }


if __name__ == "__main__":
    main()
