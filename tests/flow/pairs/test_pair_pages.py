"""Pairs on the pages of both sides and in the API; hidden backends."""

from pathlib import Path

from support.github.gated_upstream import GATED, GATING, INFORMING, gated_upstream, latest_check, open_pull
from support.github.pairs import depends_on, end_run, open_other, open_pair, pair_runs, plain_runs
from support.running_relay import UPSTREAM, RunningRelay

HIDDEN = "org/secret-chip"
LISTED = GATED + f"L2:\n  - {HIDDEN}: {{visibility: hidden}}\n"
NAMED = f"L3:\n  npu:\n    {INFORMING}: {{oncalls: [ann], jobs: [build, test]}}\n"
SENTENCE = "passes with {}#{}, which is not merged"


async def read_page(relay: RunningRelay, path: str) -> str:
    answer = await relay.http.get(path, params={"upstream": UPSTREAM})
    assert answer.status_code == 200
    return answer.text


async def test_a_pair_is_shown_on_the_pull_request_and_backend_pages(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull, other = await open_pair(relay)
        await end_run(relay, plain_runs(relay)[0], "failure")
        await end_run(relay, pair_runs(relay)[0])
        page = await read_page(relay, f"/crcr/pr/{pull.number}")
        assert SENTENCE.format(GATING, other.number).capitalize().replace("Org", "org") in page
        assert f"{relay.github.base_url}/{GATING}/pull/{other.number}" in page
        assert f"merge {GATING}#{other.number}" in page
        backend = await read_page(relay, f"/crcr/{GATING}")
        assert f'depends on <a href="{relay.github.base_url}/{GATING}/pull/{other.number}"' in backend
        assert SENTENCE.format(GATING, other.number)[1:] in backend
        assert 'not counted">pair</span>' in await read_page(
            relay, f"/crcr/deliveries/{pair_runs(relay)[0].delivery_id}"
        )
        shown = (await relay.http.get(f"/api/v1/pulls/{pull.number}", params={"upstream": UPSTREAM})).json()
        (pair,) = shown["pairs"]
        assert (pair["backend"], pair["dependency"], pair["status"]) == (GATING, other.number, "passed")
        assert [job["conclusion"] for job in pair["result"]["jobs"]] == ["success", "success"]
        plain = {backend_state["name"]: backend_state["state"] for backend_state in shown["backends"]}
        assert plain[GATING] == "failed"


async def test_a_pair_with_a_hidden_backend_looks_like_one_with_an_unlisted_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=(GATING, INFORMING, HIDDEN)) as relay:
        relay.github.create_repository("org/unlisted")
        others = [await open_other(relay, name) for name in (HIDDEN, "org/unlisted")]
        pull = await open_pull(
            relay, body=depends_on(others[0], HIDDEN) + depends_on(others[1], "org/unlisted")
        )
        assert len(pair_runs(relay, HIDDEN)) == 1
        shown = (await relay.http.get(f"/api/v1/pulls/{pull.number}", params={"upstream": UPSTREAM})).json()
        hidden, unlisted = (
            {**pair, "sentence": pair["sentence"].replace(name, "it"), "backend": ""}
            for pair, name in zip(shown["pairs"], (HIDDEN, "org/unlisted"), strict=True)
        )
        assert hidden == unlisted
        for path in (f"/crcr/pr/{pull.number}", "/api/v1/deliveries", "/api/v1/effects", "/crcr/deliveries"):
            page = await read_page(relay, path)
            assert HIDDEN not in page.replace(f"{HIDDEN}#{others[0].number}", "").replace(
                f"{HIDDEN}/pull/{others[0].number}", ""
            )
            assert str(pair_runs(relay, HIDDEN)[0].delivery_id) not in page


async def test_at_l3_the_l3_pair_policy_decides_the_checks_conclusion(tmp_path: Path) -> None:
    for policy, title in (("plain", "failed: build"), ("neutral", "passes with")):
        folder = tmp_path / policy
        folder.mkdir()
        (folder / "crcr.toml").write_text(f'[[upstream]]\nl3_conclusion = "failure"\nl3_pair = "{policy}"\n')
        async with gated_upstream(folder, NAMED, downstreams=(INFORMING,)) as relay:
            other = await open_other(relay, INFORMING)
            pull = await open_pull(relay, body=depends_on(other, INFORMING), labels=["ciflow/crcr/npu"])
            await end_run(relay, plain_runs(relay, INFORMING)[0], "failure")
            await end_run(relay, pair_runs(relay, INFORMING)[0])
            check = latest_check(relay, f"crcr/{INFORMING}", pull.head_sha)
            assert check.conclusion == ("failure" if policy == "plain" else "neutral")
            assert check.output["title"].startswith(title)
            assert SENTENCE.format(INFORMING, other.number) in check.output["summary"].replace("\\", "")
