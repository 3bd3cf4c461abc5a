import string
import time
from datetime import timedelta
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from crcr.decide.checks.text.markdown import one_line
from crcr.decide.commands.grammar import (
    LONGEST_WAIVER,
    REQUIRED_ROLES,
    ApproveCommand,
    BisectCommand,
    BisectionTarget,
    Command,
    InvalidCommand,
    RetryCommand,
    StatusCommand,
    TestWithCommand,
    UnwaiveCommand,
    VerdictCommand,
    WaiveCommand,
    command_verb,
    format_command,
    has_command,
    parse_commands,
    refuse_role,
    usage_text,
)
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.github.requests_and_answers import Role
from crcr.decide.model import RepoName
from crcr.decide.pairs.depends_on import PullReference

NPU = RepoName("Org/npu.backend")
DAYS = timedelta(days=3)


def _parse_one(text: str) -> Command | InvalidCommand:
    (command,) = parse_commands(f"/crcr {text}")
    return command


def _parse_invalid(text: str) -> InvalidCommand:
    command = _parse_one(text)
    assert isinstance(command, InvalidCommand)
    return command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("waive Org/npu.backend because flaky", WaiveCommand(NPU, None, None, "flaky")),
        ("waive Org/npu.backend until 3d because flaky", WaiveCommand(NPU, None, timedelta(days=3), "flaky")),
        (
            "WAIVE Org/npu.backend UNTIL 30M BECAUSE Flaky",
            WaiveCommand(NPU, None, timedelta(minutes=30), "Flaky"),
        ),
        (
            "waive\tOrg/npu.backend:a/b  until  12h\tbecause  x",
            WaiveCommand(NPU, "a/b", timedelta(hours=12), "x"),
        ),
        (
            "waive Org/npu.backend:build (cuda, 3.12) because x",
            WaiveCommand(NPU, "build (cuda, 3.12)", None, "x"),
        ),
        ("waive Org/npu.backend: a: b  c because x", WaiveCommand(NPU, "a: b  c", None, "x")),
        ("waive Org/npu.backend at 1a2b3c4 because x", WaiveCommand(NPU, None, None, "x", "1a2b3c4")),
        ("waive Org/npu.backend AT 1A2B3C4 because x", WaiveCommand(NPU, None, None, "x", "1a2b3c4")),
        (f"waive Org/npu.backend at {'a' * 40} because x", WaiveCommand(NPU, None, None, "x", "a" * 40)),
        (
            "waive Org/npu.backend until 3d at 1a2b3c4 because x",
            WaiveCommand(NPU, None, DAYS, "x", "1a2b3c4"),
        ),
        (
            "waive Org/npu.backend at 1a2b3c4 until 3d because x",
            WaiveCommand(NPU, None, DAYS, "x", "1a2b3c4"),
        ),
        ("waive Org/npu.backend:a b at 1a2b3c4 because x", WaiveCommand(NPU, "a b", None, "x", "1a2b3c4")),
        ("waive Org/npu.backend:a at night because x", WaiveCommand(NPU, "a at night", None, "x")),
        ('waive Org/npu.backend:"a at 1a2b3c4" because x', WaiveCommand(NPU, "a at 1a2b3c4", None, "x")),
        ("waive Org/npu.backend because x at 1a2b3c4", WaiveCommand(NPU, None, None, "x at 1a2b3c4")),
        ("unwaive Org/npu.backend", UnwaiveCommand(NPU, None)),
        ("unwaive Org/npu.backend:build (cuda)", UnwaiveCommand(NPU, "build (cuda)")),
        ('unwaive Org/npu.backend:"x because y"', UnwaiveCommand(NPU, "x because y")),
        ("retry", RetryCommand(None)),
        ("Retry Org/npu.backend", RetryCommand(NPU)),
        ("retry at 1a2b3c4", RetryCommand(None, "1a2b3c4")),
        ("retry Org/npu.backend at 1a2b3c4", RetryCommand(NPU, "1a2b3c4")),
        ("approve", ApproveCommand()),
        ("approve at 1a2b3c4 ", ApproveCommand("1a2b3c4")),
        *(
            (
                f"verdict Org/npu.backend{words} is new because x",
                VerdictCommand(NPU, job, VerdictKind.NEW, "x"),
            )
            for words, job in (
                (" build", "build"),
                (" build (cuda, 3.12)", "build (cuda, 3.12)"),
                (":build (cuda)", "build (cuda)"),
                (": what is it", "what is it"),
                (' "x because y"', "x because y"),
                (':" spaced "', " spaced "),
                (" “curly because phone”", "curly because phone"),
            )
        ),
        *(
            (f"verdict Org/npu.backend a IS {kind.upper()} because b", VerdictCommand(NPU, "a", kind, "b"))
            for kind in VerdictKind
        ),
        (
            "verdict Org/npu.backend a is flaky because it is new because of x",
            VerdictCommand(NPU, "a", VerdictKind.FLAKY, "it is new because of x"),
        ),
        ("bisect Org/npu.backend:test", BisectCommand(BisectionTarget(NPU, "test"))),
        ("bisect Org/npu.backend: build (cuda)", BisectCommand(BisectionTarget(NPU, "build (cuda)"))),
        (
            "BISECT Org/npu.backend:a b GOOD 1A2B3C4 bad 5d6e7f8 ",
            BisectCommand(BisectionTarget(NPU, "a b", "1a2b3c4", "5d6e7f8")),
        ),
        (
            "bisect Org/npu.backend:a bad 5d6e7f8 good 1a2b3c4",
            BisectCommand(BisectionTarget(NPU, "a", "1a2b3c4", "5d6e7f8")),
        ),
        (
            f"bisect Org/npu.backend:a bad {'5' * 64}",
            BisectCommand(BisectionTarget(NPU, "a", None, "5" * 64)),
        ),
        (
            'bisect Org/npu.backend:"say ""hi"" good 1a2b3c4" good 5d6e7f8',
            BisectCommand(BisectionTarget(NPU, 'say "hi" good 1a2b3c4', "5d6e7f8")),
        ),
        ("bisect Org/npu.backend:“a bad one”", BisectCommand(BisectionTarget(NPU, "a bad one"))),
        ("bisect Org/npu.backend:goodness", BisectCommand(BisectionTarget(NPU, "goodness"))),
        ("bisect STOP  12", BisectCommand(None, 12)),
        ("test-with  Org/npu.backend#12 ", TestWithCommand(PullReference(NPU, 12))),
        (
            "test-with https://github.com/Org/npu.backend/pull/12",
            TestWithCommand(PullReference(NPU, 12, "https://github.com")),
        ),
        ("STATUS  ", StatusCommand()),
    ],
)
def test_a_command_is_parsed(text: str, command: Command) -> None:
    assert _parse_one(text) == command
    assert has_command(f"/crcr {text}")


