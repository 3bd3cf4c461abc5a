"""Verdicts in the checks of a pull request, through the whole relay."""

from pathlib import Path

from support.github.checks import check_names
from support.github.gated_upstream import GATE, GATING, gated_upstream, latest_check, shown_check
from support.github.verdict_history import BROKEN, JUDGED, OTHER, end_build, fail_pull, push_base
from support.running_relay import RELAY_URL, UPSTREAM, RunningRelay

BACKEND, BUILD = check_names(GATING, "build")
ALIKE = "pre-existing: the base failed alike 2 times in a row, last at the commit that this was built on"


def title(relay: RunningRelay, name: str, sha: str) -> str:
    check = shown_check(relay, name, sha)
    return check[2] if check else "absent"


async def test_each_check_of_a_failure_shows_the_verdict_and_links_to_its_evidence(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        await push_base(relay, BROKEN)
        await push_base(relay, BROKEN)
        base = relay.github.repository(UPSTREAM).head_sha
        pull = await fail_pull(relay, BROKEN)

        link = f"({RELAY_URL}/crcr/commit/{base}?upstream={UPSTREAM})"
        for name in (GATE, BACKEND, BUILD):
            check = latest_check(relay, name, pull.head_sha)
            assert check.conclusion == "failure"
            assert ALIKE[:60] in title(relay, name, pull.head_sha)
            assert ALIKE.replace(": ", ": `") in str(check.output["summary"])
            assert link in str(check.output["summary"])


async def test_a_verdict_that_changes_is_published_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        for _ in range(3):
            await push_base(relay)
        run = await push_base(relay, OTHER)
        pull = await fail_pull(relay, BROKEN)
        assert ", new: the base passed 4 times" in title(relay, BUILD, pull.head_sha)

        # The base's newest commit is run again, and fails like the pull request.
        await relay.github.rerun(run)
        await end_build(relay, run, BROKEN)

        assert "pre-existing: the base failed alike once" in title(relay, BUILD, pull.head_sha)
        assert "pre-existing" in title(relay, GATE, pull.head_sha)
