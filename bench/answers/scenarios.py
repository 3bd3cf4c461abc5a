"""The scenarios: each writes histories of one subject, with everything else drawn at random."""

from collections.abc import Callable
from datetime import timedelta
from typing import get_args

from bench.answers.causes import Breakage, Conclusion, Flake, Outage, SickFleet, Silence, StuckJob
from bench.answers.history import MERGE_OPTION_IS_ACCEPTED, History, HistoryBuilder

Scenario = Callable[[HistoryBuilder], None]


def _regression(builder: HistoryBuilder) -> None:
    """A pull request breaks jobs of one or several backends; others are innocent."""
    builder.add_backends()
    builder.traffic(builder.rng.randint(8, 14))
    for _ in range(builder.rng.randint(1, 3)):
        builder.add_regression(builder.open())
        builder.traffic(builder.rng.randint(1, 3))


def _broken_backend(builder: HistoryBuilder) -> None:
    """A pull request, or a commit of the base branch, breaks every job of one backend: other commits still pass."""
    builder.add_backends()
    builder.traffic(builder.rng.randint(8, 12))
    backend = builder.rng.choice(builder.backends)
    where = {backend.name: frozenset(job.name for job in backend.jobs)}
    before = builder.tip
    if builder.rng.random() < 0.5:
        pull = builder.open()
        builder.add_regression(pull, where)
        builder.traffic(3)
        builder.new_head(pull)
        builder.traffic(2)
        return
    builder.break_base(where)
    for _ in range(builder.rng.randint(3, 5)):
        builder.open()
        builder.open(base=before)
        builder.push()


def _breakage(builder: HistoryBuilder) -> None:
    """A commit of the base branch breaks jobs, another one fixes them; pull requests branch off before and after."""
    builder.add_backends()
    builder.traffic(builder.rng.randint(7, 12))
    broken = builder.break_base()
    _traffic_around(builder, broken)


def _traffic_around(builder: HistoryBuilder, broken: Breakage) -> None:
    """Pull requests before the breakage, inside and after the fix."""
    for _ in range(builder.rng.randint(2, 4)):
        builder.open(base=builder.rng.randint(max(0, broken.start - 6), broken.start - 1))
        builder.open()
        if builder.rng.random() < 0.5:
            builder.push()
    if builder.rng.random() < 0.3:
        broken.fixed_by.add(builder.open())
    if builder.rng.random() < 0.7:
        builder.fix_base(broken)
        builder.open(base=builder.rng.randint(broken.start, builder.tip))
        builder.traffic(builder.rng.randint(2, 4))


def _landed_regression(builder: HistoryBuilder) -> None:
    """A pull request shows its failure and is merged all the same: later pull requests inherit what it made."""
    builder.add_backends()
    builder.traffic(builder.rng.randint(7, 12))
    where, symptoms = builder.some_places(), builder.some_symptoms()
    pull = builder.open()
    regression = builder.add_regression(pull, where, symptoms=symptoms)
    builder.traffic(builder.rng.randint(1, 3))
    builder.wait(2 * 3600)
    start = builder.land(pull)
    regression.landed_at = start
    broken = Breakage(f"breakage of {pull}", where, symptoms, start, landed_from=pull)
    builder.causes.append(broken)
    builder.push()
    _traffic_around(builder, broken)


def _flaky_test(builder: HistoryBuilder) -> None:
    """Tests of some jobs fail in 1 to 20 percent of the runs."""
    builder.add_backends(lists_tests=True)
    _add_flakes(builder, with_tests=True)
    builder.traffic(builder.rng.randint(34, 50))


def _flaky_job(builder: HistoryBuilder) -> None:
    """Jobs that list no tests fail in 1 to 20 percent of the runs."""
    builder.add_backends(lists_tests=False)
    _add_flakes(builder, with_tests=False)
    builder.traffic(builder.rng.randint(34, 50))


def _add_flakes(builder: HistoryBuilder, *, with_tests: bool) -> None:
    for number in range(builder.rng.randint(1, 4)):
        rate = 0.01 * 20 ** builder.rng.random()
        symptoms = builder.book.take(1) if with_tests else ()
        builder.causes.append(Flake(f"flake {number}", builder.one_place(), symptoms, rate))


