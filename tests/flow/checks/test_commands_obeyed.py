"""`/crcr` commands on pull requests: permissions, answers, and that each command is executed once."""

import json
from pathlib import Path

import pytest

from github_sim.github import Match
from support.github.commands import (
    WAIVE,
    audit_entries,
    failing_pull,
    reaction_names,
    relay_comments,
    was_obeyed,
)
from support.github.gated_upstream import (
    GATING,
    INFORMING,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    write_comment,
)
from support.running_relay import UPSTREAM

HOUR = 3600.0
COMMENTS = "*/issues/*/comments"


# Permissions

ROLES_BY_COMMAND = {
    "waive": {"maintain", "admin"},
    "unwaive": {"maintain", "admin"},
    "retry": {"write", "maintain", "admin"},
    "approve": {"write", "maintain", "admin"},
    "status": {"write", "maintain", "admin"},
    "verdict": {"maintain", "admin"},
}
COMMANDS = {
    "waive": WAIVE,
    "unwaive": f"/crcr unwaive {GATING}",
    "retry": f"/crcr retry {GATING}",
    "approve": "/crcr approve",
    "status": "/crcr status",
    "verdict": f"/crcr verdict {GATING} build is flaky because the lab says so",
}


@pytest.mark.parametrize("role", ["none", "read", "triage", "write", "maintain", "admin"])
async def test_each_role_may_give_only_its_permitted_commands(tmp_path: Path, role: str) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)
        relay.github.set_permission(UPSTREAM, "somebody", role)
        comments = {
            verb: await write_comment(relay, pull, COMMANDS[verb], author="somebody")
            for verb in sorted(COMMANDS)
        }

        assert {verb for verb, comment in comments.items() if was_obeyed(comment)} == {
            verb for verb, roles in ROLES_BY_COMMAND.items() if role in roles
        }


async def test_the_author_of_a_pull_request_may_only_retry_it_and_request_its_status(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay, author="Newcomer", author_association="NONE")
        comments = {
            verb: await write_comment(relay, pull, COMMANDS[verb], author="newcomer")
            for verb in sorted(COMMANDS)
        }

        assert {verb for verb, comment in comments.items() if was_obeyed(comment)} == {"retry", "status"}


async def test_the_author_of_another_pull_request_may_not_retry(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay, author="stranger")
        pull = await failing_pull(relay)
        comment = await write_comment(relay, pull, "/crcr retry", author="stranger")

        assert not was_obeyed(comment)
        assert newest_run(relay).attempt == 1


