import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crcr.decide.dispatch.payload import (
    MARK,
    MAX_BODY_BYTES,
    STEPS,
    DispatchBody,
    RelayFields,
    encode_json,
    prepare_payload,
    update_payload,
)
from crcr.decide.model import Level, RepoName
from crcr.errors import BadRequest
from support.published_files import example, webhook_examples

GUID = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
RELAY = RelayFields(
    upstream=RepoName("pytorch/pytorch"),
    level=Level.L2,
    callback_url="https://relay.example/github/callback",
    audience="crcr",
)
PULL_SURVIVORS = [
    *("action", "number", "sender.login", "repository.id", "repository.full_name", "repository.html_url"),
    *("repository.clone_url", "repository.default_branch", "repository.private", "pull_request.number"),
    *("pull_request.title", "pull_request.draft", "pull_request.state", "pull_request.merged"),
    *("pull_request.merge_commit_sha", "pull_request.html_url", "pull_request.user.login"),
    *("pull_request.author_association", "pull_request.head.sha", "pull_request.head.ref"),
    *("pull_request.head.repo.full_name", "pull_request.head.repo.clone_url", "pull_request.head.repo.fork"),
    *("pull_request.base.sha", "pull_request.base.ref", "pull_request.base.repo.full_name"),
    *("pull_request.base.repo.clone_url", "pull_request.base.repo.fork"),
]
PUSH_SURVIVORS = [
    *("ref", "before", "after", "deleted", "created", "forced", "base_ref", "head_commit.id"),
    *("sender.login", "repository.id", "repository.full_name", "repository.html_url"),
    *("repository.clone_url", "repository.default_branch", "repository.private"),
]