def _rerun(builder: HistoryBuilder) -> None:
    """Failed jobs, and whole runs, are run again; a flaky one may pass then, a regression does not."""
    builder.add_backends()
    builder.pace_s = 3600
    rate = builder.rng.uniform(0.08, 0.2)
    for number in range(2):
        builder.causes.append(Flake(f"flake {number}", builder.one_place(), builder.some_symptoms(), rate))
    builder.traffic(10)
    for _ in range(builder.rng.randint(6, 9)):
        pull = builder.open()
        if builder.rng.random() < 0.25:
            builder.add_regression(pull)
        builder.wait(2 * 3600)
        builder.rerun(pull, whole=builder.rng.random() < 0.6)
        if builder.rng.random() < 0.4:
            builder.push()


def _sick_fleet(builder: HistoryBuilder) -> None:
    """For some hours most jobs of one backend fail on whatever commit."""
    builder.add_backends()
    builder.traffic(builder.rng.randint(9, 14))
    _add_sick_hours(builder)
    builder.traffic(builder.rng.randint(2, 5))


def _add_sick_hours(builder: HistoryBuilder) -> None:
    backend = builder.rng.choice(builder.backends)
    pace, builder.pace_s = builder.pace_s, 400
    start = builder.now + timedelta(minutes=10)
    conclusion: Conclusion = builder.rng.choice(("failure", "failure", "failure", "timed_out", "cancelled"))
    symptoms = (
        builder.book.take_infrastructure(builder.rng.randint(1, 2)) if builder.rng.random() < 0.6 else ()
    )
    builder.traffic(builder.rng.randint(6, 10))
    builder.wait(5400)
    builder.pace_s = pace
    share = builder.rng.uniform(0.85, 1.0)
    name = f"sick fleet of {backend.name}"
    builder.causes.append(SickFleet(name, backend.name, start, builder.now, share, symptoms, conclusion))


def _stuck_job(builder: HistoryBuilder) -> None:
    """A job of one pull request is cancelled, times out, or is never heard of again."""
    builder.add_backends()
    builder.traffic(builder.rng.randint(8, 14))
    for _ in range(builder.rng.randint(2, 4)):
        pull = builder.open()
        conclusion: Conclusion = builder.rng.choice(("timed_out", "cancelled", "silent"))
        builder.causes.append(StuckJob(f"stuck job of {pull}", pull, builder.one_place(), conclusion))
        builder.traffic(2)


def _outage(builder: HistoryBuilder) -> None:
    """A backend answers nobody for some hours."""
    builder.add_backends()
    builder.traffic(builder.rng.randint(9, 14))
    _add_outage(builder)
    builder.traffic(builder.rng.randint(0, 4))


def _add_outage(builder: HistoryBuilder) -> None:
    backend, start = builder.rng.choice(builder.backends), builder.now - timedelta(minutes=1)
    builder.traffic(builder.rng.randint(3, 6))
    builder.open()
    manner: Silence = builder.rng.choice(get_args(Silence))
    builder.add_outage(Outage(f"outage of {backend.name}", backend.name, manner, start, builder.now))


def _silent_here(builder: HistoryBuilder) -> None:
    """A backend, or one of its jobs, does not answer to one pull request, while others get their answers."""
    builder.add_backends(names_jobs=True)
    builder.traffic(builder.rng.randint(9, 14))
    for _ in range(builder.rng.randint(2, 3)):
        pull, backend = builder.open(), builder.rng.choice(builder.backends)
        one_job = len(backend.jobs) > 1 and builder.rng.random() < 0.5
        manner: Silence = "unreported" if one_job else builder.rng.choice(get_args(Silence))
        job = builder.rng.choice(backend.jobs).name if one_job else None
        builder.add_outage(Outage(f"silence for {pull}", backend.name, manner, pull=pull, job=job))
        builder.traffic(builder.rng.randint(2, 4))


