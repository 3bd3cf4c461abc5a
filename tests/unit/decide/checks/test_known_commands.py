"""The commands `known` and `unknown`: their grammar, and the addresses of issues that they take."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.commands.grammar import (
    Command,
    FailureTarget,
    InvalidCommand,
    KnownCommand,
    UnknownCommand,
    format_command,
    parse_commands,
    refuse_role,
)
from crcr.decide.failures.known import IssueReference, is_issue_url, may_be_readable, parse_issue_url
from crcr.decide.github.requests_and_answers import Role
from crcr.decide.model import RepoName

NPU = RepoName("Org/npu.backend")
URL = "https://github.com/org/repo/issues/12"
MARK = "5f0c1e9ab2d34c77"
GITHUB = "https://github.com"


def parse_one(text: str) -> Command | InvalidCommand:
    (command,) = parse_commands(f"/crcr {text}")
    return command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (f"known {URL} because a driver bug", KnownCommand(URL, None, None, "a driver bug")),
        (
            f"KNOWN {URL}  {MARK.upper()} UNTIL 90d BECAUSE x",
            KnownCommand(URL, FailureTarget(fingerprint=MARK), timedelta(days=90), "x"),
        ),
        (
            f"known {URL} Org/npu.backend until 12h because x",
            KnownCommand(URL, FailureTarget(downstream=NPU), timedelta(hours=12), "x"),
        ),
        (
            f"known {URL} Org/npu.backend:build (cuda) until 30d because x because y",
            KnownCommand(
                URL, FailureTarget(downstream=NPU, job="build (cuda)"), timedelta(days=30), "x because y"
            ),
        ),
        (
            f'known {URL} Org/npu.backend:"wait until done" because x',
            KnownCommand(URL, FailureTarget(downstream=NPU, job="wait until done"), None, "x"),
        ),
        (f"known {URL} until 1d because x", KnownCommand(URL, None, timedelta(days=1), "x")),
        (f"unknown {MARK}", UnknownCommand(FailureTarget(fingerprint=MARK))),
        ("unknown Org/npu.backend", UnknownCommand(FailureTarget(downstream=NPU))),
        ("unknown Org/npu.backend: a b", UnknownCommand(FailureTarget(downstream=NPU, job="a b"))),
        (f"unknown {URL}", UnknownCommand(None, URL)),
    ],
)
def test_a_command_is_parsed_and_formatted_back(text: str, command: Command) -> None:
    assert parse_one(text) == command
    assert parse_commands(format_command(command)) == (command,)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("known", "the address of an issue is missing"),
        ("known because x", "is not the address of an issue"),
        ("known Org/npu.backend because x", "is not the address of an issue"),
        ("known https://github.com/org/repo/pull/12 because x", "is a pull request"),
        ("known https://github.com/org/repo/issues because x", "is not the address of an issue"),
        ("known https://github.com/org/repo/issues/0 because x", "is not the address of an issue"),
        ("known javascript:alert(1)/o/r/issues/1 because x", "is not the address of an issue"),
        (f"known {URL}", "a known failure needs a reason"),
        (f"known {URL} becuase x", "is not `owner/repo`"),
        (f"known {URL} {MARK} becuase x", "did you mean `because`"),
        (f"known {URL} {MARK} because", "a known failure needs a reason"),
        (f"known {URL} {MARK} until 91d because x", "at most 90 days"),
        (f"known {URL} {MARK} until 0d because x", "at least 1 minute"),
        (f"known {URL} {MARK} until tomorrow because x", "is not a time"),
        (f"known {URL} {MARK} now because x", "does not belong there"),
        (f"known {URL} {MARK}0 because x", "is not `owner/repo`"),
        (f"known {URL} Org/npu.backend: because x", "empty"),
        ("unknown", "the failure is missing"),
        (f"unknown {MARK} now", "does not belong there"),
        ("unknown because", "the failure is missing"),
    ],
)
def test_an_invalid_command_is_refused_with_the_right_form(text: str, why: str) -> None:
    invalid = parse_one(text)
    assert isinstance(invalid, InvalidCommand)
    assert why in invalid.why
    assert f"`/crcr {text.split(maxsplit=1)[0]} " in invalid.hint
    assert invalid.hint.endswith("`"), "the form is whole"


@pytest.mark.parametrize("command", [KnownCommand(URL, None, None, "x"), UnknownCommand(None, URL)])
@pytest.mark.parametrize("role", Role)
def test_known_commands_need_the_same_role_as_a_waiver(command: Command, role: Role) -> None:
    refusal = refuse_role(command, role=role, is_author=True)
    assert (refusal is None) == (role >= Role.MAINTAIN)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_parsed_or_refused(first: str, second: str) -> None:
    for text in (f"known {URL} {first} because {second}", f"unknown {first}", f"known {first}"):
        for command in parse_commands(f"/crcr {text}"):
            if not isinstance(command, InvalidCommand):
                assert parse_commands(format_command(command)) == (command,)


@pytest.mark.parametrize(
    ("url", "issue"),
    [
        (URL, IssueReference(RepoName("org/repo"), 12)),
        ("https://GitHub.com/Org/Repo/issues/12", IssueReference(RepoName("Org/Repo"), 12)),
        ("http://github.com/org/repo/issues/12", None),
        ("https://github.com.evil.example/org/repo/issues/12", None),
        ("https://user@github.com/org/repo/issues/12", None),
        ("https://github.com/org/repo/issues/12#issuecomment-1", None),
        ("https://github.com/org/repo/issues/12/", None),
        ("https://github.com/org/repo/pull/12", None),
        ("https://github.com/org/issues/12", None),
        ("https://github.com/-bad-/../issues/12", None),
        (f"https://github.com/org/{'r' * 300}/issues/12", None),
    ],
)
def test_only_issue_urls_of_this_github_are_accepted(url: str, issue: IssueReference | None) -> None:
    assert parse_issue_url(url, GITHUB) == issue
    if issue is not None:
        assert is_issue_url(url)
        assert parse_issue_url(issue.url(GITHUB), GITHUB) == issue


def test_only_issues_of_the_upstreams_owner_may_be_readable() -> None:
    upstream = RepoName("Org/upstream")
    assert may_be_readable(IssueReference(RepoName("org/driver"), 1), upstream)
    assert not may_be_readable(IssueReference(RepoName("organic/driver"), 1), upstream)