def _pull(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(example("pull_request", "synchronize"))
    body["pull_request"] |= changes
    return body


def _push(commits: int, **changes: Any) -> dict[str, Any]:
    bodies = [json.loads(text) for name, text in webhook_examples() if name == "push"]
    body: dict[str, Any] = next(body for body in bodies if body["commits"])
    body["commits"] = [body["commits"][0] | {"id": f"{n:040x}"} for n in range(commits)]
    return body | changes


def _dispatch(payload: dict[str, Any], event_type: str = "pull_request") -> DispatchBody:
    return prepare_payload(event_type=event_type, delivery_id=GUID, payload=payload).dispatch(RELAY)


def _checked_payload(dispatch: DispatchBody) -> dict[str, Any]:
    """Return the payload that a downstream receives, after checking the guarantees about every body."""
    assert len(dispatch.body) <= MAX_BODY_BYTES
    request = json.loads(dispatch.body.decode())
    client = request["client_payload"]
    assert list(request) == ["event_type", "client_payload"]
    assert list(client) == ["event_type", "delivery_id", "payload", "relay"]
    assert client["relay"]["trimmed"] == list(dispatch.trimmed)
    payload: dict[str, Any] = client["payload"]
    return payload


def _value_at_path(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value[key]
    return value


def _assert_survived(sent: Any, original: Any, paths: list[str]) -> None:
    assert {path: _value_at_path(sent, path) for path in paths} == {
        path: _value_at_path(original, path) for path in paths
    }


def test_the_body_has_the_exact_bytes_of_the_protocol() -> None:
    payload = {"action": "opened", "title": "é🚀"}
    assert _dispatch(payload).body.decode() == (
        '{"event_type":"pull_request","client_payload":{"event_type":"pull_request","delivery_id":"'
        + GUID
        + '",'
        '"payload":{"action":"opened","title":"é🚀"},"relay":{"version":1,"upstream":"pytorch/pytorch",'
        '"level":"L2","callback_url":"https://relay.example/github/callback","audience":"crcr","trimmed":[],'
        '"reason":null,"purpose":null}}}'
    )


def test_every_webhook_example_of_github_is_dispatched_verbatim() -> None:
    for name, text in webhook_examples():
        payload = json.loads(text)
        dispatch = _dispatch(payload, name)
        assert dispatch.trimmed == ()
        assert _checked_payload(dispatch) == payload


def test_only_a_test_dispatch_is_marked_as_test() -> None:
    test = replace(RELAY, level=Level.L4, callback_url="https://x", audience="a", purpose="test")
    prepared = prepare_payload(event_type="push", delivery_id=GUID, payload={})
    bisection = replace(RELAY, purpose="bisection")
    sent = (RELAY, test, bisection)
    relays = [json.loads(prepared.dispatch(relay).body)["client_payload"]["relay"] for relay in sent]
    assert "test" not in relays[0]
    assert ("test" in relays[2], relays[2]["purpose"]) == (False, "bisection")
    assert relays[1] == {
        "version": 1,
        "upstream": "pytorch/pytorch",
        "level": "L4",
        "callback_url": "https://x",
        "audience": "a",
        "trimmed": [],
        "reason": None,
        "purpose": "test",
        "test": True,
    }


def test_a_dispatch_has_the_action_and_labels_of_the_time_it_is_sent() -> None:
    old = {"name": "old", "color": "ededed"}
    payload = {"action": "edited", "pull_request": {"number": 7, "labels": [old, {"name": "gone"}]}}
    sent = update_payload(payload, action="synchronize", labels=["old", "new"])

    assert sent == {"action": "synchronize", "pull_request": {"number": 7, "labels": [old, {"name": "new"}]}}
    assert update_payload(payload, action="edited", labels=None) is payload
    assert payload["action"] == "edited"


@pytest.mark.parametrize("character", ["a", "é", "漢", "🚀", "\n", '"', "\x01"])
def test_fault_6_a_pull_request_with_a_64_kb_body_fits(character: str) -> None:
    payload = _pull(body=character * 65_536)
    dispatch = _dispatch(payload)
    sent = _checked_payload(dispatch)
    assert dispatch.trimmed == ("pull_request.body",)
    assert sent["pull_request"]["body"].endswith(MARK)
    assert sent["pull_request"].pop("body").startswith(character * 2_000)
    del payload["pull_request"]["body"]
    assert sent == payload


def test_fault_6_a_push_of_2_048_commits_fits() -> None:
    payload = _push(2_048)
    dispatch = _dispatch(payload, "push")
    sent = _checked_payload(dispatch)
    assert dispatch.trimmed == ("commits",)
    assert sent["commits"] == payload["commits"][-20:]
    assert sent | {"commits": None} == payload | {"commits": None}


def test_commits_with_thousands_of_files_lose_the_files_before_the_commits() -> None:
    payload = _push(3)
    for commit in payload["commits"]:
        commit["added"] = [f"src/file_{n}.py" for n in range(3_000)]
    dispatch = _dispatch(payload, "push")
    sent = _checked_payload(dispatch)
    assert dispatch.trimmed == ("commits[].files",)
    assert [commit["id"] for commit in sent["commits"]] == [commit["id"] for commit in payload["commits"]]
    assert "added" not in sent["commits"][0]


def test_a_trimmed_field_is_absent_and_not_empty() -> None:
    payload = _push(20)
    for commit in payload["commits"]:
        commit["message"] = "m" * 10_000
    dispatch = _dispatch(payload, "push")
    assert dispatch.trimmed == ("commits[].files", "commits")
    assert "commits" not in _checked_payload(dispatch)


@pytest.mark.parametrize("body", [None, ""])
def test_an_empty_body_is_not_listed_as_trimmed(body: str | None) -> None:
    labels = [{"id": 1, "color": "fff", "description": "d" * 1_000, "name": f"label {n}"} for n in range(100)]
    payload = _pull(body=body, labels=labels)
    dispatch = _dispatch({**payload, "commits": []})
    assert dispatch.trimmed == ("repositories", "users", "labels")
    assert _checked_payload(dispatch)["pull_request"]["body"] == body
    assert _checked_payload(dispatch)["commits"] == []


def test_a_head_commit_of_a_megabyte_is_trimmed() -> None:
    payload = _push(1)
    payload["head_commit"] |= {"message": "m" * 1_000_000, "added": ["f"] * 50_000}
    dispatch = _dispatch(payload, "push")
    sent = _checked_payload(dispatch)
    assert {"head_commit.files", "head_commit.message"} <= set(dispatch.trimmed)
    assert sent["head_commit"]["message"].endswith(MARK)
    _assert_survived(sent, payload, PUSH_SURVIVORS)


def test_an_oversized_pull_request_keeps_its_identifying_fields() -> None:
    labels = [{"id": n, "name": f"label {n}", "color": "fff"} for n in range(5_000)]
    payload = _pull(title="t" * 1_000_000, labels=labels, body="b" * 1_000_000)
    dispatch = _dispatch(payload)
    sent = _checked_payload(dispatch)
    assert {"pull_request.title", "pull_request.labels", "rest"} <= set(dispatch.trimmed)
    assert sent["pull_request"]["title"].endswith(MARK)
    assert sent["pull_request"]["labels"] == [{"name": f"label {n}"} for n in range(100)]
    _assert_survived(sent, payload, [path for path in PULL_SURVIVORS if path != "pull_request.title"])


def test_labels_keep_their_names_while_they_fit() -> None:
    label = {"id": 1, "color": "fff", "description": "d" * 1_000}
    payload = _pull(labels=[label | {"name": f"ciflow/crcr/{n}"} for n in range(100)])
    dispatch = _dispatch(payload)
    assert [label["name"] for label in _checked_payload(dispatch)["pull_request"]["labels"]] == [
        f"ciflow/crcr/{n}" for n in range(100)
    ]
    assert dispatch.trimmed == ("pull_request.body", "repositories", "users", "labels")


def test_a_merge_group_is_kept_completely() -> None:
    payload = json.loads(example("merge_group"))
    payload["merge_group"]["by"] = {"login": "x", "id": 1, "avatar_url": "https://x"}
    payload["noise"] = "n" * 100_000
    dispatch = _dispatch(payload, "merge_group")
    assert _checked_payload(dispatch)["merge_group"] == payload["merge_group"]
    assert "rest" in dispatch.trimmed


def test_a_merge_group_with_a_megabyte_of_message_still_fits() -> None:
    payload = json.loads(example("merge_group"))
    payload["merge_group"]["head_commit"]["message"] = "m" * 1_000_000
    dispatch = _dispatch(payload, "merge_group")
    sent = _checked_payload(dispatch)["merge_group"]
    assert "merge_group.head_commit.message" in dispatch.trimmed
    assert sent["head_commit"].pop("message").endswith(MARK)
    del payload["merge_group"]["head_commit"]["message"]
    assert sent == payload["merge_group"]


def test_an_identifying_value_is_whole_or_null() -> None:
    payload = _pull() | {"ref": "r" * 100_000}
    sent = _checked_payload(_dispatch(payload))
    assert sent["ref"] is None
    assert sent["pull_request"]["head"]["sha"] == payload["pull_request"]["head"]["sha"]


def _payload_with_body_size(size: int) -> dict[str, Any]:
    empty = len(_dispatch({"noise": ""}, "push").body)
    return {"noise": "n" * (size - empty)}


def test_the_limit_is_exact_for_the_whole_request() -> None:
    last = _dispatch(_payload_with_body_size(MAX_BODY_BYTES), "push")
    assert (len(last.body), last.trimmed) == (MAX_BODY_BYTES, ())
    over = _dispatch(_payload_with_body_size(MAX_BODY_BYTES + 1), "push")
    assert over.trimmed == ("rest",)
    assert _checked_payload(over) == {}


def test_near_the_limit_each_downstream_gets_the_largest_payload_beside_its_relay_fields() -> None:
    prepared = prepare_payload(
        event_type="push", delivery_id=GUID, payload=_payload_with_body_size(MAX_BODY_BYTES)
    )
    longer = replace(RELAY, callback_url="https://x" * 200)
    assert prepared.dispatch(RELAY).trimmed == ()
    assert prepared.dispatch(longer).trimmed == ("rest",)
    assert len(prepared.dispatch(longer).body) <= MAX_BODY_BYTES


def test_one_prepared_payload_serves_every_level() -> None:
    payload = _pull(body="é" * 65_536)
    prepared = prepare_payload(event_type="pull_request", delivery_id=GUID, payload=payload)
    for level in Level:
        relay = replace(RELAY, level=level)
        single = prepare_payload(event_type="pull_request", delivery_id=GUID, payload=payload).dispatch(relay)
        assert prepared.dispatch(relay) == single
        assert json.loads(single.body)["client_payload"]["relay"]["level"] == f"L{level.value}"


def test_the_names_of_all_trimming_steps_fit_beside_the_longest_relay_fields() -> None:
    assert len(encode_json([name for name, _ in STEPS])) < 900
    with pytest.raises(ValueError, match="too long for a dispatch"):
        replace(RELAY, callback_url="https://x" * 1_000)


def test_preparing_is_deterministic_and_does_not_modify_the_payload() -> None:
    payload = _pull(body="b" * 100_000, title="t" * 100_000)
    before = copy.deepcopy(payload)
    assert _dispatch(payload) == _dispatch(copy.deepcopy(payload))
    assert payload == before


def test_a_lone_surrogate_is_written_as_its_escape() -> None:
    dispatch = _dispatch({"title": "a\ud800b"})
    assert rb"a\ud800b" in dispatch.body
    assert _checked_payload(dispatch) == {"title": "a\ud800b"}


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_json_cannot_represent_is_refused(value: float) -> None:
    with pytest.raises(BadRequest, match="cannot be written as JSON"):
        _dispatch({"x": value})


def test_excessive_nesting_is_refused_and_deep_nesting_is_trimmed() -> None:
    endless: dict[str, Any] = {}
    for _ in range(100_000):
        endless = {"x": endless}
    with pytest.raises(BadRequest, match="cannot be written as JSON"):
        _dispatch(endless)
    deep: Any = "n" * 100_000
    for _ in range(300):
        deep = {"owner": [deep], "full_name": "a/b"}
    assert _checked_payload(_dispatch({"action": "opened", "pull_request": {"number": 1, "deep": deep}})) == {
        "action": "opened",
        "pull_request": {"number": 1},
    }


def test_an_overlong_delivery_id_is_refused() -> None:
    with pytest.raises(BadRequest, match="too long"):
        prepare_payload(event_type="push", delivery_id="x" * 3_000, payload={})


SIZES = st.sampled_from([0, 1, 10, 100, 1_000, 5_000])
WORDS = st.text(max_size=12)
LONG = st.builds(lambda word, size: word * size, WORDS, SIZES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | LONG,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=8,
)


@st.composite
def github_like(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a real body with unusual sizes everywhere but in the fields that must survive."""
    labels = [{"name": draw(WORDS), "color": "x", "description": draw(LONG)}] * draw(st.integers(0, 60))
    body = _pull(body=draw(st.none() | LONG), labels=labels, auto_merge=draw(JSON), title=draw(WORDS))
    body["pull_request"]["head"]["repo"]["description"] = draw(LONG)
    body["pull_request"]["requested_reviewers"] = [body["sender"]] * draw(st.integers(0, 200))
    return body | {f"new_{draw(WORDS)}": draw(JSON)}


@st.composite
def hostile(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a body with arbitrary values anywhere, above all in the fields that survive."""
    body: dict[str, Any] = draw(st.sampled_from([_pull(), _push(5), json.loads(example("merge_group"))]))
    for _ in range(draw(st.integers(1, 5))):
        node = body
        while (key := draw(st.sampled_from(sorted(node)))) and isinstance(node[key], dict) and node[key]:
            node = node[key]
        value = draw(JSON)
        node[key] = [value] * draw(st.sampled_from([1, 20, 200])) if draw(st.booleans()) else value
    return body


SLOW_DATA = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=60
)


@SLOW_DATA
@given(github_like())
def test_a_pull_request_of_any_size_fits_with_its_survivors_intact(payload: dict[str, Any]) -> None:
    dispatch = _dispatch(payload)
    sent = _checked_payload(dispatch)
    _assert_survived(sent, payload, PULL_SURVIVORS)
    names = [label["name"] for label in payload["pull_request"]["labels"]]
    assert [label["name"] for label in sent["pull_request"]["labels"]] == names
    if not dispatch.trimmed:
        assert sent == payload


@SLOW_DATA
@given(hostile())
def test_a_body_with_arbitrary_values_fits_and_small_ones_are_verbatim(payload: dict[str, Any]) -> None:
    before = encode_json(payload)
    dispatch = _dispatch(payload)
    sent = _checked_payload(dispatch)
    assert encode_json(payload) == before
    assert (sent == payload) == (not dispatch.trimmed)
    assert bool(dispatch.trimmed) == (len(before) + len(_dispatch({}).body) - len("{}") > MAX_BODY_BYTES)