async def test_permissions_are_read_from_github_and_not_from_the_comments_author_association(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        relay.clock.advance(1)
        comment = await relay.github.comment_pr(pull, WAIVE, author="boaster", author_association="OWNER")
        await relay.drain()

        assert not was_obeyed(comment)
        assert gate_state(relay, pull) == "failure"


async def test_a_revoked_permission_counts_from_the_next_command(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        assert was_obeyed(await write_comment(relay, pull, WAIVE))
        relay.github.set_permission(UPSTREAM, "maintainer", "read")

        assert not was_obeyed(await write_comment(relay, pull, f"/crcr unwaive {GATING}"))
        assert gate_state(relay, pull) == "success"


async def test_a_command_waits_while_the_permissions_of_its_author_cannot_be_read(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        fault = relay.github.faults.answer(503, on=Match(path="*/collaborators/*"))
        comment = await write_comment(relay, pull, WAIVE)
        assert (reaction_names(comment), gate_state(relay, pull)) == ([], "failure")
        relay.github.faults.remove(fault)
        await relay.pass_time(60)

        assert (reaction_names(comment), gate_state(relay, pull)) == (["+1"], "success")


@pytest.mark.parametrize(
    ("author", "kind"),
    [("ghost", "User"), ("helper[bot]", "Bot"), ("sneaky[bot]", "User"), ("org", "Organization")],
)
async def test_commands_of_bots_and_deleted_accounts_are_refused_with_only_a_reaction(
    tmp_path: Path, author: str, kind: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        relay.github.set_permission(UPSTREAM, author, "admin")
        relay.clock.advance(1)
        comment = await relay.github.comment_pr(pull, WAIVE, author=author, author_type=kind)
        await relay.drain()

        assert (reaction_names(comment), relay_comments(relay, pull)) == (["-1"], [])
        assert gate_state(relay, pull) == "failure"


async def test_commands_of_the_app_itself_are_refused(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        app = "crcr-simulated[bot]"
        relay.github.set_permission(UPSTREAM, app, "admin")
        relay.clock.advance(1)
        comment = await relay.github.comment_pr(pull, WAIVE, author=app, author_type="Bot")
        await relay.drain()

        assert (reaction_names(comment), relay_comments(relay, pull)) == (["-1"], [])
        assert gate_state(relay, pull) == "failure"


async def test_a_command_of_a_user_without_permission_changes_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        before = (
            relay.rows("SELECT * FROM gates"),
            relay.rows("SELECT * FROM dispatches"),
            relay.rows("SELECT * FROM runs"),
        )
        for verb in sorted(COMMANDS):
            await write_comment(relay, pull, COMMANDS[verb], author="passer-by", after_s=1)

        assert before == (
            relay.rows("SELECT * FROM gates"),
            relay.rows("SELECT * FROM dispatches"),
            relay.rows("SELECT * FROM runs"),
        )
        assert relay.rows("SELECT * FROM waivers") == relay.rows("SELECT * FROM approvals") == []


# Answers


async def test_a_refusal_names_the_missing_role_once_per_person_and_pull_request(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull, other = await failing_pull(relay), await open_pull(relay)
        comments = [await write_comment(relay, pull, WAIVE, author="passer-by") for _ in range(3)]
        await write_comment(relay, pull, WAIVE, author="another")
        await write_comment(relay, other, WAIVE, author="passer-by")

        assert [reaction_names(comment) for comment in comments] == [["-1"]] * 3
        first, second = relay_comments(relay, pull)
        assert first.startswith("@passer-by")
        assert "`waive` needs the maintain role in this repository; yours is read" in first
        assert second.startswith("@another")
        assert len(relay_comments(relay, other)) == 1


async def test_an_invalid_command_is_answered_once_with_the_correct_syntax(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        comments = [
            await write_comment(relay, pull, text)
            for text in (f"/crcr wave {GATING}", f"/crcr waive {GATING}")
        ]

        assert [reaction_names(comment) for comment in comments] == [["-1"], ["-1"]]
        [answer] = relay_comments(relay, pull)
        assert "/crcr waive owner/repo[:job] [until 3d] [at 1a2b3c4] because <reason>" in answer


async def test_the_relays_own_answer_is_never_parsed_as_a_command(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, f"/crcr waive {GATING} becuase\n/crcr {WAIVE}", author="passer-by")
        await write_comment(relay, pull, "/crcr status")

        app_comments = [comment for comment in relay.github.comments(pull) if comment.by_app]
        assert len(app_comments) == 2
        webhook_answers = [
            comment.last_delivery.answer_body for comment in app_comments if comment.last_delivery
        ]
        assert ["a comment without a command" in answer for answer in webhook_answers] == [True, True]


async def test_status_lists_the_states_of_the_backends(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        comment = await write_comment(relay, pull, "/crcr status")

        [answer] = relay_comments(relay, pull)
        assert reaction_names(comment) == ["+1"]
        assert f"{GATING} failed (build)" in answer
        assert f"- `{GATING}` `build`: unknown: `too little history:" in answer
        assert f"/crcr waive {GATING} at {pull.head_sha[:12]} because" in answer


async def test_every_status_command_is_answered_even_after_a_refusal(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        for text in ("/crcr nonsense", "/crcr status", "/crcr status\n/crcr nonsense"):
            await write_comment(relay, pull, text)

        assert ["waiting for" in answer for answer in relay_comments(relay, pull)] == [False, True, True]
        assert ["nonsense" in answer for answer in relay_comments(relay, pull)] == [True, False, False]


async def test_several_commands_of_one_comment_are_executed_in_order(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        comment = await write_comment(
            relay, pull, f"Please.\n\n{WAIVE}\n/crcr unwaive {GATING}\n/crcr status"
        )

        assert reaction_names(comment) == ["+1"]
        assert gate_state(relay, pull) == "failure"
        assert (
            len(audit_entries(relay, "waive"))
            == len(audit_entries(relay, "unwaive"))
            == len(audit_entries(relay, "status"))
            == 1
        )


async def test_valid_commands_of_a_partly_refused_comment_are_executed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        comment = await write_comment(relay, pull, f"/crcr dance\n{WAIVE}")

        assert reaction_names(comment) == ["-1"]
        assert gate_state(relay, pull) == "success"
        assert ["dance" in answer for answer in relay_comments(relay, pull)] == [True]


# Text that is not a command

IGNORED_COMMENTS = [
    f"> {WAIVE}",
    f"```\n{WAIVE}\n```",
    f"~~~\n{WAIVE}",
    f"    {WAIVE}",
    f"`{WAIVE}`",
    f"<!--\n{WAIVE}\n-->",
    f"please {WAIVE}",
    WAIVE.replace("/crcr", "/crcrx"),
]


@pytest.mark.parametrize("body", IGNORED_COMMENTS)
async def test_a_command_in_code_a_quote_an_html_comment_or_the_middle_of_a_line_is_ignored(
    tmp_path: Path, body: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        comment = await write_comment(relay, pull, body)

        assert (reaction_names(comment), relay_comments(relay, pull), gate_state(relay, pull)) == (
            [],
            [],
            "failure",
        )


async def test_edits_and_deletions_of_comments_change_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        innocent = await write_comment(relay, pull, "Looks good.")
        await relay.github.edit_comment(innocent, WAIVE)
        await relay.drain()
        assert gate_state(relay, pull) == "failure"
        waiving = await write_comment(relay, pull, WAIVE)
        await relay.github.edit_comment(waiving, f"/crcr unwaive {GATING}")
        await relay.github.delete_comment(waiving)
        await relay.drain()

        assert gate_state(relay, pull) == "success"


async def test_a_command_in_a_comment_deleted_before_its_answer_is_still_executed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        relay.clock.advance(60)
        comment = await relay.github.comment_pr(pull, WAIVE)
        await relay.github.delete_comment(comment)
        await relay.drain()

        assert gate_state(relay, pull) == "success"
        assert relay.rows("SELECT * FROM effects WHERE state <> 'done' AND kind = 'answer_command'") == []


# Exactly once


async def test_a_redelivered_comment_is_executed_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        comment = await write_comment(relay, pull, f"{WAIVE}\n/crcr status")
        assert comment.last_delivery is not None
        again = await relay.github.redeliver(comment.last_delivery.guid)
        body = json.loads(comment.last_delivery.payload)
        await relay.github.send_webhook("issue_comment", body)  # under a GUID of its own
        await relay.drain()

        assert json.loads(again.answer_body)["repeat"] is True
        assert (
            len(relay.rows("SELECT * FROM waivers"))
            == len(relay_comments(relay, pull))
            == len(audit_entries(relay, "waive"))
            == 1
        )


@pytest.mark.parametrize("path", [COMMENTS, "*/reactions"])
async def test_an_answer_is_posted_once_even_if_githubs_response_is_lost(tmp_path: Path, path: str) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.github.faults.lose_answer(on=Match("POST", path), times=1)
        comment = await write_comment(relay, pull, "/crcr status")
        for _ in range(3):
            await relay.pass_time(60)

        assert (len(relay_comments(relay, pull)), reaction_names(comment)) == (1, ["+1"])


async def test_an_answer_is_posted_once_even_if_the_reaction_is_rate_limited(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.github.faults.secondary_limit(on=Match("POST", "*/reactions"), times=2)
        comment = await write_comment(relay, pull, "/crcr status")
        for _ in range(5):
            await relay.pass_time(90)

        assert (len(relay_comments(relay, pull)), reaction_names(comment)) == (1, ["+1"])


async def test_an_answer_whose_request_was_lost_is_posted_later(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.github.faults.lose_request(on=Match("POST", COMMENTS), times=2)
        await write_comment(relay, pull, "/crcr status")
        assert relay_comments(relay, pull) == []
        for _ in range(3):
            await relay.pass_time(60)

        assert len(relay_comments(relay, pull)) == 1


async def test_a_command_executed_before_an_outage_is_answered_later_and_not_executed_again(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        fault = relay.github.faults.answer(502, on=Match("POST", "*/reactions"))
        comment = await write_comment(relay, pull, WAIVE)
        assert (gate_state(relay, pull), reaction_names(comment)) == ("success", [])
        relay.github.set_permission(UPSTREAM, "maintainer", "read")
        relay.github.faults.remove(fault)
        await relay.pass_time(60)

        assert (gate_state(relay, pull), reaction_names(comment)) == ("success", ["+1"])
        assert len(relay.rows("SELECT * FROM waivers")) == 1


# Rate limit


async def test_the_limit_of_ten_commands_an_hour_counts_per_person(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        relay.github.set_permission(UPSTREAM, "second", "maintain")
        for _ in range(10):
            assert was_obeyed(await write_comment(relay, pull, "/crcr status"))
        assert not was_obeyed(await write_comment(relay, pull, WAIVE))
        assert not was_obeyed(await write_comment(relay, pull, WAIVE))
        assert was_obeyed(await write_comment(relay, pull, "/crcr status", author="second"))

        assert len([answer for answer in relay_comments(relay, pull) if "10 commands an hour" in answer]) == 1
        assert gate_state(relay, pull) == "failure"


async def test_the_command_limit_of_a_person_resets_after_an_hour(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, "\n".join(["/crcr status"] * 10))
        assert not was_obeyed(await write_comment(relay, pull, WAIVE))
        relay.clock.advance(HOUR)

        assert was_obeyed(await write_comment(relay, pull, WAIVE))


async def test_the_command_limit_counts_all_pull_requests_of_the_upstream(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        one, other = await open_pull(relay), await failing_pull(relay)
        await write_comment(relay, one, "\n".join(["/crcr status"] * 10))

        assert not was_obeyed(await write_comment(relay, other, WAIVE))


# Retry


async def test_retry_runs_the_failed_jobs_of_a_backend_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        assert was_obeyed(await write_comment(relay, pull, f"/crcr retry {GATING}", author="contributor"))
        run = newest_run(relay)

        assert (run.attempt, [job.name for job in run.jobs if job.attempt == 2]) == (2, ["build"])
        assert gate_state(relay, pull) == "pending"
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")
        assert gate_state(relay, pull) == "success"


async def test_retry_without_a_name_reruns_only_failing_backends(tmp_path: Path) -> None:
    two = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build]}}\n  - {INFORMING}: {{oncalls: [ann], jobs: [build]}}\n"
    async with gated_upstream(tmp_path, two) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING)
        await run_all(relay, INFORMING, build="failure")
        assert was_obeyed(await write_comment(relay, pull, "/crcr retry"))

        assert [newest_run(relay, name).attempt for name in (GATING, INFORMING)] == [1, 2]


async def test_retry_with_nothing_to_rerun_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        comment = await write_comment(relay, pull, "/crcr retry")

        assert not was_obeyed(comment)
        assert ["nothing to run again" in answer for answer in relay_comments(relay, pull)] == [True]


async def test_retry_of_a_backend_that_was_never_dispatched_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, "/crcr retry org/stranger")

        [answer] = relay_comments(relay, pull)
        assert "`org/stranger` has nothing to run again" in answer
        assert "has failed" not in answer


async def test_retry_of_a_named_backend_that_passed_reruns_all_its_jobs(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        assert was_obeyed(await write_comment(relay, pull, f"/crcr retry {GATING.upper()}"))

        assert [job.attempt for job in newest_run(relay).jobs] == [2, 2]


async def test_retry_of_a_backend_downgraded_below_l3_is_refused(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        relay.write_allowlist(f"L2:\n  - {GATING}\n  - {INFORMING}\n")
        await relay.refresh()
        await relay.drain()
        comment = await write_comment(relay, pull, f"/crcr retry {GATING}")

        assert not was_obeyed(comment)
        assert (newest_run(relay).attempt, len(relay.github.runs(GATING))) == (1, 1)


async def test_a_command_on_a_pull_request_unknown_to_the_relay_is_refused(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.webhooks.lose(event="pull_request", times=1)
        pull = await open_pull(relay)
        comment = await write_comment(relay, pull, "/crcr status")

        assert not was_obeyed(comment)
        assert ["not known to the relay" in answer for answer in relay_comments(relay, pull)] == [True]


async def test_every_command_is_in_the_audit_log_with_its_outcome(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE, author="passer-by")
        await write_comment(relay, pull, WAIVE)

        rows = audit_entries(relay, "waive")
        assert [(row["who"], row["subject"]) for row in rows] == [("passer-by", "#1"), ("maintainer", "#1")]
        assert [(row["obeyed"], row["command"], row["head"]) for row in rows] == [
            (False, WAIVE, pull.head_sha),
            (True, WAIVE, pull.head_sha),
        ]
