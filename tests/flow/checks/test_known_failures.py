"""Known failures: linked by a comment, a token or a form, shown with their group, and ended with their issue."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from crcr.record.store.statement import Statement
from crcr.wiring.background import leader_tasks
from github_sim.github import Match, PullRequest
from support.github.commands import audit_entries, relay_comments, was_obeyed
from support.github.gated_upstream import (
    GATING,
    INFORMING,
    gated_upstream,
    newest_run,
    open_pull,
    start_jobs,
    sweep_after,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay
from support.sign_in import ADMIN, TOKENS, forms, visitor

MISSING, MEMORY = "NotImplementedError: aten::foo has no kernel", "RuntimeError: device ran out of memory"
BEARER = {"authorization": f"Bearer {ADMIN}"}
HOUR = 3600.0
ISSUE_READS = ("GET", "*/issues/[0-9]*")


@asynccontextmanager
async def relay_with_failures(
    folder: Path, *messages: str, **more: Any
) -> AsyncIterator[tuple[RunningRelay, PullRequest]]:
    """A relay and a pull request whose gating backend failed once with each message, each in a separate job."""
    async with gated_upstream(folder, **more) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for job, message in zip(run.jobs, messages or (MISSING,), strict=False):
            await fail_job(relay, job.name, message)
        yield relay, pull


async def fail_job(relay: RunningRelay, job: str, message: str, downstream: str = GATING) -> None:
    tests = [{"name": "test_op", "message": message}]
    await relay.github.complete_job(newest_run(relay, downstream), job, "failure", failed_tests=tests)
    await relay.drain()


async def fetch_groups(relay: RunningRelay, **query: str) -> list[dict[str, Any]]:
    answer = await relay.http.get("/api/v1/failures", params=query)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def fetch_known_link(relay: RunningRelay) -> dict[str, Any] | None:
    (group,) = await fetch_groups(relay)
    link: dict[str, Any] | None = group["known"]
    return link


async def run_statement(relay: RunningRelay, statement: Statement) -> None:
    await relay.services.database.write(lambda tx: tx.run(statement))


def count_issue_reads(relay: RunningRelay) -> int:
    return len(relay.github.calls_to("GET", "*/issues/[0-9]*"))


async def test_a_maintainer_links_the_only_failure_of_a_pull_request_to_an_issue(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        url = relay.github.issue_url(await relay.github.open_issue(UPSTREAM))
        comment = await write_comment(relay, pull, f"/crcr known {url} until 2d because the op is new")
        assert was_obeyed(comment)
        shown = await fetch_known_link(relay)
        assert shown is not None
        assert (shown["url"], shown["state"], shown["by"]) == (url, "open", "maintainer")
        (group,) = (await relay.http.get(f"/api/v1/pulls/{pull.number}")).json()["groups"]
        assert group["known"] == shown
        page = (await relay.http.get(f"/crcr/pr/{pull.number}")).text
        assert f'href="{url}"' in page
        assert f'href="{url}"' in (await relay.http.get("/crcr/failures")).text
        assert audit_entries(relay, "known")[0]["obeyed"] is True
        relay.clock.advance(49 * HOUR)
        assert await fetch_known_link(relay) is None


@pytest.mark.parametrize("role", ["none", "read", "triage", "write", "maintain", "admin"])
async def test_linking_a_known_failure_needs_the_role_of_a_waiver(tmp_path: Path, role: str) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        url = relay.github.issue_url(await relay.github.open_issue(UPSTREAM))
        relay.github.set_permission(UPSTREAM, "somebody", role)
        for command in (f"known {url} because x", f"unknown {url}"):
            comment = await write_comment(relay, pull, f"/crcr {command}", author="somebody")
            assert was_obeyed(comment) == (role in {"maintain", "admin"})


async def test_several_failures_are_distinguished_by_fingerprint_or_job(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path, MISSING, MEMORY) as (relay, pull):
        url = relay.github.issue_url(await relay.github.open_issue(UPSTREAM))
        fingerprints = {group["sample"]: group["fingerprint"] for group in await fetch_groups(relay)}
        assert not was_obeyed(await write_comment(relay, pull, f"/crcr known {url} {GATING} because x"))
        (answer,) = relay_comments(relay, pull)
        for sample, fingerprint in fingerprints.items():
            assert f"`/crcr known {url} {fingerprint} because x` for `{sample}`" in answer
        assert was_obeyed(await write_comment(relay, pull, f"/crcr known {url} {GATING}:test because x"))
        assert [group["sample"] for group in await fetch_groups(relay, known="yes")] == [MEMORY]
        fingerprint = fingerprints[MISSING]
        assert was_obeyed(await write_comment(relay, pull, f"/crcr known {url} {fingerprint} because x"))
        assert len(await fetch_groups(relay, known="yes")) == 2
        assert was_obeyed(await write_comment(relay, pull, f"/crcr unknown {fingerprint}"))
        assert was_obeyed(await write_comment(relay, pull, f"/crcr unknown {GATING}:test"))
        assert await fetch_groups(relay, known="yes") == []
        assert not was_obeyed(await write_comment(relay, pull, f"/crcr unknown {url}"))


@pytest.mark.parametrize(
    "command",
    [
        "known https://gitlab.example/o/r/issues/1 because x",
        "known {url} 0123456789abcdef because x",
        f"known {{url}} {INFORMING} because x",
        "known {url} until 91d because x",
        "known {url}",
    ],
)
async def test_an_invalid_known_command_is_refused(tmp_path: Path, command: str) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        url = relay.github.issue_url(await relay.github.open_issue(UPSTREAM))
        assert not was_obeyed(await write_comment(relay, pull, f"/crcr {command.format(url=url)}"))
        assert await fetch_known_link(relay) is None


async def test_a_refusal_reveals_nothing_about_a_hidden_backend(tmp_path: Path) -> None:
    hidden = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], visibility: hidden}}\n"
    async with relay_with_failures(tmp_path, MISSING, MEMORY, allowlist=hidden) as (relay, pull):
        url = relay.github.issue_url(await relay.github.open_issue(UPSTREAM))
        assert not was_obeyed(await write_comment(relay, pull, f"/crcr known {url} because x"))
        assert not was_obeyed(await write_comment(relay, pull, f"/crcr known {url} {GATING} because x"))
        answers = "\n".join(relay_comments(relay, pull))
        assert "aten::foo" not in answers
        assert "memory" not in answers
        assert was_obeyed(await write_comment(relay, pull, f"/crcr known {url} {GATING}:build because x"))
        assert await fetch_groups(relay) == []


async def test_a_link_ends_at_once_when_github_sends_the_webhook_of_the_closed_issue(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        issue = await relay.github.open_issue(UPSTREAM)
        other = await relay.github.open_issue(UPSTREAM)
        await write_comment(relay, pull, f"/crcr known {relay.github.issue_url(issue)} because x")
        await relay.github.close_issue(other)
        assert await fetch_known_link(relay) is not None
        relay.clock.advance(60)
        closed = await relay.github.close_issue(issue)
        assert closed.last_delivery is not None
        assert closed.last_delivery.status_code == 202
        assert await fetch_groups(relay) == [], "it has not failed since"
        (entry,) = audit_entries(relay, "issue_closed")
        assert (entry["subject"], entry["failures"]) == (relay.github.issue_url(issue), 1)
        await relay.github.redeliver(closed.last_delivery.guid)
        assert len(audit_entries(relay, "issue_closed")) == 1
        relay.clock.advance(60)
        await fail_job(relay, "test", MISSING)
        (group,) = await fetch_groups(relay)
        assert (group["count"], group["known"]) == (2, None)


async def test_without_the_webhook_the_issue_is_read_once_an_hour(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        relay.github.installation(UPSTREAM).events = ("issue_comment",)
        issue = await relay.github.open_issue(UPSTREAM)
        await write_comment(relay, pull, f"/crcr known {relay.github.issue_url(issue)} because x")
        for _ in range(4):
            await sweep_after(relay, 600)
        assert count_issue_reads(relay) == 1
        await relay.github.close_issue(issue)
        await sweep_after(relay, 0.5 * HOUR)
        assert count_issue_reads(relay) == 2
        assert await fetch_groups(relay) == []
        await sweep_after(relay, 2 * HOUR)
        assert count_issue_reads(relay) == 2, "the link is over"


async def test_an_issue_of_another_repository_of_the_owner_is_read_too(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        owner = UPSTREAM.partition("/")[0]
        relay.github.create_repository(f"{owner}/driver")
        issue = await relay.github.open_issue(f"{owner}/driver")
        await write_comment(relay, pull, f"/crcr known {relay.github.issue_url(issue)} because x")
        relay.github.installation(UPSTREAM).events = ()
        await relay.github.close_issue(issue)
        await sweep_after(relay)
        assert await fetch_groups(relay) == []


async def test_a_link_to_an_unreadable_issue_stays_until_it_expires(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        relay.github.create_repository("elsewhere/driver", installed=False)
        issue = await relay.github.open_issue("elsewhere/driver")
        await write_comment(relay, pull, f"/crcr known {relay.github.issue_url(issue)} because x")
        await relay.github.close_issue(issue)
        await sweep_after(relay)
        assert await fetch_known_link(relay) is not None
        assert count_issue_reads(relay) == 0


async def test_without_permission_to_read_issues_no_effect_is_parked(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        issue = await relay.github.open_issue(UPSTREAM)
        await write_comment(relay, pull, f"/crcr known {relay.github.issue_url(issue)} because x")
        await relay.github.change_permissions(UPSTREAM, issues=None)
        await sweep_after(relay)
        assert await fetch_known_link(relay) is not None
        assert relay.rows("SELECT kind FROM effects WHERE state = 'parked'") == []


async def test_a_failed_read_of_an_issue_is_retried(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path) as (relay, pull):
        issue = await relay.github.open_issue(UPSTREAM)
        await write_comment(relay, pull, f"/crcr known {relay.github.issue_url(issue)} because x")
        relay.github.installation(UPSTREAM).events = ()
        await relay.github.close_issue(issue)
        relay.github.faults.answer(502, on=Match(*ISSUE_READS), times=2)
        await sweep_after(relay)
        for _ in range(6):
            relay.clock.advance(120)
            await relay.drain()
        assert await fetch_groups(relay) == []


async def test_an_administrator_links_a_known_failure_by_token(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path, **TOKENS) as (relay, _):
        (group,) = await fetch_groups(relay)
        issue = await relay.github.open_issue(UPSTREAM)
        path, body = (
            f"/api/v1/failures/{group['fingerprint']}/known",
            {"url": relay.github.issue_url(issue), "days": 7, "reason": "the op is new"},
        )
        assert (await relay.http.post(path, json=body)).status_code == 401
        answer = await relay.http.post(path, json=body, headers=BEARER)
        assert (answer.status_code, answer.json()["act"]) == (200, "known")
        shown = await fetch_known_link(relay)
        assert shown is not None
        assert shown["by"] == "ann"
        assert audit_entries(relay, "known")[0]["days"] == 7
        for wrong in (
            {"url": "https://gitlab.example/o/r/issues/1"},
            {"url": body["url"], "days": 91},
            {"url": body["url"], "days": 0},
            {},
        ):
            assert (await relay.http.post(path, json=wrong, headers=BEARER)).status_code == 400
        nothing = path.replace(group["fingerprint"], "0" * 16)
        assert (await relay.http.post(nothing, json=body, headers=BEARER)).status_code == 404
        assert (await relay.http.delete(path)).status_code == 401
        assert (await relay.http.delete(path, headers=BEARER)).status_code == 200
        assert await fetch_known_link(relay) is None
        assert (await relay.http.delete(path, headers=BEARER)).status_code == 404


async def test_an_administrator_links_a_known_failure_by_the_page_form(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path, **TOKENS) as (relay, _):
        (group,) = await fetch_groups(relay)
        url = relay.github.issue_url(await relay.github.open_issue(UPSTREAM))
        path = f"/crcr/failures/{group['fingerprint']}"
        assert "/crcr/admin/known" not in (await relay.http.get(path)).text
        async with visitor(relay) as me:
            await me.sign_in(ADMIN)
            page = await me.get(path)
            (form,) = [form for form in forms(page.text) if form[""] == "/crcr/admin/known"]
            fields = {name: value for name, value in form.items() if name}
            answer = await me.send("/crcr/admin/known", {**fields, "url": url, "reason": "the op is new"})
            assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, path)
            shown = await fetch_known_link(relay)
            assert shown is not None
            assert shown["url"] == url
            page = await me.get(path)
            (form,) = [form for form in forms(page.text) if form[""] == "/crcr/admin/unknown"]
            fields = {name: value for name, value in form.items() if name}
            assert (await me.send("/crcr/admin/unknown", fields)).status_code == 303
            assert await fetch_known_link(relay) is None


async def test_a_new_leader_computes_the_fingerprints_of_an_upgraded_database(tmp_path: Path) -> None:
    async with relay_with_failures(tmp_path) as (relay, _):
        before = await fetch_groups(relay)
        for sql in (
            "UPDATE failures SET rules = 0, fingerprint = NULL, fingerprints = NULL",
            "DELETE FROM failure_fingerprints",
            "DELETE FROM failure_groups",
        ):
            await run_statement(relay, Statement(text(sql)))
        relay.clock.advance(1)  # the earlier answer is cached for that long
        assert await fetch_groups(relay) == []
        relay.clock.advance(1)
        tasks = {task.name: task for task in leader_tasks(relay.services)}
        await tasks["update_fingerprints"].act()
        assert await fetch_groups(relay) == before
