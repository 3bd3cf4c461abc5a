"""A maintainer contradicts a verdict: it is recorded, shown and counted, and does not change the gate."""

from pathlib import Path
from typing import Any

import pytest

from crcr.record.views.logs.operator import OperatorViews
from github_sim.github import PullRequest
from support.github.checks import write_upstream_settings
from support.github.commands import audit_entries, relay_comments, was_obeyed
from support.github.gated_upstream import (
    GATING,
    gate_state,
    gated_upstream,
    open_pull,
    push_to_pull,
    write_comment,
)
from support.github.verdict_history import BROKEN, JUDGED, fail_pull
from support.running_relay import UPSTREAM, RunningRelay, repo

FLAKY = f"/crcr verdict {GATING} build is flaky because the lab was moved"


async def shown_verdict(relay: RunningRelay, pull: PullRequest) -> dict[str, Any]:
    answer = await relay.http.get(f"/api/v1/pulls/{pull.number}", params={"upstream": UPSTREAM})
    [verdict] = [
        job["verdict"] for backend in answer.json()["backends"] for job in backend["jobs"] if job["verdict"]
    ]
    return dict(verdict)


async def count_contradicted(relay: RunningRelay) -> tuple[int, int]:
    views = OperatorViews(relay.services.database, relay.services.allowlists)
    figures = await views.contradicted(repo(UPSTREAM), relay.clock.now())
    return figures.contradicted, figures.of


async def test_a_persons_verdict_is_recorded_with_that_of_the_rules_and_shown(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        pull = await fail_pull(relay, BROKEN)
        assert (await shown_verdict(relay, pull))["by"] == "rules"
        comment = await write_comment(relay, pull, FLAKY)

        assert was_obeyed(comment)
        [row] = relay.rows("SELECT * FROM person_verdicts")
        assert (row["number"], row["head_sha"], row["downstream"]) == (pull.number, pull.head_sha, GATING)
        assert (row["job"], row["verdict"], row["rules_verdict"]) == ("build", "flaky", "unknown")
        assert (row["who"], row["reason"]) == ("maintainer", "the lab was moved")
        [entry] = audit_entries(relay, "verdict")
        assert (entry["command"], entry["obeyed"]) == (FLAKY.replace(" build", ":build"), True)
        verdict = await shown_verdict(relay, pull)
        assert (verdict["kind"], verdict["by"]) == ("flaky", "person")
        assert verdict["sentence"].startswith("maintainer says: the lab was moved (the rules say unknown:")
        await write_comment(relay, pull, "/crcr status")
        assert "; `@maintainer` says flaky: `the lab was moved`" in relay_comments(relay, pull)[-1]


@pytest.mark.parametrize("kind", ["pre-existing", "flaky"])
async def test_a_persons_verdict_never_excuses_a_failure(tmp_path: Path, kind: str) -> None:
    write_upstream_settings(tmp_path, excuses=["pre-existing", "flaky"])
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        pull = await fail_pull(relay, BROKEN)
        await write_comment(relay, pull, FLAKY.replace("is flaky", f"is {kind}"))
        await relay.services.reconciler.run(thorough=True)
        await relay.drain()

        assert (await shown_verdict(relay, pull))["kind"] == kind
        assert (gate_state(relay, pull), audit_entries(relay, "excuse")) == ("failure", [])


async def test_contradictions_of_30_days_are_counted_once_for_each_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        pull = await fail_pull(relay, BROKEN)
        agreed = await fail_pull(relay, BROKEN, author="ben", files=("src/b.py",))
        for text in (FLAKY, FLAKY.replace("is flaky", "is new")):
            await write_comment(relay, pull, text)
        await write_comment(relay, agreed, FLAKY.replace("is flaky", "is unknown"))

        assert await count_contradicted(relay) == (1, 2)
        metrics = (await relay.http.get("/metrics")).text
        assert f'crcr_verdicts_contradicted{{upstream="{UPSTREAM}"}} 1.0' in metrics
        relay.clock.advance(31 * 24 * 3600)
        assert await count_contradicted(relay) == (0, 0)


REFUSED = [
    (f"/crcr verdict {GATING} test is new because x", "no job `test` of `org/gating` has failed on this head; failed: `build`"),
    ("/crcr verdict org/other build is new because x", "no job of `org/other` has failed on this head"),
    (f"/crcr verdict {GATING} build is bad because x", "`bad` is no verdict"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "why"), REFUSED)
async def test_an_invalid_verdict_command_is_refused_with_the_reason(
    tmp_path: Path, command: str, why: str
) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        pull = await fail_pull(relay, BROKEN)
        comment = await write_comment(relay, pull, command)

        assert not was_obeyed(comment)
        assert why in relay_comments(relay, pull)[-1]
        assert relay.rows("SELECT 1 FROM person_verdicts") == []


async def test_a_verdict_counts_only_for_failures_of_the_current_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        pull = await fail_pull(relay, BROKEN)
        await push_to_pull(relay, pull)
        assert not was_obeyed(await write_comment(relay, pull, FLAKY))
        assert not was_obeyed(await write_comment(relay, await open_pull(relay), FLAKY))