def test_a_repository_name_keeps_its_case() -> None:
    command = _parse_one("retry ORG/Npu.Backend")
    assert isinstance(command, RetryCommand)
    assert str(command.downstream) == "ORG/Npu.Backend"


@pytest.mark.parametrize(
    ("words", "job", "until", "reason"),
    [
        # The name ends before the first `because`; the reason may hold every word.
        ("a because b because c until 1d", "a", None, "b because c until 1d"),
        # Before it, only the last `until` is a keyword.
        ("wait until ready until 2d because x", "wait until ready", timedelta(days=2), "x"),
        # In quotes nothing is a keyword, and a quote is doubled.
        ('"a because b" because x', "a because b", None, "x"),
        ('"run until 3d" until 1d because x', "run until 3d", timedelta(days=1), "x"),
        ('"say ""hi"" because" because x', 'say "hi" because', None, "x"),
        ('" spaced " because x', " spaced ", None, "x"),
        ("“curly because phone” because x", "curly because phone", None, "x"),
        # Words that only contain a keyword, and quotes inside a name, need no quoting.
        ("untilted becauseway because x", "untilted becauseway", None, "x"),
        ('test "fast" because x', 'test "fast"', None, "x"),
    ],
)
def test_a_job_name_ends_before_because_or_until_unless_quoted(
    words: str, job: str, until: timedelta | None, reason: str
) -> None:
    assert _parse_one(f"waive Org/npu.backend:{words}") == WaiveCommand(NPU, job, until, reason)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("waive", "backend is missing"),
        ("waive because x", "`because` is not `owner/repo`"),
        ("waive npu because x", "`npu` is not `owner/repo`"),
        ("waive o/../x because x", "is not `owner/repo`"),
        ("waive :job because x", "backend is missing"),
        ("waive o/r", "needs a reason"),
        ("waive o/r because", "needs a reason"),
        ("waive o/r because \u202e\u200b\x07", "needs a reason"),
        ("waive o/r becuase flaky", "did you mean `because` by `becuase`?"),
        ("waive o/r build because x", "`build` does not belong there"),
        ('waive o/r:"a" b because x', "`b` does not belong there"),
        ("waive o/r: because x", "name after the colon is empty"),
        ('waive o/r:"" because x', "name after the colon is empty"),
        ('waive o/r:" " because x', "name after the colon is empty"),
        ('waive o/r:"a because x', "quotes around the job's name are not closed"),
        ('waive o/r:"a"b because x', "quotes around the job's name are not closed"),
        ("waive o/r:wait until ready because x", "`ready` is not a time"),
        ("waive o/r until tomorrow because x", "`tomorrow` is not a time"),
        ("waive o/r until 3 days because x", "`3 days` is not a time"),
        ("waive o/r until because x", "is not a time"),
        ("waive o/r until -1d because x", "`-1d` is not a time"),
        ("waive o/r until ٣d because x", "is not a time"),
        ("waive o/r until 1.5d because x", "is not a time"),
        ("waive o/r until 0m because x", "at least 1 minute"),
        ("waive o/r until 8d because x", "at most 7 days"),
        ("waive o/r until 169h because x", "at most 7 days"),
        ("waive o/r until 999999999d because x", "at most 7 days"),
        ("waive o/r:" + "j" * 257 + " because x", "at most 256 characters"),
        ("waive o/r because " + "x" * 501, "has 501 characters; at most 500"),
        ("unwaive", "backend is missing"),
        ("unwaive o/r:a because fixed", "takes no reason"),
        ("unwaive o/r until 3d", "takes no reason and no time"),
        ("unwaive o/r job", "`job` does not belong there"),
        ("retry o/r:job", "`o/r:job` is not `owner/repo`"),
        ("retry o/r p/q", "`o/r p/q` is not `owner/repo`"),
        ("waive o/r at 1a2b3c because x", "`at 1a2b3c` names no commit"),
        (f"waive o/r at {'a' * 41} because x", "names no commit"),
        ("waive o/r at HEAD because x", "`at HEAD` names no commit"),
        ("waive o/r at 1a2b3c4 at 1a2b3c4 because x", "`at 1a2b3c4` does not belong there"),
        ("approve at main", "`at main` names no commit"),
        ("unwaive o/r at 1a2b3c4", "`at 1a2b3c4` does not belong there"),
        ("status at 1a2b3c4", "`at 1a2b3c4` does not belong there"),
        ("verdict", "backend is missing"),
        ("verdict o/r", "a verdict needs a reason"),
        ("verdict o/r because x", "the verdict after `is` is missing"),
        ("verdict o/r build because x", "the verdict after `is` is missing"),
        ("verdict o/r build is because x", "the verdict after `is` is missing"),
        ("verdict o/r is new because x", "name after the colon is empty"),
        ("verdict o/r: is new because x", "name after the colon is empty"),
        ("verdict o/r build is new", "a verdict needs a reason after `because`"),
        ("verdict o/r build is new becuase x", "did you mean `because` by `becuase`?"),
        ("verdict o/r build is new because ", "a verdict needs a reason"),
        (
            "verdict o/r build is fine because x",
            "`fine` is no verdict; the verdicts are new, pre-existing, flaky,",
        ),
        ("verdict o/r build is not new because x", "the verdict after `is` is missing"),
        ('verdict o/r "a is new because x', "quotes around the job's name are not closed"),
        ('verdict o/r:"a" b is new because x', "`b` does not belong there"),
        ("verdict o/r " + "j" * 257 + " is new because x", "at most 256 characters"),
        ("bisect", "backend is missing"),
        ("bisect o/r", "the job after the backend and a colon is missing"),
        ("bisect o/r test", "the job after the backend and a colon is missing"),
        ("bisect o/r:", "name after the colon is empty"),
        ("bisect o/r: good 1a2b3c4", "name after the colon is empty"),
        ('bisect o/r:"a', "quotes around the job's name are not closed"),
        ('bisect o/r:"a" good 1a2b3c', "`good 1a2b3c` does not belong there"),
        ("bisect o/r:a good 1a2b3c", "hexadecimal digits of a commit follow `good` and `bad`"),
        ("bisect o/r:a good main", "hexadecimal digits of a commit follow `good` and `bad`"),
        ("bisect o/r:a good", "hexadecimal digits of a commit follow `good` and `bad`"),
        ("bisect o/r:a good 1a2b3c4 good 1a2b3c4", "put a job's name that contains these words in quotes"),
        ("bisect o/r:a good 1a2b3c4 b", "put a job's name that contains these words in quotes"),
        ("bisect o/r:" + "j" * 257, "at most 256 characters"),
        ("bisect stop", "the number of the bisection after `stop` is missing"),
        ("bisect stop #12", "the number of the bisection after `stop` is missing"),
        ("bisect stop 12 13", "the number of the bisection after `stop` is missing"),
        ("bisect stop ٣", "the number of the bisection after `stop` is missing"),
        ("bisect stop " + "9" * 16, "the number of the bisection after `stop` is missing"),
        ("approve it", "`it` does not belong there"),
        ("status please", "`please` does not belong there"),
        ("test-with", "the pull request is missing"),
        ("test-with o/r", "`o/r` is no pull request: write `owner/repo#12`, or its address"),
        ("test-with o/r#1 o/r#2", "`o/r#1 o/r#2` is no pull request: write `owner/repo#12`, or its address"),
    ],
)
def test_an_invalid_command_is_answered_with_the_reason_and_the_right_form(text: str, why: str) -> None:
    invalid = _parse_invalid(text)
    assert why in invalid.why
    assert invalid.hint.startswith(f"write `/crcr {text.split(maxsplit=1)[0]}")
    assert invalid.text == f"/crcr {one_line(text)}"[:200]


