"""The same figures in JSON, CSV, metrics and badge, to the last digit and for every reader."""

import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.github.gated_upstream import GATING, INFORMING
from support.running_relay import RunningRelay
from support.served_relay import ADMIN, HIDDEN_BACKEND, relay_with_history

AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    async with relay_with_history(tmp_path) as relay:
        yield relay


async def read(relay: RunningRelay, path: str, **params: str) -> Any:
    answer = await relay.http.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def lines(relay: RunningRelay, path: str, **params: str) -> list[dict[str, str]]:
    answer = await relay.http.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


def one(listed: list[Any], **wanted: str) -> Any:
    [found] = [each for each in listed if all(each[name] == value for name, value in wanted.items())]
    return found


@pytest.mark.parametrize("kind", ["pull_request", "push"])
@pytest.mark.parametrize("backend", [GATING, INFORMING])
async def test_a_pass_rate_is_the_same_everywhere(relay: RunningRelay, backend: str, kind: str) -> None:
    asked = {"kind": kind, "range": "7d"}
    rates = {
        repr(
            one((await read(relay, "summary", **asked))["backends"], name=backend)["figures"]["tally"][
                "pass_rate"
            ]
        ),
        repr((await read(relay, f"backends/{backend}", **asked))["backend"]["figures"]["tally"]["pass_rate"]),
        repr(
            one((await read(relay, "metrics", **asked))["backends"], name=backend)["figures"]["tally"][
                "pass_rate"
            ]
        ),
        repr((await read(relay, f"badges/{backend}", **asked))["tally"]["pass_rate"]),
        one(await lines(relay, "summary.csv", **asked), name=backend)["pass_rate"] or "None",
        one(await lines(relay, "metrics.csv", **asked), name=backend, part="whole")["pass_rate"] or "None",
    }
    [rate] = rates
    assert (rate == "None") == (kind == "push")


async def test_the_lines_of_a_matrix_are_its_cells(relay: RunningRelay) -> None:
    page = await read(relay, f"backends/{GATING}", older="true")
    cells = [
        (row["key"], cell["job_name"], cell["conclusion"] or "", cell["counted"])
        for row in page["rows"]
        for cell in row["cells"]
        if cell
    ]
    told = await lines(relay, f"backends/{GATING}.csv", older="true")
    assert cells == [
        (each["key"], each["job_name"], each["conclusion"], each["counted"])
        for each in told
        if each["job_name"]
    ]
    assert {each["key"] for each in told} == {row["key"] for row in page["rows"]}
    assert any(each["title"].startswith("'=HYPERLINK(1)") for each in told)


async def test_a_jobs_details_are_found_by_its_token_at_its_own_backend_only(relay: RunningRelay) -> None:
    job = (await read(relay, "jobs", downstream=GATING))["jobs"][0]
    detail = await read(relay, f"backends/{GATING}/jobs/{job['token']}")
    assert detail["job"]["run_id"] == job["run_id"]
    assert detail["attempts"][0]["token"] == job["token"]
    elsewhere = await relay.http.get(f"/api/v1/backends/{INFORMING}/jobs/{job['token']}")
    assert (elsewhere.status_code, elsewhere.json()["error"]["code"]) == (404, "not_found")


async def test_what_is_hidden_is_for_administrators(relay: RunningRelay) -> None:
    for path in ("summary", "metrics", "allowlist", "jobs", "deliveries", "effects/list", "audit"):
        for form in ("", ".csv"):
            address = f"/api/v1/{path}{form}".replace("/list.csv", ".csv")
            assert HIDDEN_BACKEND not in (await relay.http.get(address)).text, address
    for path in (
        "summary",
        "summary.csv",
        "jobs",
        "jobs.csv",
        f"backends/{HIDDEN_BACKEND}",
        f"backends/{HIDDEN_BACKEND}.csv",
    ):
        shown = await relay.http.get(f"/api/v1/{path}", headers=AS_ADMIN)
        assert shown.status_code == 200
        assert "private" in shown.headers["cache-control"]
        assert "secret" in shown.text
    hidden = await relay.http.get(f"/api/v1/backends/{HIDDEN_BACKEND}")
    assert hidden.json()["error"]["detail"].startswith(f"{HIDDEN_BACKEND} is not a backend")


async def test_an_answer_that_is_known_is_not_sent_again(relay: RunningRelay) -> None:
    first = await relay.http.get("/api/v1/summary")
    again = await relay.http.get("/api/v1/summary", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
