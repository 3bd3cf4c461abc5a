"""Which publication effects a change adds: one per commit, more only for classes that differ, none without visible checks."""

from collections import Counter
from pathlib import Path

from crcr.record.checks.refresh import COALESCE_DELAY
from support.github.gated_upstream import (
    INFORMING,
    LABEL,
    finish_jobs,
    gated_upstream,
    newest_run,
    open_pull,
    shown_check,
    start_jobs,
    sweep_after,
)
from support.running_relay import UPSTREAM, RunningRelay

ALONE = f"L3:\n  npu:\n    {INFORMING}: [ann]\n"
CHECK = f"crcr/{INFORMING}"


def publications(relay: RunningRelay, after: int = 0) -> Counter[str]:
    rows = relay.rows("SELECT target FROM effects WHERE kind = 'publish_checks' AND effect_id > ?", after)
    return Counter(row["target"] for row in rows)


def newest_effect(relay: RunningRelay) -> int:
    [row] = relay.rows("SELECT coalesce(max(effect_id), 0) AS newest FROM effects")
    return int(row["newest"])


async def test_a_change_adds_one_publication_effect_and_others_only_for_classes_that_differ(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, check_gathering=COALESCE_DELAY) as relay:
        await relay.github.open_pr(UPSTREAM)
        assert publications(relay) == {"checks/gate": 1}
        await relay.drain()
        await relay.pass_time(5)
        assert publications(relay) == {
            "checks/gate": 2,
            "checks/backend": 1,
        }  # webhook received, dispatch sent

        mark = newest_effect(relay)
        await start_jobs(relay, newest_run(relay))
        await relay.pass_time(5)
        assert set(publications(relay, mark)) == {"checks/gate"}

        mark = newest_effect(relay)
        await finish_jobs(relay, newest_run(relay), build="failure")
        await relay.pass_time(5)
        assert set(publications(relay, mark)) == {"checks/gate", "checks/backend", "checks/job"}
        assert relay.rows("SELECT 1 FROM effects WHERE kind = 'publish_checks' AND state <> 'done'") == []


async def test_an_l3_backend_without_its_label_adds_no_effect_until_the_label_is_added(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ALONE, downstreams=(INFORMING,)) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay, INFORMING), "build")
        await finish_jobs(relay, newest_run(relay, INFORMING), build="failure")
        assert publications(relay) == {}

        await relay.github.label_pr(pull, LABEL)
        await relay.drain()
        assert shown_check(relay, CHECK, pull.head_sha) is not None
        mark = newest_effect(relay)
        await start_jobs(relay, newest_run(relay, INFORMING), "test")
        await finish_jobs(relay, newest_run(relay, INFORMING), test="success")
        assert publications(relay, mark)["checks/gate"] > 0
        await sweep_after(relay, 180)
        status, conclusion, title = shown_check(relay, CHECK, pull.head_sha) or ("", "", "")
        assert (status, conclusion) == ("completed", "neutral")
        assert "build" in title


async def test_a_check_whose_label_is_removed_ends_as_neutral(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALONE, downstreams=(INFORMING,)) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        assert (shown_check(relay, CHECK, pull.head_sha) or ("",))[0] == "in_progress"
        await relay.github.unlabel_pr(pull, LABEL)
        await relay.drain()
        assert (shown_check(relay, CHECK, pull.head_sha) or ("",))[:2] == ("completed", "neutral")

        mark = newest_effect(relay)
        other = await open_pull(relay)
        assert publications(relay, mark) == {}
        assert shown_check(relay, CHECK, other.head_sha) is None
