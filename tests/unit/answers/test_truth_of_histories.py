"""The verdicts that `bench.answers` accepts as true, on hand-written results."""

from datetime import datetime, timedelta

import pytest
from bench.answers.api_answers import Answer, Group, parse_pull
from bench.answers.causes import (
    Backend,
    Breakage,
    Cause,
    Failure,
    Flake,
    Job,
    Regression,
    SickFleet,
    TestedCode,
)
from bench.answers.history import BEGINNING, History
from bench.answers.playback import Played, PlayedPull, Result
from bench.answers.report import figures
from bench.answers.scoring import GroupScore, Judged, Score, score_groups
from bench.answers.symptoms import Symptom
from bench.answers.truth import Truth, judge_history

from github_sim.world.records import Account, PullRequest

PLACE = {"org/one": frozenset({"test"})}
SYMPTOM = Symptom("test_add", "test/test_ops.py", "RuntimeError: add failed at <hex>")
REGRESSION = Regression("regression", "mine", PLACE, (SYMPTOM,))
BREAKAGE = Breakage("breakage", PLACE, (SYMPTOM,), start=5)
FLAKE = Flake("flake", PLACE, (SYMPTOM,), 0.1)
SICK = SickFleet("sick", "org/one", BEGINNING, BEGINNING + timedelta(hours=9), 1.0, (SYMPTOM,))


class JobHistory:
    """Results of one job of one backend, an hour apart."""

    def __init__(self, cause: Cause, *, lists_tests: bool = True) -> None:
        self.cause, self.lists_tests = cause, lists_tests
        self.played = Played(pulls={"mine": _pull("ada")})
        self.minutes = 60

    def base(self, position: int, *, fails: bool = False) -> "JobHistory":
        return self._add(TestedCode(f"base-{position}", position), "push", None, fails)

    def pull(self, name: str, position: int, author: str = "ada", *, fails: bool = True) -> "JobHistory":
        self.played.pulls.setdefault(name, _pull(author))
        return self._add(TestedCode(f"head-of-{name}", position, name, 1), "pull", author, fails)

    def _add(self, code: TestedCode, event: str, author: str | None, fails: bool) -> "JobHistory":
        number = len(self.played.results) + 1
        at = BEGINNING + timedelta(minutes=self.minutes * number)
        failures = (Failure(self.cause, SYMPTOM),) if fails else ()
        same_code = [result for result in self.played.results if result.code == code]
        run = same_code[0].run if same_code else number
        self.played.results.append(
            Result(
                "org/one",
                "test",
                self.lists_tests,
                code,
                event,  # type: ignore[arg-type]
                at,
                run,
                len(same_code) + 1,
                failures,
                author,
            )
        )
        return self

    def truth(self) -> Truth:
        backend = Backend(name="org/one", device="NPU", jobs=(Job("test", self.lists_tests),))
        history = History(
            number=0, scenario="written", seed=0, backends=(backend,), causes=(self.cause,), steps=()
        )
        [mine] = [truth for truth in judge_history(history, self.played) if truth.pull == "mine"]
        return mine


def _pull(author: str) -> PlayedPull:
    now: datetime = BEGINNING
    record = PullRequest(1, 1, 1, "", None, Account(1, author), "MEMBER", 1, "h", "s", "main", "b", now, now)
    return PlayedPull(record, author, 0)


def passing_base(cause: Cause, *, until: int = 4, lists_tests: bool = True) -> JobHistory:
    job_history = JobHistory(cause, lists_tests=lists_tests)
    for position in range(until + 1):
        job_history.base(position)
    return job_history