@pytest.mark.parametrize(
    ("text", "near"),
    [("waiv o/r because x", "waive"), ("aprove", "approve"), ("STATS", "status"), ("rety", "retry")],
)
def test_a_misspelled_command_is_answered_with_the_nearest_one(text: str, near: str) -> None:
    assert _parse_invalid(text).hint.startswith(f"did you mean `/crcr {near}")


@pytest.mark.parametrize("text", ["", "help", "!!!", "x" * 60_000, "разрешить"])
def test_an_unknown_command_is_answered_with_the_list_of_commands(text: str) -> None:
    hint = _parse_invalid(text).hint
    assert hint == (
        "the commands are `waive`, `unwaive`, `retry`, `approve`, `verdict`, `known`, `unknown`,"
        " `bisect`, `ack`, `test-with`, `status`"
    )


@pytest.mark.parametrize(
    "body",
    [
        "/crcr status",
        "/CRCR Status   \t",
        "Hello\r\n/crcr status\r\nBye",
        "Hello\r/crcr status",
        "> quoted\n\n/crcr status",
        "```\ncode\n```\n/crcr status",
        "````\n```\n````\n/crcr status",
        "~~~ python `x`\ncode\n~~~~~  \n/crcr status",
        "``` not `a` fence\n/crcr status",
        "<!-- hidden --> seen\n/crcr status",
        "<!--\nhidden\n-->\n/crcr status",
        "<!-->\n/crcr status",
        "/crcr\u00a0status",
        # Backticks that nothing closes, or that close on a line of their own, do not turn the next lines into code.
        "`unmatched\n/crcr status",
        "``a`\n/crcr status",
        "`a` and `b`\n/crcr status",
        "`open\n\n/crcr status\n\nclosed`",
        "a `multi-line\nspan`\n/crcr status",
        # HTML elements that quote, and are closed.
        "<pre>\ncode\n</pre>\n/crcr status",
        "<BLOCKQUOTE>said</blockquote>\n/crcr status",
        "<code>a</code> <code>b</code>\n/crcr status",
        "<details><summary>log</summary>\n\n/crcr status\n</details>",
        "<prefix>\n/crcr status",
        "<blockquote>\nuse `a`\n</blockquote>\n/crcr status",
        '<img width="9" alt="a > b" src="https://example.org/a.png" />\n/crcr status',
        "<details>\n\n```\n<!--\n```\n\n</details>\n\n/crcr status",
        "<!-- for example\n```\n/crcr approve\n```\n-->\n/crcr status",
        # Code spans that end on their own line do not hide the lines between them.
        "see `a` and ``b`c``\n/crcr status\nthen `d`",
        "see [a](https://example.org/a)\n/crcr status\nand [b](https://example.org/b)",
        # Doubtful markup does not affect the lines above it.
        "/crcr status\na <b",
        "/crcr status\n<!",
    ],
)
def test_a_command_on_a_line_of_its_own_is_found(body: str) -> None:
    assert parse_commands(body) == (StatusCommand(),)
    assert has_command(body)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "/crcrstatus",
        "/crc status",
        "crcr status",
        " /crcr status",
        "\t/crcr status",
        "    /crcr status",
        "> /crcr status",
        ">/crcr status",
        "- /crcr status",
        "`/crcr status`",
        "please /crcr status",
        "```\n/crcr status\n```",
        "```\n/crcr status",
        "  ```sh\n/crcr status\n  ```",
        "~~~\n```\n/crcr status\n~~~",
        "````\n```\n/crcr status\n````",
        "```\n``` still code\n/crcr status\n```",
        "```\n    ```\n/crcr status\n```",
        "~~~\n~~\n/crcr status",
        "<!--\n/crcr status\n-->",
        "seen <!-- hidden\n/crcr status\n--> seen",
        "<!-- a --> <!--\n/crcr status",
        "<!--\n--> <!--\n/crcr status",
        "<!--\n```\n/crcr status\n-->",
        "a\u2028/crcr status",
        "a\x0b/crcr status",
        "a\x85/crcr status",
        "\ufeff/crcr status",
        "\u200b/crcr status",
        "/crcr\u200bstatus",
        "/\u0441rcr status",
        "<pre>\n/crcr status\n</pre>",
        "<pre>\n\n/crcr status",
        "<PRE class='x'>\n/crcr status\n</PRE>",
        "said <blockquote>\n/crcr status\n</blockquote>",
        "<blockquote>\n\n/crcr status\n\n</blockquote>",
        "<code>\n/crcr status\n</code>",
        "<code>a</code> <code>\n/crcr status\n</code>",
        "<script>\n/crcr status\n</script>",
        "<style>\n/crcr status",
        "<textarea>\n/crcr status",
        "<pre><!-- a -->\n/crcr status\n</pre>",
        "`\n/crcr status\n`",
        "see `a\n/crcr status\nb` there",
        "``a ` b\n/crcr status\n``",
        # A quote continues without its mark; a mail program that wraps long lines must not create a command.
        "> quoted\n/crcr status",
        "- > quoted\n/crcr status",
        # Backticks that are escaped, or part of HTML, a heading or a link's definition, pair up otherwise.
        "\\` `\n/crcr status\n`",
        "<a title='`'> `\n/crcr status\n`",
        "# a `\n`\n/crcr status\n`",
        "[a]: /b '`'\n`\n/crcr status\n`",
        "`" * 3_000 + " `\n/crcr status\n`",
        "$$\n/crcr status\n$$",
        # The titles of links, the texts of pictures, the attributes of tags.
        "[a]: /b '\n/crcr status\n'",
        "[a](/b '\n/crcr status\n')",
        "![a\n/crcr status\n](/b)",
        "<b title='\n/crcr status\n'>",
        "<div title='>\n\n/crcr status\n\n'>",
        "<?php\n/crcr status\n?>",
        # Where one block stands in another, readers differ about its end.
        "<div>\n```\n\n```\n/crcr status\n```",
        "a <!--\n```\n-->\n/crcr status\n```",
        "a <!--\n\n<pre>\n-->\n/crcr status\n</pre>",
        "<!--\n--> <pre>\n/crcr status\n</pre>",
        "<pre>\n<!--\n</pre>\n/crcr status\n-->",
        "<blockquote><blockquote></blockquote>\n/crcr status\n</blockquote>",
        "<blockquote>\n\n```\n</blockquote>\n```\n/crcr status\n</blockquote>",
        "a <code>\n`</code>`\n/crcr status\n</code>",
        "a <code>\n`\n</code>\n`\n/crcr status\n</code>",
        "a <b '\n\n<div title='\n>\n/crcr status\n'>",
        # Longer than any comment.
        "/crcr status\n" + "x" * 65_536,
        "/crcr status" + "\n" * 5_000,
        "<b></b>" * 1_000 + "\n/crcr status",
    ],
)
def test_text_that_a_reader_does_not_see_as_a_command_is_not_parsed_as_one(body: str) -> None:
    assert not has_command(body)
    assert parse_commands(body) == ()


