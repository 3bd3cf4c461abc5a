"""Plays a history, begins a bisection of every breakage that the relay finds, and answers its runs by the truth.

The runs report through the relay's callback like all others, while the history goes on; a commit that cannot be tested never
reports. The history has ended when no bisection is running any more.
"""

from datetime import timedelta

from bench.answers.bisections.histories import DownstreamChange
from bench.answers.bisections.relay_bisections import BisectionAnswer, RelayBisections
from bench.answers.causes import Attempt, Failure, Job, TestedCode
from bench.answers.culprit_answers import CulpritAnswer
from bench.answers.history import History
from bench.answers.playback import Playback, Played
from bench.answers.relay import AnswersRelay
from github_sim.github import WorkflowRun

_PAUSE = timedelta(hours=6)


class BisectionPlayback(Playback):
    def __init__(self, relay: AnswersRelay, history: History) -> None:
        super().__init__(relay, history)
        self._bisections = RelayBisections(relay)
        self._begun: dict[tuple[str, str, str], int] = {}
        self.without_good_end = 0
        """Breakages without a recorded pass: nothing to begin with."""

    async def play(self) -> Played:
        played = await super().play()
        await self._run_planned()
        while await self._bisections.is_any_running():
            await self._move_to(self._relay.clock.now() + _PAUSE)
            await self._run_planned()
        return played

    async def read_answers(self) -> list[BisectionAnswer]:
        return [await self._bisections.read(bisection_id) for bisection_id in self._begun.values()]

    async def _ask_culprits(self) -> None:
        await super()._ask_culprits()
        answers = list(self.played.asked[-1].answers)
        # Of a job that was broken twice, either may be searched first; the other is left out while that is running.
        self._rng.shuffle(answers)
        for answer in answers:
            await self._begin(answer)
        await self._relay.drain()

    async def _begin(self, answer: CulpritAnswer) -> None:
        """Begin a bisection of the breakage, if it is not known already."""
        bisected = (answer.backend, answer.job, answer.bad)
        if answer.good is None:
            self.without_good_end += 1
        elif bisected not in self._begun:
            begun = await self._bisections.begin(answer.backend, answer.job, good=answer.good, bad=answer.bad)
            if begun is not None:
                self._begun[bisected] = begun

    def _note_started(self, run: WorkflowRun) -> None:
        if run.client_payload["relay"]["purpose"] != "bisection":
            super()._note_started(run)
            return
        event = run.client_payload["payload"]
        if run.event_type != "push" or not event["ref"].startswith("refs/heads/crcr-bisect/"):
            self.played.refused.append(f"bisection as {run.event_type} of {event['ref']}")
        code = TestedCode(event["after"], self._base.index(event["after"]))
        attempt = Attempt(self._by_id[run.repository_id], code, self._relay.clock.now())
        self._plan_reports(run, attempt, "bisection", None)

    def _strike(self, attempt: Attempt, job: Job) -> tuple[Failure, ...]:
        changes = [cause for cause in self._history.causes if isinstance(cause, DownstreamChange)]
        failures = [
            failure
            for failure in super()._strike(attempt, job)
            if not any(change.cures(failure, attempt.at) for change in changes)
        ]
        # A test that a breakage and chance make fail at once is listed once.
        by_test = {(failure.symptom.test if failure.symptom else None): failure for failure in failures}
        return tuple(by_test.values())
