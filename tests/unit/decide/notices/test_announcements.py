"""Announcements of breaking changes: the downstream paragraph, the concerned backends, and the people who may answer for them."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from crcr.decide.allowlist.entries import AllowlistEntry, Visibility
from crcr.decide.github.requests_and_answers import Role
from crcr.decide.model import DispatchState, KnownPull, Level, RepoName
from crcr.decide.notices.announcements import (
    MOST_NOTE_CHARACTERS,
    AnnouncementAnswer,
    AnnouncementState,
    Concern,
    announcement_event,
    announcement_state,
    choose_answered,
    choose_backends_to_ask,
    judge_concern,
    read_downstream_note,
    settle_note,
    why_ended,
)
from crcr.decide.notices.notice import ThreadChange
from crcr.decide.notices.texts import ThreadText, comment_body, issue_body, slack_body

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
UPSTREAM, LABEL = RepoName("org/core"), "crcr/breaking"
HOSTILE = "@everyone [x](javascript:1) <!channel> `` ``` <script>alert(1)</script> | #1"


def pull(**more: object) -> KnownPull:
    fields: dict[str, object] = {
        "number": 7,
        "head_sha": "a" * 40,
        "previous_sha": None,
        "head_at": NOW,
        "updated_at": NOW,
        "is_open": True,
        "draft": False,
        "labels": (LABEL,),
        "base_ref": "main",
        "title": "Remove it",
        "author": "ann",
        **more,
    }
    return KnownPull(**fields)  # type: ignore[arg-type]


def entry(name: str = "org/a", **more: object) -> AllowlistEntry:
    return AllowlistEntry(name=RepoName(name), level=Level.L2, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("Fixes it.\n\n## Downstream\n\nRename `a` to `b`.\n", "Rename `a` to `b`."),
        ("## DOWNSTREAM ##\r\none\r\n\r\ntwo\r\n## Test plan\r\nnone", "one\ntwo"),
        ("# Downstream\n### Details\nx\n# Next\ny", "### Details\nx"),
        ("## Downstream\n<!-- say what breaks -->\n", None),
        ("<!--\n## Downstream\nnot shown\n-->\nx", None),
        ("## Downstream\n<!-- a --> shown <!-- never closed\nhidden", "shown"),
        ("```\n## Downstream\ncode\n```\n", None),
        (
            "## Downstream\n```sh\n# a comment, not a heading\n```\nend\n",
            "```sh\n# a comment, not a heading\n```\nend",
        ),
        ("> ## Downstream\n> quoted", None),
        ("    ## Downstream\n    code", None),
        ("## Downstreams\nx", None),
        ("##Downstream\nx", None),
        ("## Downstream\n\n## Downstream\nthe second", "the second"),
        ("## Downstream\na\u202eb\x07c\n", "abc"),
        ("", None),
    ],
)
def test_the_paragraph_is_the_text_under_its_heading(body: str, note: str | None) -> None:
    assert read_downstream_note(body) == note


@pytest.mark.parametrize(
    "part", ["<!--", "## Downstream\n", "```\n", "#", "\u200b", "`", "<!-- -->", "~~~\n## Downstream\n"]
)
def test_a_hostile_text_is_parsed_in_linear_time_and_truncated(part: str) -> None:
    body = "## Downstream\n" + part * (1_000_000 // len(part))
    started = time.perf_counter()
    note = read_downstream_note(body)
    assert time.perf_counter() - started < 1.0
    assert len(note or "") <= MOST_NOTE_CHARACTERS + 10


def test_the_paragraph_is_kept_only_with_the_label_and_dated_by_its_change() -> None:
    known = settle_note(pull(downstream_note="a"), None, LABEL)
    assert (known.downstream_note, known.downstream_note_at) == ("a", NOW)
    later = NOW + timedelta(minutes=5)
    same = settle_note(pull(downstream_note="a", updated_at=later), known, LABEL)
    assert same.downstream_note_at == NOW
    changed = settle_note(pull(downstream_note="b", updated_at=later), known, LABEL)
    assert changed.downstream_note_at == later
    assert settle_note(pull(labels=("CRCR/Breaking",)), known, LABEL).downstream_note == ""
    for labels, label in (((), LABEL), ((LABEL,), "")):
        assert settle_note(pull(downstream_note="a", labels=labels), known, label).downstream_note is None


@pytest.mark.parametrize(
    ("is_open", "note", "state", "ended"),
    [
        (True, "a", AnnouncementState.ANNOUNCED, None),
        (True, "", AnnouncementState.INCOMPLETE, "the text has no paragraph for downstreams any more"),
        (True, None, None, "the label was removed"),
        (False, "a", AnnouncementState.ENDED, "the pull request was closed"),
        (False, "", None, "the pull request was closed"),
    ],
)
def test_an_announcement_needs_label_and_paragraph_and_ends_with_the_pull_request(
    is_open: bool, note: str | None, state: AnnouncementState | None, ended: str | None
) -> None:
    known = pull(is_open=is_open, downstream_note=note)
    assert (announcement_state(known), why_ended(known)) == (state, ended)
    assert why_ended(replace(known, is_open=False, merged=True)) == "the pull request was merged"


@pytest.mark.parametrize(
    ("state", "reason", "concerned", "paths", "expected"),
    [
        (DispatchState.SENT, None, None, False, Concern.CONCERNED),
        (DispatchState.WAITING, None, None, False, Concern.CONCERNED),
        (DispatchState.PARKED, None, None, False, Concern.CONCERNED),
        (DispatchState.HELD, "draft", None, False, Concern.CONCERNED),
        (DispatchState.HELD, "approval", True, True, Concern.CONCERNED),
        (DispatchState.HELD, "approval", None, True, Concern.UNKNOWN),
        (DispatchState.HELD, "paths", None, True, Concern.UNKNOWN),
        (DispatchState.HELD, "head in doubt", None, False, Concern.UNKNOWN),
        (DispatchState.HELD, "rename", None, False, Concern.UNKNOWN),
        (DispatchState.LEFT_OUT, "labels", None, False, Concern.NOT_CONCERNED),
        (DispatchState.CANCELLED, "suspended", None, False, Concern.NOT_CONCERNED),
    ],
)
def test_backends_are_concerned_if_the_change_is_dispatched_to_them(
    state: DispatchState, reason: str | None, concerned: bool | None, paths: bool, expected: Concern
) -> None:
    listed = entry(paths=("src/**",) if paths else None)
    assert judge_concern(state, reason, concerned=concerned, entry=listed) is expected


A, B = entry(oncalls=("Ann", "org/team")), entry("org/b", oncalls=("ann",))
HIDDEN = entry("org/c", oncalls=("ann",), visibility=Visibility.HIDDEN)


@pytest.mark.parametrize(
    ("concerned", "user", "roles", "named", "answered"),
    [
        ([A], "ann", {}, None, "org/a"),
        ([A], "ann", {}, "org/a", "org/a"),
        ([A], "bob", {"org/a": Role.WRITE}, None, "org/a"),
        ([A], "bob", {"org/a": Role.TRIAGE}, None, "name the backend"),
        ([A], "bob", {}, "org/a", "may not answer for it"),
        ([A, B], "ann", {}, None, "2 backends; name one: `/crcr ack org/a`, `/crcr ack org/b`"),
        ([A, HIDDEN], "ann", {}, None, "2 backends; name one: `/crcr ack org/a`"),
        ([A, B], "ann", {}, "org/b", "org/b"),
        ([A], "ann", {}, "org/unlisted", "may not answer for it"),
        ([HIDDEN], "bob", {}, "org/c", "may not answer for it"),
        ([], "ann", {}, None, "name the backend"),
    ],
)
def test_on_calls_and_writers_may_answer_for_their_backend(
    concerned: list[AllowlistEntry], user: str, roles: dict[str, Role], named: str | None, answered: str
) -> None:
    by_key = {backend.name.key: backend for backend in concerned}
    chosen = choose_answered(by_key, user, roles, RepoName(named) if named else None)
    assert (str(chosen.name) == answered) if isinstance(chosen, AllowlistEntry) else (answered in chosen)


def test_roles_are_queried_only_for_named_backends_or_the_only_one() -> None:
    many = {f"org/{number}": entry(f"org/{number}") for number in range(40)}
    assert choose_backends_to_ask(many, "bob", [None]) == ()
    names = [RepoName("org/3"), RepoName("org/3"), RepoName("org/unlisted"), None]
    assert [backend.name.name for backend in choose_backends_to_ask(many, "bob", names)] == ["3"]
    assert [backend.name for backend in choose_backends_to_ask({"org/a": A}, "bob", [None])] == [A.name]
    assert choose_backends_to_ask({"org/a": A}, "ann", [None]) == ()


def test_the_paragraph_cannot_mention_anybody_or_be_markup_in_a_channel() -> None:
    note = "\n".join([HOSTILE] * 30)
    known = pull(title=HOSTILE, downstream_note=note)
    event = announcement_event(UPSTREAM, known, A.name, (AnnouncementAnswer(who="ann", at=NOW),))
    thread = ThreadText(
        thread_id=1, kind=event.kind, change=ThreadChange.OPENED, upstream=UPSTREAM, backend=A.name, number=7,
        summary=event.summary, details=event.details, oncalls=("ann",), url="https://relay.test/crcr/pr/7",
        opened_at=NOW, closed_at=None, is_open=True,
    )  # fmt: skip
    issue = issue_body(thread, "mark")
    assert "answered by: `ann`" in issue
    assert "/crcr ack org/a" in issue
    for line in issue.splitlines():
        if "@everyone" in line:
            _, _, quoted = line.partition(": ")
            fence = quoted[: len(quoted) - len(quoted.lstrip("`"))]
            assert fence
            assert quoted.endswith(fence)
            assert fence not in quoted[len(fence) : -len(fence)].replace(fence + "`", "")
    assert "<!channel>" not in slack_body([thread])["text"]
    assert comment_body([thread], "mark").count("everyone") == 0
