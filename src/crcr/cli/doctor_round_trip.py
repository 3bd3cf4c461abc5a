"""A test dispatch, followed step by step until its result is recorded, or until it is clear where it stopped."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx

from crcr.cli.doctor_downstream import Relay, body_of, lost, refused
from crcr.cli.printing import console, plain
from crcr.join.finding import Finding, ok, problem, unknown, warning

_LOOK_EVERY_S = 0.3
_WHO_MAY = (
    "the operator runs `crcr dispatch --test OWNER/REPO --wait`, an administrator gives --token or CRCR_TOKEN, and a job of "
    "the repository itself an OIDC token with the relay's audience"
)


def round_trip(relay: Relay, patience: timedelta, *, shown: bool) -> Iterator[Finding]:
    if relay.asked.token is None:
        yield unknown("test", "No test was sent: it takes a token.", _WHO_MAY)
        return
    if not relay.sends_tokens:
        yield problem(
            "test",
            "No test was sent: the token would travel unencrypted.",
            "use the relay's https:// address",
        )
        return
    try:
        sent = relay.post(f"setup/{relay.asked.repository}/test", with_token=True)
        if not sent.is_success:
            yield refused("test", sent)
            return
        yield from Following(relay, str(body_of(sent).get("delivery")), shown=shown).until(patience)
    except httpx.HTTPError as error:
        yield lost("test", error)


class Following:
    """One test's way; each step is told when it is first seen, with the relay's own times."""

    def __init__(self, relay: Relay, delivery: str, *, shown: bool) -> None:
        self._relay = relay
        self._delivery = delivery
        self._shown = shown
        self._told: set[str] = set()
        self.steps: list[str] = []

    def until(self, patience: timedelta) -> Iterator[Finding]:
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
                yield refused("test", answer)
                return
            dispatch = next(iter(body_of(answer).get("dispatches") or [{}]))
            over = self._see(dispatch)
            if over is not None or time.monotonic() >= end:
                yield over or self._stopped(dispatch, patience)
                yield from self._refusal(dispatch)
                return
            time.sleep(_LOOK_EVERY_S)

    def _see(self, dispatch: dict[str, Any]) -> Finding | None:
        """Tell what is new; return the end, if this is it."""
        state, jobs = dispatch.get("state"), dispatch.get("jobs") or []
        if state in {"parked", "cancelled"}:
            return problem(
                "test",
                f"It was not sent: {dispatch.get('reason') or state}.",
                "the findings above say what is wrong",
            )
        if dispatch.get("sent_at"):
            self._tell("sent", f"sent after {_after(dispatch, dispatch['sent_at'])}")
        for job in jobs:
            self._tell(
                f"{job['run_id']} {job['job_name']} begun",
                f"{job['job_name']} in progress after {_after(dispatch, job['started_at'])}",
            )
            if job.get("completed_at"):
                self._tell(
                    f"{job['run_id']} {job['job_name']} over",
                    f"{job['job_name']} {job['conclusion'] or job['state']} after {_after(dispatch, job['completed_at'])}",
                )
        if jobs and all(job["state"] != "in_progress" for job in jobs):
            return self._end(jobs)
        if state == "sent" and dispatch.get("level") == "L1":
            return ok("test", f"It was sent ({', '.join(self.steps)}); at L1 no report is expected.")
        return None

    def _end(self, jobs: list[dict[str, Any]]) -> Finding:
        bad = [
            job["job_name"] for job in jobs if job.get("conclusion") not in {"success", "neutral", "skipped"}
        ]
        way = ", ".join(self.steps)
        if bad:
            return warning(
                "test",
                f"The round trip works ({way}); not a success: {', '.join(bad)}.",
                "its log in the Actions tab says why",
            )
        return ok("test", f"The round trip works: {way}.")

    def _stopped(self, dispatch: dict[str, Any], patience: timedelta) -> Finding:
        within = f"within {patience.total_seconds():.0f} s"
        if dispatch.get("state") != "sent":
            return problem(
                "test",
                f"It was not sent {within}.",
                "is the relay paused, or its worker away? ask the operator",
            )
        if not dispatch.get("jobs"):
            return problem(
                "test",
                f"It was {', '.join(self.steps) or 'sent'}, and nothing was reported {within}.",
                "does a workflow on the default branch listen to crcr_test? look at the Actions tab for its run, and its log",
            )
        running = [job["job_name"] for job in dispatch["jobs"] if job["state"] == "in_progress"]
        return problem(
            "test",
            f"{', '.join(running)} began, and no result came {within}.",
            "the completed step must run `if: always()`; its log says what the relay answered",
        )

    def _refusal(self, dispatch: dict[str, Any]) -> Iterator[Finding]:
        """A refusal since the test began explains more than silence does."""
        path = f"setup/{self._relay.asked.repository}"
        for each in body_of(self._relay.read(path)).get("findings") or []:
            if each.get("name") == "refusal" and each.get("state") == "problem" and not dispatch.get("jobs"):
                yield problem("refusal", str(each["text"]), str(each["hint"]))

    def _tell(self, key: str, words: str) -> None:
        if key in self._told:
            return
        self._told.add(key)
        if key != "asked":
            self.steps.append(words)
        if self._shown:
            console(stderr=True).print(f"  - {plain(words)}", soft_wrap=True)


def _after(dispatch: dict[str, Any], at: str) -> str:
    """How long after the test was asked for, by the relay's clock."""
    try:
        passed = datetime.fromisoformat(at) - datetime.fromisoformat(dispatch["created_at"])
    except (KeyError, ValueError, TypeError):
        return "some time"
    return f"{max(passed.total_seconds(), 0.0):.1f} s"