CASES = {
    "a regression after passes": (passing_base(REGRESSION).pull("mine", 4), {"new"}),
    "a regression without history": (JobHistory(REGRESSION).base(0).pull("mine", 0), {"new", "unknown"}),
    "a breakage that the base shows": (
        passing_base(BREAKAGE).base(5, fails=True).pull("mine", 6),
        {"pre-existing"},
    ),
    "a breakage that the base shows only later": (
        passing_base(BREAKAGE).pull("mine", 5).base(7, fails=True),
        {"pre-existing", "unknown"},
    ),
    "a breakage that two pull requests show": (
        passing_base(BREAKAGE).pull("a", 5, "ben").pull("b", 5, "cleo").pull("mine", 5),
        set(),
    ),
    "a breakage that three pull requests of two trusted authors show": (
        passing_base(BREAKAGE).pull("a", 5, "ben").pull("b", 5, "cleo").pull("c", 5, "cleo").pull("mine", 5),
        {"pre-existing", "infrastructure"},
    ),
    "a breakage that three pull requests of strangers show": (
        passing_base(BREAKAGE).pull("a", 5, "finn").pull("b", 5, "gus").pull("c", 5, "finn").pull("mine", 5),
        set(),
    ),
    "a flake that was never seen before": (passing_base(FLAKE).pull("mine", 4), set()),
    "a flake of a commit that passed before": (
        passing_base(FLAKE).pull("mine", 4, fails=False).pull("mine", 4),
        {"flaky"},
    ),
    "a flake that came and went twice": (
        passing_base(FLAKE).base(5, fails=True).base(6).base(7, fails=True).base(8).pull("mine", 8),
        {"flaky"},
    ),
    "a flake that came and went once": (
        passing_base(FLAKE).base(5, fails=True).base(6).pull("mine", 6),
        {"flaky", "unknown"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_accepted_verdicts_follow_from_the_reported_results(name: str) -> None:
    job_history, accepted = CASES[name]
    assert job_history.truth().accepted == accepted


def test_a_sick_fleet_is_recognized_by_failures_of_three_unrelated_commits() -> None:
    job_history = passing_base(SICK)
    job_history.minutes = 61
    for name, author in (("a", "ben"), ("b", "cleo")):
        job_history.pull(name, 4, author)
    assert job_history.pull("mine", 4).truth().accepted == set()
    sick = passing_base(SICK)
    sick.minutes = 5
    sick.played.results.clear()
    assert sick.pull("a", 4, "ben").pull("b", 4, "cleo").pull("mine", 4).truth().accepted == {
        "infrastructure"
    }


def test_two_causes_of_a_job_without_test_lists_are_undecidable() -> None:
    job_history = passing_base(REGRESSION, lists_tests=False).pull("mine", 4)
    assert job_history.truth().accepted == {"new"}
    job_history.cause = FLAKE
    job_history.base(3, fails=True)
    job_history.cause = REGRESSION
    assert job_history.truth().accepted == set()


def test_a_missing_verdict_is_an_empty_answer() -> None:
    job = {"job_name": "test", "attempt": 1, "conclusion": "failure", "failed_tests": [{"name": "test_add"}]}
    answers = parse_pull({"backends": [{"name": "Org/One", "jobs": [job]}], "groups": [{"number": 1}]})
    assert answers.about("org/one", "test") == Answer()
    assert answers.groups == []
    assert answers.shows("org/one", "test", 1)


def test_verdicts_of_jobs_tests_missing_results_and_groups_are_parsed() -> None:
    verdict = {
        "kind": "new",
        "confidence": "high",
        "sentence": "It passed on main.",
        "evidence": [],
        "by": "rules",
    }
    job = {"job_name": "test", "verdict": verdict, "failed_tests": [{"name": "test_add", "verdict": verdict}]}
    silent = {"job_name": "build", "verdict": {**verdict, "kind": "missing"}}
    backends = [
        {"name": "org/one", "jobs": [job], "missing": [silent]},
        {"name": "org/two", "jobs": [], "verdict": {**verdict, "kind": "missing"}},
    ]
    group = {
        "fingerprint": "f1",
        "jobs": [{"downstream": "org/one", "job_name": "test"}],
        "backends": ["org/one"],
    }
    answers = parse_pull({"backends": backends, "groups": [group]})
    assert answers.about("org/one", "test") == Answer("new", "high", "It passed on main.")
    assert answers.tests["org/one", "test", "test_add"].kind == "new"
    assert [answers.about("org/one", "build").kind, answers.about("org/two", None).kind] == [
        "missing",
        "missing",
    ]
    assert answers.groups == [Group("f1", frozenset({("org/one", "test")}))]


def test_jobs_of_a_group_agree_when_they_share_a_symptom() -> None:
    symptoms = {("a", "test"): {"one"}, ("b", "test"): {"one", "two"}, ("c", "test"): {"two"}}
    pure = Group("f", frozenset({("a", "test"), ("b", "test")}))
    mixed = Group("g", frozenset(symptoms))
    assert score_groups([pure], symptoms) == GroupScore(members=2, agreeing=2, shared=4, found=3)
    assert score_groups([mixed], symptoms) == GroupScore(members=3, agreeing=2, shared=4, found=4)


def _judged(kind: str, accepted: set[str], answer: str, confidence: str = "high") -> Judged:
    return Judged(
        history=0, scenario="written", what="job", pull=1, place="", kind=kind, accepted=frozenset(accepted),  # type: ignore[arg-type]
        causes=(), answer=Answer(answer, confidence),
    )  # fmt: skip


def test_excused_regressions_miss_the_bar_of_the_report() -> None:
    right = [_judged("new", {"new"}, "new") for _ in range(999)]
    score = Score(judged=[*right, _judged("new", {"new"}, "flaky"), _judged("new", set(), "flaky")])
    score.groups = [GroupScore(1, 1, 1, 1)]
    missed = [figure.what for figure in figures(score) if not figure.is_reached]
    assert missed == ["regressions excused at high confidence"]
    assert score.undecidable_excuses() == 1
