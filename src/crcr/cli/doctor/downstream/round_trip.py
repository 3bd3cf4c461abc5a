"""Sends a test dispatch and follows it until its result is recorded, or reports where it stopped."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

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
from crcr.cli.http_client import HttpError
from crcr.cli.printing import console, escape_unprintable
from crcr.join.findings.finding import SetupFinding, State, ok, problem, unknown, warning

_POLL_S = 0.3
_ACCESS_HINT = (
    "without a token: press Run workflow in the repository's Actions tab, for the workflow of `crcr init`; the operator can run"
    " `crcr dispatch --test {} --wait`; here, an administrator sets CRCR_TOKEN (or passes --token)"
)


def run_round_trip(relay: RelayClient, patience: timedelta, *, shown: bool) -> Iterator[SetupFinding]:
    if relay.request.token is None:
        hint = _ACCESS_HINT.format(relay.request.repository)
        yield problem("test", "No test was sent: a token is needed.", hint)
        return
    if not relay.sends_tokens:
        yield problem(
            "test",
            "No test was sent: the token would be sent unencrypted.",
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
        yield from RoundTrip(relay, delivery, shown=shown).follow(patience)
    except HttpError as error:
        yield no_answer_finding("test", error)


class RoundTrip:
    """Follows one test; prints each step when it first appears, with the relay's times."""

    def __init__(self, relay: RelayClient, delivery: str, *, shown: bool) -> None:
        self._relay = relay
        self._delivery = delivery
        self._shown = shown
        self._printed: set[str] = set()
        self.steps: list[str] = []

    def follow(self, patience: timedelta) -> Iterator[SetupFinding]:
        self._print_step("asked", f"test dispatch {self._delivery}")
        end = time.monotonic() + patience.total_seconds()
        while True:
            answer = self._relay.read(f"deliveries/{self._delivery}")
            if answer.status_code == 404:
                yield unknown(
                    "test",
                    f"It was requested as {self._delivery}; this token may not read its progress.",
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
            over = self._update(dispatch)
            if over is not None or time.monotonic() >= end:
                yield over or self._timeout_finding(dispatch, patience)
                yield from self._refusal_findings(dispatch)
                return
            time.sleep(_POLL_S)

    def _update(self, dispatch: DispatchProgress) -> SetupFinding | None:
        """Print new steps; return the finding when the test has ended."""
        if dispatch.state in {"parked", "cancelled"}:
            return problem(
                "test",
                f"It was not sent: {dispatch.reason or dispatch.state}.",
                "see the findings above",
            )
        if dispatch.sent_at:
            self._print_step("sent", f"sent after {_format_delay(dispatch, dispatch.sent_at)}")
        for job in dispatch.jobs:
            self._update_job(dispatch, job)
        if dispatch.jobs and all(job.state != "in_progress" for job in dispatch.jobs):
            return self._end_finding(dispatch.jobs)
        if dispatch.state == "sent" and dispatch.level == "L1":
            return ok("test", f"It was sent ({', '.join(self.steps)}); at L1 no report is expected.")
        return None

    def _update_job(self, dispatch: DispatchProgress, job: JobProgress) -> None:
        key = f"{job.run_id} {job.job_name}"
        begun = f"{job.job_name} in progress after {_format_delay(dispatch, job.started_at)}"
        self._print_step(f"{key} begun", begun)
        if job.completed_at:
            over = f"{job.job_name} {job.conclusion or job.state} after {_format_delay(dispatch, job.completed_at)}"
            self._print_step(f"{key} over", over)

    def _end_finding(self, jobs: tuple[JobProgress, ...]) -> SetupFinding:
        bad = [job.job_name for job in jobs if job.conclusion not in {"success", "neutral", "skipped"}]
        steps = ", ".join(self.steps)
        if bad:
            return warning(
                "test",
                f"The round trip works ({steps}); not a success: {', '.join(bad)}.",
                "see its log in the Actions tab",
            )
        return ok("test", f"The round trip works: {steps}.")

    def _timeout_finding(self, dispatch: DispatchProgress, patience: timedelta) -> SetupFinding:
        within = f"within {patience.total_seconds():.0f} s"
        if dispatch.state != "sent":
            return problem(
                "test",
                f"It was not sent {within}.",
                "the relay may be paused or its worker stopped: ask the operator",
            )
        if not dispatch.jobs:
            return problem(
                "test",
                f"It was {', '.join(self.steps) or 'sent'}, but nothing was reported {within}.",
                "check that a workflow on the default branch listens to crcr_test; see its run and log in the Actions tab",
            )
        running = [job.job_name for job in dispatch.jobs if job.state == "in_progress"]
        return problem(
            "test",
            f"{', '.join(running)} started, but no result came {within}.",
            "the completed step must run `if: always()`; its log shows the relay's answer",
        )

    def _refusal_findings(self, dispatch: DispatchProgress) -> Iterator[SetupFinding]:
        """Yield the refusal finding when a report was refused since the test began."""
        if dispatch.jobs or not self._was_refused_since(dispatch.created_at):
            return
        for finding in parse_findings(self._relay.read(f"setup/{self._relay.request.repository}")) or ():
            if finding.name == "refusal" and finding.state is State.PROBLEM:
                yield finding

    def _was_refused_since(self, began: str | None) -> bool:
        answer = self._relay.read(f"backends/{self._relay.request.repository}/refusals")
        return any(
            is_not_before(refusal.at, began) for refusal in parse_refusals(answer) if not refusal.settled
        )

    def _print_step(self, key: str, text: str) -> None:
        if key in self._printed:
            return
        self._printed.add(key)
        if key != "asked":
            self.steps.append(text)
        if self._shown:
            console(stderr=True).print(f"  - {escape_unprintable(text)}", soft_wrap=True)


def _format_delay(dispatch: DispatchProgress, at: str | None) -> str:
    """Return the time since the test was requested, by the relay's clock."""
    try:
        passed = datetime.fromisoformat(at or "") - datetime.fromisoformat(dispatch.created_at or "")
    except (ValueError, TypeError, OverflowError):
        return "some time"
    return f"{max(passed.total_seconds(), 0.0):.1f} s"