def test_at_most_ten_commands_of_a_comment_are_parsed_in_order() -> None:
    body = "/crcr approve\n" + "/crcr status\n" * 50
    assert parse_commands(body) == (ApproveCommand(), *(StatusCommand(),) * 9)


def test_invisible_characters_are_removed_from_a_reason() -> None:
    command = _parse_one("waive o/r because \u202eevil\u2066 \x07 a\tb\u200b é👍 ")
    assert isinstance(command, WaiveCommand)
    assert command.reason == "evil a b é👍"


def test_untrusted_text_is_quoted_as_code_in_an_answer() -> None:
    assert _parse_invalid("waive @org/`team` because x").why == "`` @org/`team` `` is not `owner/repo`"
    assert _parse_invalid("@everybody").why == "`@everybody` is no command"
    assert len(_parse_invalid("approve " + "x" * 9_999).why) < 150


def test_the_usage_text_names_every_command_and_contains_none_itself() -> None:
    verbs = [kind.__name__.removesuffix("Command").lower() for kind in get_args(Command)]
    verbs[verbs.index("testwith")] = "test-with"
    assert all(f"`/crcr {verb}" in usage_text() for verb in verbs)
    assert not has_command(usage_text())


def test_every_command_has_a_required_role() -> None:
    assert set(REQUIRED_ROLES) == set(get_args(Command))


