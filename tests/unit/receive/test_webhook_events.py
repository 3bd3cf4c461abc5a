import json
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crcr.decide.events import (
    InstallationEvent,
    InstallationRepositoriesEvent,
    InstalledRepository,
    PingEvent,
    PullRequestEvent,
    PushEvent,
    RepositoryEvent,
    UnusedEvent,
)
from crcr.decide.model import RepoName
from crcr.errors import BadRequest
from crcr.receive.webhook.parse import parse_event, parse_payload
from support.published_files import example, webhook_examples

NAMES = [
    *("pull_request", "push", "merge_group", "check_run", "check_suite", "status", "issue_comment", "issues"),
    *(
        "workflow_run",
        "workflow_job",
        "installation",
        "installation_repositories",
        "repository",
        "ping",
        "star",
    ),
]
USED_PULL_ACTIONS = [
    *("opened", "reopened", "synchronize", "closed", "labeled", "unlabeled"),
    *("ready_for_review", "converted_to_draft", "edited"),
]


def _pull(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(example("pull_request", "opened"))
    body["pull_request"] |= changes
    return body


def _parse(name: str, body: Any) -> Any:
    return parse_event(name, json.dumps(body).encode())


def _refusal(name: str, body: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        parse_event(name, body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value.detail


def test_every_published_example_is_parsed() -> None:
    events = Counter(type(parse_event(name, body)).__name__ for name, body in webhook_examples())
    assert events == {
        "PullRequestEvent": 19,
        "PushEvent": 7,
        "MergeGroupEvent": 2,
        "CheckRunEvent": 3,
        "CheckSuiteEvent": 2,
        "InTreeCheckEvent": 10,
        "WorkflowRunEvent": 5,
        "WorkflowJobEvent": 7,
        "InstallationEvent": 7,
        "InstallationRepositoriesEvent": 3,
        "RepositoryEvent": 6,
        "PingEvent": 4,
        "UnusedEvent": 254,
    }


def test_every_published_payload_is_parsed_completely() -> None:
    for _, body in webhook_examples():
        assert parse_payload(body) == json.loads(body)


def test_a_synchronized_pull_request_is_parsed_in_full() -> None:
    assert parse_event("pull_request", example("pull_request", "synchronize")) == PullRequestEvent(
        upstream=RepoName("Codertocat/Hello-World"),
        repository_id=186853002,
        action="synchronize",
        number=2,
        head_sha="ec26c3e57ca3a959ca5aad62de7213c562f8c821",
        before="f95f852bd8fca8fcc58a9a2d6c842781e32a215e",
        base_ref="master",
        base_sha="f95f852bd8fca8fcc58a9a2d6c842781e32a215e",
        updated_at=datetime(2019, 5, 15, 15, 20, 33, tzinfo=UTC),
        is_open=True,
        merged=False,
        draft=False,
        labels=("bug",),
        title="Update the README with new information.",
        author="Codertocat",
        author_association="OWNER",
        installation_id=1,
        default_branch="master",
        opened_at=datetime(2019, 5, 15, 15, 20, 33, tzinfo=UTC),
    )


@pytest.mark.parametrize("action", USED_PULL_ACTIONS)
def test_every_used_action_of_a_pull_request_is_parsed(action: str) -> None:
    event = _parse("pull_request", _pull() | {"action": action})
    assert isinstance(event, PullRequestEvent)
    assert event.action == action


@pytest.mark.parametrize("value", [None, 5, "", ["main"], "two words", "nul\0", "x" * 1025])
def test_an_invalid_default_branch_is_dropped_and_the_event_is_kept(value: Any) -> None:
    body = _pull()
    body["repository"]["default_branch"] = value
    assert _parse("pull_request", body).default_branch is None


def test_fields_that_github_omits_have_defaults() -> None:
    body = _pull(user=None, labels=None, draft=None, merged=None) | {"sender": None}
    body["pull_request"]["head"]["repo"] = None
    body.pop("installation", None)
    del body["pull_request"]["author_association"]
    event = _parse("pull_request", body)
    assert (event.author, event.labels, event.draft, event.merged) == ("ghost", (), False, False)
    assert (event.author_association, event.installation_id, event.before) == ("NONE", None, None)


@pytest.mark.parametrize(
    "time",
    ["2019-05-15T15:20:33Z", "2019-05-15T17:20:33+02:00", "2019-05-15T15:20:33", 1557933633],
)
def test_every_time_format_becomes_utc(time: str | int) -> None:
    updated_at = _parse("pull_request", _pull(updated_at=time)).updated_at
    assert updated_at == datetime(2019, 5, 15, 15, 20, 33, tzinfo=UTC)
    assert updated_at.tzinfo is UTC


@pytest.mark.parametrize("time", [10**18, "0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00"])
def test_a_time_out_of_range_is_named_by_its_path(time: str | int) -> None:
    assert "$.pull_request.updated_at" in _refusal("pull_request", _pull(updated_at=time))


@pytest.mark.parametrize("action", ["locked", "assigned", "enqueued", "of_next_year"])
def test_an_unused_action_is_ignored_even_in_a_malformed_body(action: str) -> None:
    assert _parse("pull_request", {"action": action}) == UnusedEvent(f"action {action} of pull_request")
    assert _parse("pull_request", _pull() | {"action": action}) == UnusedEvent(
        f"action {action} of pull_request"
    )


@pytest.mark.parametrize("action", ["<script>", "a\nb", "x" * 1_000_000, ""])
def test_an_action_that_is_not_a_word_is_kept_out_of_the_reason(action: str) -> None:
    assert _parse("repository", {"action": action}) == UnusedEvent("action (not a word) of repository")


@pytest.mark.parametrize("name", ["star", "deployment", "of_next_year"])
def test_other_events_are_ignored(name: str) -> None:
    assert _parse(name, {"action": "created"}) == UnusedEvent(f"event {name}")


@pytest.mark.parametrize("name", ["", "Push", "pull request", "push\n", "x" * 101, "événement"])
def test_an_invalid_event_name_is_refused(name: str) -> None:
    assert "X-GitHub-Event" in _refusal(name, {})


def test_a_push_has_the_changed_paths_of_its_commits() -> None:
    body = json.loads(example("push"))
    body["commits"] = [
        {"added": ["a"], "removed": ["b"], "modified": ["c", "a"]},
        {"added": None, "modified": ["d/é"]},
    ]
    event = _parse("push", body)
    assert isinstance(event, PushEvent)
    assert event.changed_paths == {"a", "b", "c", "d/é"}


def test_a_deleted_tag_is_a_push_without_a_head_commit() -> None:
    bodies = [json.loads(body) for name, body in webhook_examples() if name == "push"]
    events = [_parse("push", body) for body in bodies if body["head_commit"] is None]
    assert len(events) == 4
    assert all(event.deleted and event.ref == "refs/tags/simple-tag" for event in events)
    assert {event.after for event in events} == {"0" * 40}


def test_a_push_to_all_zeros_is_a_deletion_even_without_the_deleted_flag() -> None:
    body = json.loads(example("push")) | {"after": "0" * 40}
    del body["deleted"]
    assert _parse("push", body).deleted


def test_installation_events_have_their_repositories() -> None:
    hello = InstalledRepository(186853002, RepoName("Codertocat/Hello-World"))
    created = parse_event("installation", example("installation", "created"))
    assert created == InstallationEvent("created", 957387, "Codertocat", (hello,), reads_actions=False)
    suspended = parse_event("installation", example("installation", "suspend"))
    assert isinstance(suspended, InstallationEvent)
    assert suspended.repositories == ()
    added = parse_event("installation_repositories", example("installation_repositories", "added"))
    assert isinstance(added, InstallationRepositoriesEvent)
    assert (added.added, added.removed) == (
        (InstalledRepository(186853007, RepoName("Codertocat/Space")),),
        (),
    )


def test_an_installation_on_an_enterprise_has_the_slug_as_account() -> None:
    body = {"action": "created", "installation": {"id": 5, "account": {"id": 1, "slug": "big-corp"}}}
    assert _parse("installation", body) == InstallationEvent("created", 5, "big-corp", ())


def _parse_repository_event(action: str, changes: Any) -> Any:
    return _parse(
        "repository",
        {"action": action, "repository": {"id": 7, "full_name": "new/name"}, "changes": changes},
    )


def test_a_renamed_or_transferred_repository_has_its_old_and_new_name() -> None:
    transferred = parse_event("repository", example("repository", "transferred"))
    assert isinstance(transferred, RepositoryEvent)
    assert transferred.old_name == RepoName("octocat/Hello-World")
    assert transferred.new_name == RepoName("Octocoders/Hello-World")
    assert _parse_repository_event(
        "transferred", {"owner": {"from": {"organization": {"login": "org"}}}}
    ).old_name == RepoName("org/name")
    assert _parse_repository_event("renamed", {"repository": {"name": {"from": "old"}}}).old_name == RepoName(
        "new/old"
    )
    assert _parse_repository_event("renamed", None).old_name is None
    assert _parse_repository_event("transferred", {"owner": {"from": {"user": None}}}).old_name is None


def test_a_ping_is_parsed() -> None:
    assert isinstance(parse_event("ping", example("ping")), PingEvent)
    assert parse_event("ping", b"{}") == PingEvent("")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("repository.id", "1"),
        ("repository.id", 0),
        ("repository.id", 2**63),
        ("repository.id", 10**400),
        ("repository.id", 1.5),
        ("repository.full_name", "no-slash"),
        ("repository.full_name", "a/b\n"),
        ("repository.full_name", "../.."),
        ("repository.full_name", "owner/" + "x" * 1_000_000),
        ("pull_request.number", True),
        ("pull_request.head.sha", "main"),
        ("pull_request.head.sha", "a" * 40 + "\n"),
        ("pull_request.base.ref", "ma\0in"),
        ("pull_request.base.ref", ""),
        ("pull_request.updated_at", "yesterday"),
        ("pull_request.labels", [{"name": 3}]),
        ("pull_request.title", None),
        ("pull_request.draft", "no"),
        ("installation.id", -1),
    ],
)
def test_an_invalid_field_is_named_by_its_path_in_a_short_error(path: str, value: Any) -> None:
    body = _pull() | {"installation": {"id": 1}}
    *parents, last = path.split(".")
    parent = body
    for key in parents:
        parent = parent[key]
    parent[last] = value
    detail = _refusal("pull_request", body)
    assert f"`$.{path}" in detail
    assert len(detail) < 300


@pytest.mark.parametrize(
    "path", ["repository", "pull_request", "pull_request.head.sha", "pull_request.state"]
)
def test_a_missing_field_is_named_in_the_error(path: str) -> None:
    body = _pull()
    *parents, last = path.split(".")
    parent = body
    for key in parents:
        parent = parent[key]
    del parent[last]
    assert f"`{last}`" in _refusal("pull_request", body)


def test_an_invalid_repository_name_in_a_list_is_named_by_its_path() -> None:
    repositories = [{"id": 1, "full_name": "a/b"}, {"id": 2, "full_name": "a b"}]
    body = {"action": "added", "installation": {"id": 1}, "repositories_added": repositories}
    assert "`$.repositories_added[1].full_name`" in _refusal("installation_repositories", body)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b"3", b'"x"', b"{", b"{}x", b"<xml/>", b'{"action":NaN}'),
        b"\xef\xbb\xbf{}",
        b'{"x":"\xff"}',
        b'{"x":"\xed\xa0\x80"}',
        b'{"x":"\x00"}',
        rb'{"x":"\ud800"}',
        b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"pull_request":' * 100_000,
    ],
)
def test_a_body_that_is_not_a_json_object_is_refused(name: str, body: bytes) -> None:
    assert _refusal(name, body)


