"""Selection of entries for an event: dispatched, held, or left out."""

from dataclasses import replace
from typing import Any

import pytest

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry, Authors
from crcr.decide.dispatch.selection import SelectedEntry, SelectionVerdict, matches_ref, select_entries
from crcr.decide.events import PullRequestEvent, PushEvent
from crcr.decide.model import Level, RepoName
from support.data.events_and_reports import a_pull, a_push

UPSTREAM = RepoName("pytorch/pytorch")
IGNORED = ("refs/heads/gh/**", "refs/heads/gh-readonly-queue/**")
PULL = a_pull(upstream=UPSTREAM)
PUSH = a_push(upstream=UPSTREAM)


def an_entry(**options: Any) -> AllowlistEntry:
    return AllowlistEntry(name=RepoName("o/r"), level=Level.L2, **options)


def choose(event: PullRequestEvent | PushEvent, **options: Any) -> tuple[SelectionVerdict, str | None] | None:
    """Return verdict and reason for an allowlist of one such entry; None: the entry does not get the event."""
    choices = select_entries(event, Allowlist((an_entry(**options),)), ignore_refs=IGNORED)
    return (choices[0].verdict, choices[0].reason) if choices else None


DISPATCH = (SelectionVerdict.DISPATCH, None)
DRAFT = (SelectionVerdict.HOLD, "draft")
APPROVAL = (SelectionVerdict.HOLD, "approval")
NO_LABEL = (SelectionVerdict.NOT_CONCERNED, "labels")
NO_TRUST = (SelectionVerdict.NOT_CONCERNED, "authors")
NO_REF = (SelectionVerdict.NOT_CONCERNED, "refs")


@pytest.mark.parametrize("action", ["opened", "reopened", "synchronize", "closed"])
def test_a_plain_entry_gets_every_dispatched_action(action: str) -> None:
    assert choose(replace(PULL, action=action, draft=True)) == DISPATCH


@pytest.mark.parametrize("action", ["labeled", "edited", "ready_for_review", "converted_to_draft"])
def test_other_actions_select_no_entry(action: str) -> None:
    assert choose(replace(PULL, action=action)) is None


@pytest.mark.parametrize(
    ("events", "pull", "push"),
    [
        ({"pull_request", "push"}, DISPATCH, DISPATCH),
        ({"pull_request"}, DISPATCH, None),
        ({"push"}, None, DISPATCH),
        ({"nightly"}, None, None),
        ({"merge_group"}, None, None),
    ],
)
def test_an_entry_gets_only_the_events_it_lists(events: set[str], pull: object, push: object) -> None:
    assert choose(PULL, events=frozenset(events)) == pull
    assert choose(PUSH, events=frozenset(events)) == push


REFS = [
    (None, "refs/heads/anything/at/all", DISPATCH),
    (None, "refs/tags/v2.11.0", DISPATCH),
    (("refs/heads/main",), "refs/heads/main", DISPATCH),
    (("refs/heads/main",), "refs/heads/main2", NO_REF),
    (("main",), "refs/heads/main", DISPATCH),
    (("main",), "refs/tags/main", DISPATCH),
    (("main",), "refs/heads/user/main", NO_REF),
    (("refs/tags/v*",), "refs/tags/v2.11", DISPATCH),
    (("refs/tags/v*",), "refs/heads/v2.11", NO_REF),
    (("release/*",), "refs/heads/release/2.11", DISPATCH),
    (("release/*",), "refs/heads/release/2.11/rc1", NO_REF),
    (("release/**",), "refs/heads/release/2.11/rc1", DISPATCH),
    (("main", "release/*"), "refs/heads/release/2.11", DISPATCH),
    (("**/main",), "refs/heads/main", DISPATCH),
    (("main",), "refs/pull/7/head", NO_REF),
]


@pytest.mark.parametrize(("refs", "ref", "choice"), REFS)
def test_refs_filter_pushes(refs: tuple[str, ...] | None, ref: str, choice: object) -> None:
    assert choose(replace(PUSH, ref=ref), refs=refs) == choice


def test_a_branch_deletion_is_dispatched_like_any_push() -> None:
    assert choose(replace(PUSH, deleted=True)) == DISPATCH


def test_refs_do_not_filter_pull_requests() -> None:
    assert choose(PULL, refs=("release/*",)) == DISPATCH