WAIVE, UNWAIVE = WaiveCommand(NPU, None, None, "x"), UnwaiveCommand(NPU, None)


@pytest.mark.parametrize(
    ("command", "least_role", "author_may"),
    [
        (WAIVE, Role.MAINTAIN, False),
        (UNWAIVE, Role.MAINTAIN, False),
        (ApproveCommand(), Role.WRITE, False),
        (VerdictCommand(NPU, "a", VerdictKind.NEW, "x"), Role.MAINTAIN, False),
        (BisectCommand(BisectionTarget(NPU, "a")), Role.MAINTAIN, False),
        (BisectCommand(None, 12), Role.MAINTAIN, False),
        (RetryCommand(None), Role.WRITE, True),
        (StatusCommand(), Role.WRITE, True),
    ],
)
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("is_author", [True, False])
def test_each_command_needs_its_role_or_where_allowed_the_author(
    command: Command, least_role: Role, author_may: bool, role: Role, is_author: bool
) -> None:
    refusal = refuse_role(command, role=role, is_author=is_author)
    assert (refusal is None) == (role >= least_role or (author_may and is_author))
    assert refusal is None or f"`{command_verb(command)}` needs the {least_role.name.lower()} role" in refusal


def test_a_refusal_names_the_required_and_the_actual_role() -> None:
    assert refuse_role(RetryCommand(None), role=Role.READ, is_author=False) == (
        "`retry` needs the write role in this repository, or to be the author of the pull request; yours is read"
    )
    assert refuse_role(WAIVE, role=Role.NONE, is_author=True) == (
        "`waive` needs the maintain role in this repository; you have none"
    )


NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,38}/[A-Za-z0-9_-][A-Za-z0-9._-]{0,50}\Z").map(RepoName)
JOBS = st.lists(
    st.sampled_from(
        [
            "until",
            "because",
            "at",
            "is",
            "new",
            "good",
            "bad",
            "stop",
            "1a2b3c4",
            "3d",
            '"',
            '""',
            "“",
            "”",
            ":",
            "/",
            " ",
            "(",
            ")",
            "`",
            "\t",
        ]
    )
    | st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8),
    min_size=1,
    max_size=12,
).map(" ".join)
REASONS = st.text(max_size=200).map(one_line).filter(bool)
MINUTES = st.integers(1, LONGEST_WAIVER // timedelta(minutes=1)).map(lambda count: timedelta(minutes=count))


HEADS = st.from_regex(r"\A[0-9a-f]{7,40}\Z")


@given(NAMES, st.none() | JOBS, st.none() | MINUTES, REASONS, st.none() | HEADS)
def test_a_formatted_command_parses_back_to_the_same_command(
    downstream: RepoName, job: str | None, until: timedelta | None, reason: str, head: str | None
) -> None:
    assume(job is None or job.strip())
    waive = WaiveCommand(downstream, job, until, reason, head)
    commands: list[Command] = [
        waive,
        UnwaiveCommand(downstream, job),
        RetryCommand(downstream, head),
        ApproveCommand(head),
    ]
    if job is not None:
        commands.append(BisectCommand(BisectionTarget(downstream, job, head, head)))
        commands.append(VerdictCommand(downstream, job, VerdictKind.PRE_EXISTING, reason))
    for command in commands:
        assert parse_commands(f"Hello\n\n{format_command(command)}\n") == (command,)


@given(st.sampled_from([ApproveCommand(), StatusCommand(), RetryCommand(None)]))
def test_a_formatted_short_command_parses_back_to_the_same_command(command: Command) -> None:
    assert parse_commands(format_command(command)) == (command,)


FRAGMENTS = st.sampled_from(
    [
        *(
            "/crcr ",
            "/crcr",
            "waive ",
            "unwaive ",
            "verdict ",
            "bisect ",
            "stop ",
            " good ",
            " is new",
            "retry ",
            "approve",
            "o/r",
            ":",
            '"',
            "“",
            " until ",
            "3d",
            " because ",
        ),
        *("\n", "\r\n", "\r", "```", "~~~", ">", " ", "    ", "<!--", "-->", "`", "\0", "\u202e", "\u2028"),
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=10), max_size=40).map("".join))
def test_no_comment_crashes_the_parser_and_every_answer_is_safe_to_publish(body: str) -> None:
    commands = parse_commands(body)
    assert bool(commands) == has_command(body)
    for command in commands:
        if isinstance(command, InvalidCommand):
            assert not has_command(f"{command.why}\n{command.hint}")
            assert len(command.text) <= 200
            assert max(len(command.why), len(command.hint)) < 400


