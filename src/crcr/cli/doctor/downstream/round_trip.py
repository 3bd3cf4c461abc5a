"""A test dispatch, followed step by step until its result is recorded, or until it is clear where it stopped."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import httpx

from crcr.cli.doctor.downstream.relay_api import (
    DispatchProgress,
    JobProgress,
    RelayClient,
    is_not_before,
    no_answer_finding,
    parse_delivery_id,
    parse_dispatch,
    parse_findings,
    parse_refusals,
    refused_finding,
    unreadable_finding,
)
from crcr.cli.printing import console, escape_unprintable
from crcr.join.findings.finding import SetupFinding, State, ok, problem, unknown, warning

_LOOK_EVERY_S = 0.3
_WHO_MAY = (
    "the operator runs `crcr dispatch --test {} --wait`; here, an administrator sets CRCR_TOKEN (or gives --token), and a"
    " job of the repository itself may use its OIDC token with the relay's audience"
)


def run_round_trip(relay: RelayClient, patience: timedelta, *, shown: bool) -> Iterator[SetupFinding]:
    if relay.request.token is None:
        hint = _WHO_MAY.format(relay.request.repository)
        yield problem("test", "No test was sent: it takes a token.", hint)
        return
    if not relay.sends_tokens:
        yield problem(
            "test",
            "No test was sent: the token would travel unencrypted.",
            "use the relay's https:// address",
        )
        return
    try:
        sent = relay.post(f"setup/{relay.request.repository}/test", with_token=True)
        if not sent.is_success:
            yield refused_finding("test", sent)
            return
        delivery = parse_delivery_id(sent)
        if delivery is None:
            yield unreadable_finding("test")
            return
        yield from RoundTrip(relay, delivery, shown=shown).until(patience)
    except httpx.HTTPError as error:
        yield no_answer_finding("test", error)


class RoundTrip:
    """One test's way; each step is told when it is first seen, with the relay's own times."""

    def __init__(self, relay: RelayClient, delivery: str, *, shown: bool) -> None:
        self._relay = relay
        self._delivery = delivery
        self._shown = shown
        self._told: set[str] = set()
        self.steps: list[str] = []

    def until(self, patience: timedelta) -> Iterator[SetupFinding]:
        self._tell("asked", f"test dispatch {self._delivery}")
        end = time.monotonic() + patience.total_seconds()
        while True:
            answer = self._relay.read(f"deliveries/{self._delivery}")
            if answer.status_code == 404:
                yield unknown(
                    "test",
                    f"It was asked for as {self._delivery}; this token may not follow it.",
                    "look at the repository's Actions tab",
                )
                return
            if not answer.is_success:
                yield refused_finding("test", answer)
                return
            dispatch = parse_dispatch(answer)
            if dispatch is None:
                yield unreadable_finding("test")
                return
            over = self._see(dispatch)
            if over is not None or time.monotonic() >= end:
                yield over or self._stopped(dispatch, patience)
                yield from self._refusal(dispatch)
                return
            time.sleep(_LOOK_EVERY_S)

    def _see(self, dispatch: DispatchProgress) -> SetupFinding | None:
        """Tell what is new; return the end, if this is it."""
        if dispatch.state in {"parked", "cancelled"}:
            return problem(
                "test",
                f"It was not sent: {dispatch.reason or dispatch.state}.",
                "the findings above say what is wrong",
            )
        if dispatch.sent_at:
            self._tell("sent", f"sent after {_after(dispatch, dispatch.sent_at)}")
        for job in dispatch.jobs:
            self._see_job(dispatch, job)
        if dispatch.jobs and all(job.state != "in_progress" for job in dispatch.jobs):
            return self._end(dispatch.jobs)
        if dispatch.state == "sent" and dispatch.level == "L1":
            return ok("test", f"It was sent ({', '.join(self.steps)}); at L1 no report is expected.")
        return None

    def _see_job(self, dispatch: DispatchProgress, job: JobProgress) -> None:
        key = f"{job.run_id} {job.job_name}"
        begun = f"{job.job_name} in progress after {_after(dispatch, job.started_at)}"
        self._tell(f"{key} begun", begun)
        if job.completed_at:
            over = f"{job.job_name} {job.conclusion or job.state} after {_after(dispatch, job.completed_at)}"
            self._tell(f"{key} over", over)

    def _end(self, jobs: tuple[JobProgress, ...]) -> SetupFinding:
        bad = [job.job_name for job in jobs if job.conclusion not in {"success", "neutral", "skipped"}]
        way = ", ".join(self.steps)
        if bad:
            return warning(
                "test",
                f"The round trip works ({way}); not a success: {', '.join(bad)}.",
                "its log in the Actions tab says why",
            )
        return ok("test", f"The round trip works: {way}.")

    def _stopped(self, dispatch: DispatchProgress, patience: timedelta) -> SetupFinding:
        within = f"within {patience.total_seconds():.0f} s"
        if dispatch.state != "sent":
            return problem(
                "test",
                f"It was not sent {within}.",
                "is the relay paused, or its worker away? ask the operator",
            )
        if not dispatch.jobs:
            return problem(
                "test",
                f"It was {', '.join(self.steps) or 'sent'}, and nothing was reported {within}.",
                "does a workflow on the default branch listen to crcr_test? look at the Actions tab for its run, and its log",
            )
        running = [job.job_name for job in dispatch.jobs if job.state == "in_progress"]
        return problem(
            "test",
            f"{', '.join(running)} began, and no result came {within}.",
            "the completed step must run `if: always()`; its log says what the relay answered",
        )

    def _refusal(self, dispatch: DispatchProgress) -> Iterator[SetupFinding]:
        """A refusal since the test began explains more than silence does."""
        if dispatch.jobs or not self._was_refused_since(dispatch.created_at):
            return
        for each in parse_findings(self._relay.read(f"setup/{self._relay.request.repository}")) or ():
            if each.name == "refusal" and each.state is State.PROBLEM:
                yield each

    def _was_refused_since(self, began: str | None) -> bool:
        answer = self._relay.read(f"backends/{self._relay.request.repository}/refusals")
        return any(is_not_before(each.at, began) for each in parse_refusals(answer) if not each.settled)

    def _tell(self, key: str, words: str) -> None:
        if key in self._told:
            return
        self._told.add(key)
        if key != "asked":
            self.steps.append(words)
        if self._shown:
            console(stderr=True).print(f"  - {escape_unprintable(words)}", soft_wrap=True)


def _after(dispatch: DispatchProgress, at: str | None) -> str:
    """How long after the test was asked for, by the relay's clock."""
    try:
        passed = datetime.fromisoformat(at or "") - datetime.fromisoformat(dispatch.created_at or "")
    except (ValueError, TypeError, OverflowError):
        return "some time"
    return f"{max(passed.total_seconds(), 0.0):.1f} s"