def _without_pushes(builder: HistoryBuilder) -> None:
    """Backends that test no pushes: other pull requests are all that tells what the base branch does."""
    builder.add_backends(tests_pushes=False, is_told_of_pushes=builder.rng.random() < 0.5)
    builder.furthest_behind = 0
    builder.traffic(builder.rng.randint(10, 16))
    if builder.rng.random() < 0.5:
        builder.break_base()
        for _ in range(builder.rng.randint(5, 8)):
            builder.open()
    if builder.rng.random() < 0.7:
        builder.add_regression(builder.open())
        builder.traffic(2)


def _nightly(builder: HistoryBuilder) -> None:
    """Backends that test no pushes and report a nightly run of the base branch."""
    builder.add_backends(tests_pushes=False, is_told_of_pushes=False, reports_nightly=True)
    if builder.rng.random() < 0.5:
        builder.add_backends(1)
    for _ in range(4):
        builder.nightly()
        builder.traffic(3)
    broken = builder.break_base()
    builder.nightly()
    for _ in range(builder.rng.randint(2, 4)):
        builder.open()
    if builder.rng.random() < 0.6:
        builder.add_regression(builder.open(base=broken.start - 1))
    if builder.rng.random() < 0.5:
        builder.fix_base(broken)
        builder.nightly()
        builder.traffic(3)


def _force_push(builder: HistoryBuilder) -> None:
    """Pull requests are rebased out of a breakage, into it, or amended where they are."""
    builder.add_backends()
    early = builder.traffic(builder.rng.randint(9, 13)) or [builder.open()]
    broken = builder.break_base()
    inside = [builder.open(base=builder.tip) for _ in range(3)]
    for pull in builder.rng.sample(early, min(2, len(early))):
        builder.new_head(pull, base=builder.tip)
    if builder.rng.random() < 0.5:
        pull = builder.open(base=broken.start - 1)
        builder.add_regression(pull, first_head=2)
        builder.new_head(pull, base=builder.tip)
    builder.fix_base(broken)
    builder.push()
    builder.new_head(inside[0], base=builder.tip)
    builder.new_head(inside[1])
    amended = builder.open()
    builder.add_regression(amended, last_head=builder.rng.choice((1, None)))
    builder.new_head(amended, base=builder.base_of(amended))
    builder.traffic(3)


def _late_base(builder: HistoryBuilder) -> None:
    """Runs of the base branch take hours: their results come after those of pull requests."""
    slow = (4 * 3600, 9 * 3600)
    builder.add_backends(push_delay_s=slow)
    builder.traffic(builder.rng.randint(9, 13))
    builder.break_base()
    for _ in range(builder.rng.randint(2, 4)):
        builder.open(base=builder.tip)
    if builder.rng.random() < 0.6:
        builder.add_regression(builder.open())
    builder.traffic(3)


def _merged_heads(builder: HistoryBuilder) -> None:
    """Backends that test the head merged into the base branch: what landed later explains a failure there."""
    builder.add_backends(merges=True)
    builder.traffic(builder.rng.randint(9, 13))
    before = builder.tip
    builder.break_base()
    for _ in range(builder.rng.randint(2, 4)):
        builder.open(base=builder.rng.randint(max(0, before - 5), before))
        builder.push()
    if builder.rng.random() < 0.5:
        builder.add_regression(builder.open())
        builder.traffic(2)


def _few_data(builder: HistoryBuilder) -> None:
    """The first results that a backend ever had."""
    builder.add_backends(builder.rng.randint(2, 3))
    if builder.rng.random() < 0.5:
        builder.traffic(1)
    builder.add_regression(builder.open())
    if builder.rng.random() < 0.5:
        builder.open()


def _several(builder: HistoryBuilder) -> None:
    """Up to three causes at once, also in the same jobs."""
    builder.add_backends(builder.rng.randint(3, 6))
    parts = (_part_regression, _part_breakage, _part_flake, _part_sick, _part_outage, _part_landed_on_broken)
    chosen = builder.rng.sample(parts, builder.rng.randint(0, 3))
    builder.traffic(builder.rng.randint(9, 13))
    for part in chosen:
        part(builder)
    builder.traffic(builder.rng.randint(3, 6))