LINES = st.lists(st.sampled_from(["/crcr approve", "/crcr status", "x", "", ">", "~~~", "  y"]), max_size=8)


@given(LINES, st.integers(3, 8), st.booleans())
def test_no_command_is_found_in_a_fence(lines: list[str], ticks: int, closed: bool) -> None:
    fence = "`" * ticks
    assert not has_command("\n".join([fence, *lines, *([fence] if closed else [])]))


@given(LINES, st.sampled_from(["> ", ">", "    ", "\t", " "]))
def test_no_command_is_found_in_a_quote_or_an_indented_line(lines: list[str], before: str) -> None:
    assert not has_command("\n".join(before + line for line in lines))


@given(LINES)
def test_no_command_is_found_in_an_html_comment(lines: list[str]) -> None:
    assert not has_command("\n".join(["<!--", *lines, "-->"]))


@pytest.mark.parametrize(
    "body",
    [
        "/crcr waive o/r:" + '"' * 60_001,
        "/crcr waive o/r:" + "until " * 10_000 + "because x",
        "/crcr waive o/r until " + "0" * 60_000 + " because x",
        "/crcr waive " + " " * 60_000,
        "/crcr bisect o/r:" + "good " * 12_000,
        "/crcr bisect o/r:" + "good 1a2b3c4 " * 4_000 + "x",
        "/crcr bisect o/r:good" + " " * 60_000 + "x",
        "/crcr bisect stop" + " " * 60_000 + "x",
        "/crcr waive o/r:" + " " * 60_000 + "x",
        "/crcr waive o/r because " + "\u202e" * 60_000,
        "/crcr " + string.ascii_letters * 1_000,
        "/crcr\n" * 10_000,
        "`" * 60_000 + "x`\n/crcr status",
        "<!--" * 15_000 + "\n/crcr",
        " " * 60_000 + "\n/crcr status",
    ],
)
def test_a_hostile_comment_is_parsed_within_half_a_second(body: str) -> None:
    durations = []
    for _ in range(3):  # garbage collection may run during one of them
        started = time.process_time()
        parse_commands(body)
        durations.append(time.process_time() - started)
    assert min(durations) < 0.5
