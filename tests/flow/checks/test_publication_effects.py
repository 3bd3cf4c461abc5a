"""Which publication effects a fact adds: one per commit, more only for classes that differ, none where nothing shows."""

from collections import Counter
from pathlib import Path

from crcr.record.checks.refresh import COALESCE_DELAY
from support.github.gated_upstream import (
    INFORMING,
    LABEL,
    Stage,
    finish_jobs,
    gated_upstream,
    newest_run,
    open_pull,
    shown_check,
    start_jobs,
    sweep_after,
)
from support.stage import UPSTREAM

ALONE = f"L3:\n  npu:\n    {INFORMING}: [ann]\n"
CHECK = f"crcr/{INFORMING}"


def publications(it: Stage, after: int = 0) -> Counter[str]:
    rows = it.rows("SELECT target FROM effects WHERE kind = 'publish_checks' AND effect_id > ?", after)
    return Counter(row["target"] for row in rows)


def newest_effect(it: Stage) -> int:
    [row] = it.rows("SELECT coalesce(max(effect_id), 0) AS newest FROM effects")
    return int(row["newest"])


async def test_a_fact_adds_one_effect_and_other_classes_only_where_they_differ(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, check_gathering=COALESCE_DELAY) as it:
        await it.github.open_pr(UPSTREAM)
        assert publications(it) == {"checks/gate": 1}
        await it.act()
        await it.pass_time(5)
        assert publications(it) == {"checks/gate": 2, "checks/backend": 1}  # arrived, and sent

        mark = newest_effect(it)
        await start_jobs(it, newest_run(it))
        await it.pass_time(5)
        assert set(publications(it, mark)) == {"checks/gate"}

        mark = newest_effect(it)
        await finish_jobs(it, newest_run(it), build="failure")
        await it.pass_time(5)
        assert set(publications(it, mark)) == {"checks/gate", "checks/backend", "checks/job"}
        assert it.rows("SELECT 1 FROM effects WHERE kind = 'publish_checks' AND state <> 'done'") == []


async def test_an_l3_backend_without_its_label_adds_no_effect_until_the_label_comes(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALONE, downstreams=(INFORMING,)) as it:
        pull = await open_pull(it)
        await start_jobs(it, newest_run(it, INFORMING), "build")
        await finish_jobs(it, newest_run(it, INFORMING), build="failure")
        assert publications(it) == {}

        await it.github.label_pr(pull, LABEL)
        await it.act()
        assert shown_check(it, CHECK, pull.head_sha) is not None
        mark = newest_effect(it)
        await start_jobs(it, newest_run(it, INFORMING), "test")
        await finish_jobs(it, newest_run(it, INFORMING), test="success")
        assert publications(it, mark)["checks/gate"] > 0
        await sweep_after(it, 180)
        status, conclusion, title = shown_check(it, CHECK, pull.head_sha) or ("", "", "")
        assert (status, conclusion) == ("completed", "neutral")
        assert "build" in title


async def test_a_check_whose_label_is_taken_away_ends(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALONE, downstreams=(INFORMING,)) as it:
        pull = await open_pull(it, labels=[LABEL])
        assert (shown_check(it, CHECK, pull.head_sha) or ("",))[0] == "in_progress"
        await it.github.unlabel_pr(pull, LABEL)
        await it.act()
        assert (shown_check(it, CHECK, pull.head_sha) or ("",))[:2] == ("completed", "neutral")

        mark = newest_effect(it)
        other = await open_pull(it)
        assert publications(it, mark) == {}
        assert shown_check(it, CHECK, other.head_sha) is None
