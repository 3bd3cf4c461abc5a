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


def find_one(listed: list[Any], **criteria: str) -> Any:
    [match] = [entry for entry in listed if all(entry[name] == value for name, value in criteria.items())]
    return match


@pytest.mark.parametrize("kind", ["pull_request", "push"])
@pytest.mark.parametrize("backend", [GATING, INFORMING])
async def test_a_pass_rate_is_equal_in_json_csv_metrics_and_badge(
    relay: RunningRelay, backend: str, kind: str
) -> None:
    params = {"kind": kind, "range": "7d"}
    rates = {
        repr(
            find_one((await read(relay, "summary", **params))["backends"], name=backend)["figures"]["tally"][
                "pass_rate"
            ]
        ),
        repr(
            (await read(relay, f"backends/{backend}", **params))["backend"]["figures"]["tally"]["pass_rate"]
        ),
        repr(
            find_one((await read(relay, "metrics", **params))["backends"], name=backend)["figures"]["tally"][
                "pass_rate"
            ]
        ),
        repr((await read(relay, f"badges/{backend}", **params))["tally"]["pass_rate"]),
        find_one(await lines(relay, "summary.csv", **params), name=backend)["pass_rate"] or "None",
        find_one(await lines(relay, "metrics.csv", **params), name=backend, part="whole")["pass_rate"]
        or "None",
    }
    [rate] = rates
    assert (rate == "None") == (kind == "push")


async def test_the_csv_lines_of_a_matrix_equal_its_json_cells(relay: RunningRelay) -> None:
    page = await read(relay, f"backends/{GATING}", older="true")
    cells = [
        (row["key"], cell["job_name"], cell["conclusion"] or "", cell["counted"])
        for row in page["rows"]
        for cell in row["cells"]
        if cell
    ]
    csv_lines = await lines(relay, f"backends/{GATING}.csv", older="true")
    assert cells == [
        (line["key"], line["job_name"], line["conclusion"], line["counted"])
        for line in csv_lines
        if line["job_name"]
    ]
    assert {line["key"] for line in csv_lines} == {row["key"] for row in page["rows"]}
    assert any(line["title"].startswith("'=HYPERLINK(1)") for line in csv_lines)


async def test_job_details_are_found_by_token_under_their_own_backend_only(relay: RunningRelay) -> None:
    job = (await read(relay, "jobs", downstream=GATING))["jobs"][0]
    detail = await read(relay, f"backends/{GATING}/jobs/{job['token']}")
    assert detail["job"]["run_id"] == job["run_id"]
    assert detail["attempts"][0]["token"] == job["token"]
    elsewhere = await relay.http.get(f"/api/v1/backends/{INFORMING}/jobs/{job['token']}")
    assert (elsewhere.status_code, elsewhere.json()["error"]["code"]) == (404, "not_found")


async def test_hidden_backends_are_shown_to_administrators_only(relay: RunningRelay) -> None:
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


async def test_a_response_with_a_matching_etag_is_answered_304(relay: RunningRelay) -> None:
    first = await relay.http.get("/api/v1/summary")
    revalidated = await relay.http.get("/api/v1/summary", headers={"If-None-Match": first.headers["etag"]})
    assert (revalidated.status_code, revalidated.content) == (304, b"")