def test_the_last_of_two_equal_keys_counts_for_the_event_and_for_the_dispatch() -> None:
    body = example("pull_request", "opened").replace(b'{"action"', b'{"action":"closed","action"', 1)
    event = parse_event("pull_request", body)
    assert isinstance(event, PullRequestEvent)
    assert event.action == parse_payload(body)["action"] == "opened"


def test_control_characters_are_kept_and_nul_is_replaced() -> None:
    event = _parse("pull_request", _pull(title="a\x01\u202e\0b", labels=[{"name": "x\0"}]))
    assert (event.title, event.labels) == ("a\x01\u202e\ufffdb", ("x\ufffd",))


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5_000])
def test_a_number_too_large_to_represent_is_refused_in_a_payload(number: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_payload(b'{"x":' + number + b"}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["action", "repository", "pull_request", "id", "full_name", "installation"])
            | st.text(max_size=8),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(deadline=None)
@given(
    st.sampled_from(NAMES) | st.text(max_size=20), st.binary() | JSON.map(lambda v: json.dumps(v).encode())
)
def test_any_body_is_an_event_or_a_bad_request(name: str, body: bytes) -> None:
    with suppress(BadRequest):
        parse_event(name, body)
        parse_payload(body)


@settings(deadline=None)
@given(st.data())
def test_a_real_body_with_any_one_value_replaced_is_an_event_or_a_bad_request(data: st.DataObject) -> None:
    name, text = data.draw(st.sampled_from([pair for pair in webhook_examples() if pair[0] in NAMES]))
    parent: Any = json.loads(text)
    body = parent
    while True:
        key = data.draw(st.sampled_from(sorted(parent)) if isinstance(parent, dict) else st.just(0))
        if not isinstance(parent[key], dict | list) or not parent[key] or data.draw(st.booleans()):
            break
        parent = parent[key]
    parent[key] = data.draw(JSON)
    with suppress(BadRequest):
        _parse(name, body)