@pytest.mark.parametrize("ref", ["refs/heads/gh/user/1/head", "refs/heads/gh-readonly-queue/main/pr-1"])
def test_a_push_to_an_ignored_ref_selects_no_entry(ref: str) -> None:
    assert choose(replace(PUSH, ref=ref), refs=("**",)) is None


def test_a_stacked_pull_request_is_not_ignored_because_of_its_base_branch() -> None:
    assert choose(replace(PULL, base_ref="gh/user/1/base")) == DISPATCH


LABELS = [
    (None, (), DISPATCH),
    (("npu",), (), NO_LABEL),
    (("npu",), ("NPU",), DISPATCH),
    (("NPU", "xpu"), ("docs", "npu"), DISPATCH),
    (("npu",), ("npu2",), NO_LABEL),
    (("ciflow/*",), ("ciflow/crcr/npu",), DISPATCH),
    (("module: *",), ("module: dynamo",), DISPATCH),
]


@pytest.mark.parametrize(("entry_labels", "pull_labels", "choice"), LABELS)
def test_labels_filter_pull_requests(
    entry_labels: tuple[str, ...] | None, pull_labels: tuple[str, ...], choice: object
) -> None:
    assert choose(replace(PULL, labels=pull_labels), labels=entry_labels) == choice


def test_labels_authors_and_drafts_do_not_filter_pushes() -> None:
    assert choose(PUSH, labels=("npu",), authors=Authors.APPROVED, drafts=False) == DISPATCH


@pytest.mark.parametrize(
    ("action", "draft", "choice"),
    [
        ("opened", True, DRAFT),
        ("reopened", True, DRAFT),
        ("synchronize", True, DRAFT),
        ("closed", True, DISPATCH),
        ("opened", False, DISPATCH),
    ],
)
def test_an_entry_without_drafts_holds_a_draft_until_it_is_ready_or_closed(
    action: str, draft: bool, choice: object
) -> None:
    assert choose(replace(PULL, action=action, draft=draft), drafts=False) == choice


AUTHORS = [
    (Authors.ANY, "NONE", DISPATCH),
    (Authors.TRUSTED, "OWNER", DISPATCH),
    (Authors.TRUSTED, "MEMBER", DISPATCH),
    (Authors.TRUSTED, "COLLABORATOR", DISPATCH),
    (Authors.TRUSTED, "CONTRIBUTOR", DISPATCH),
    (Authors.TRUSTED, "FIRST_TIME_CONTRIBUTOR", NO_TRUST),
    (Authors.TRUSTED, "NONE", NO_TRUST),
    (Authors.TRUSTED, "", NO_TRUST),
    (Authors.APPROVED, "OWNER", APPROVAL),
    (Authors.APPROVED, "NONE", APPROVAL),
]


@pytest.mark.parametrize(("authors", "association", "choice"), AUTHORS)
def test_authors_filters_pull_requests_by_author_association(
    authors: Authors, association: str, choice: object
) -> None:
    assert choose(replace(PULL, author_association=association), authors=authors) == choice


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ({"labels": ("npu",)}, NO_LABEL),
        ({"authors": Authors.TRUSTED}, NO_TRUST),
        ({"authors": Authors.APPROVED}, (SelectionVerdict.NOT_CONCERNED, "approval")),
    ],
)
def test_closed_is_dispatched_only_if_the_pull_request_would_have_been(options: Any, choice: object) -> None:
    assert choose(replace(PULL, action="closed", is_open=False), **options) == choice


def test_label_and_author_filters_take_precedence_over_the_draft_hold() -> None:
    draft = replace(PULL, draft=True)
    assert choose(draft, drafts=False, labels=("npu",)) == NO_LABEL
    assert choose(draft, drafts=False, authors=Authors.TRUSTED) == NO_TRUST
    assert choose(draft, drafts=False, authors=Authors.APPROVED) == APPROVAL


def test_each_entry_gets_its_own_verdict_in_allowlist_order() -> None:
    plain = an_entry()
    with_label = replace(plain, name=RepoName("o/s"), labels=("npu",))
    nightly_only = replace(plain, name=RepoName("o/t"), events=frozenset({"nightly"}))
    choices = select_entries(PULL, Allowlist((plain, with_label, nightly_only)), ignore_refs=())
    assert choices == (
        SelectedEntry(plain, SelectionVerdict.DISPATCH, None),
        SelectedEntry(with_label, SelectionVerdict.NOT_CONCERNED, "labels"),
    )


def test_an_empty_glob_list_matches_no_ref() -> None:
    assert matches_ref((), "refs/heads/main") is False