def _part_regression(builder: HistoryBuilder) -> None:
    builder.add_regression(builder.open())
    builder.traffic(2)


def _part_breakage(builder: HistoryBuilder) -> None:
    builder.break_base()
    builder.push()
    builder.open(base=builder.tip)
    builder.traffic(4)


def _part_flake(builder: HistoryBuilder) -> None:
    _add_flakes(builder, with_tests=True)
    builder.traffic(3)


def _part_sick(builder: HistoryBuilder) -> None:
    _add_sick_hours(builder)


def _part_outage(builder: HistoryBuilder) -> None:
    _add_outage(builder)


def _part_landed_on_broken(builder: HistoryBuilder) -> None:
    """A pull request that is built on a broken commit breaks another test of the same jobs."""
    broken = builder.break_base(symptoms=builder.book.take(1))
    builder.push()
    builder.add_regression(builder.open(base=builder.tip), broken.where, symptoms=builder.book.take(1))
    builder.traffic(2)


def _broken_flaky_test(builder: HistoryBuilder) -> None:
    """A pull request breaks a test that is known as flaky: it fails in another way, in every run."""
    builder.add_backends(lists_tests=True)
    where, [symptom] = builder.one_place(), builder.book.take(1)
    builder.causes.append(Flake("flake", where, (symptom,), builder.rng.uniform(0.08, 0.2)))
    builder.traffic(builder.rng.randint(14, 20))
    pull = builder.open()
    builder.add_regression(pull, where, symptoms=(builder.book.other_text(symptom),))
    if builder.rng.random() < 0.5:
        builder.wait(2 * 3600)
        builder.rerun(pull)
    builder.traffic(4)


def _stacked(builder: HistoryBuilder) -> None:
    """Pull requests of other authors are built on one that breaks jobs: they fail like it, and excuse nothing."""
    builder.add_backends(tests_pushes=builder.rng.random() < 0.5)
    builder.traffic(builder.rng.randint(9, 14))
    lowest = builder.open(author="ada")
    builder.add_regression(lowest)
    upper = lowest
    for author in builder.rng.sample(("ben", "cleo", "dan", "eve"), builder.rng.randint(2, 4)):
        upper = builder.open(author=author, on_top_of=builder.rng.choice((lowest, upper)))
    builder.traffic(builder.rng.randint(2, 5))


def _many_backends(builder: HistoryBuilder) -> None:
    """Ten to forty backends, of which many fail alike on one pull request."""
    builder.add_backends(builder.rng.randint(10, 40))
    builder.traffic(6)
    builder.add_regression(builder.open(), builder.some_places(most=12))
    builder.break_base(builder.some_places(most=8))
    builder.open(base=builder.tip)
    builder.open()


SCENARIOS: dict[str, Scenario] = {
    "regression": _regression,
    "broken-backend": _broken_backend,
    "breakage": _breakage,
    "landed-regression": _landed_regression,
    "flaky-test": _flaky_test,
    "flaky-job": _flaky_job,
    "broken-flaky-test": _broken_flaky_test,
    "rerun": _rerun,
    "sick-fleet": _sick_fleet,
    "stuck-job": _stuck_job,
    "outage": _outage,
    "silent-here": _silent_here,
    "without-pushes": _without_pushes,
    "nightly": _nightly,
    "force-push": _force_push,
    "late-base": _late_base,
    "few-data": _few_data,
    "several": _several,
    "stacked": _stacked,
    "many-backends": _many_backends,
    **({"merged-heads": _merged_heads} if MERGE_OPTION_IS_ACCEPTED else {}),
}


def write_history(number: int, seed: int, scenario: str | None = None) -> History:
    """History `number` of a seed: the scenarios take turns, unless one is named."""
    names = tuple(SCENARIOS)
    chosen = scenario or names[number % len(names)]
    builder = HistoryBuilder(number, chosen, seed)
    SCENARIOS[chosen](builder)
    return builder.finish()
