"""Admin operations over HTTP, through the API and the pages: with the same code, for admins only."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from crcr.show.access.admin_orders import ADMIN_ACTIONS
from github_sim.github import Match
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.sign_in import ADMIN, READER, TOKENS, audit_log, forms, relay_with_tokens, visitor

ONE = Match("POST", "/repos/org/one/dispatches")
BODIES: dict[str, dict[str, Any]] = {
    "replay": {"delivery": "none"},
    "retry": {"target": "org/one"},
    "suspend": {"repository": "org/one"},
    "lift": {"repository": "org/one"},
    "rebind": {"repository": "org/one", "repository_id": 77},
    "known": {"fingerprint": "0" * 16, "url": "https://github.com/org/one/issues/1"},
    "unknown": {"fingerprint": "0" * 16},
    "override_level": {"repository": "org/one", "days": 14, "reason": "new machines"},
    "end_override": {"repository": "org/one"},
    "pause": {},
    "unpause": {},
    "bisect": {"backend": "org/one", "job": "build"},
    "stop_bisection": {"bisection": 1},
}
EVERY_ACT = [act.name for act in ADMIN_ACTIONS]
IN_API = [act.name for act in ADMIN_ACTIONS if act.has_route]


async def call_act(
    relay: RunningRelay, act: str, body: Any = None, token: str | None = ADMIN, **more: str
) -> httpx.Response:
    bearer = {"authorization": f"Bearer {token}"} if token else {}
    return await relay.http.post(f"/api/v1/admin/{act}", json=body or {}, headers={**bearer, **more})


def error_code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


def states(relay: RunningRelay) -> list[str]:
    return [row["state"] for row in relay.rows("SELECT state FROM effects WHERE kind = 'send_dispatch'")]


async def refused_dispatch(relay: RunningRelay) -> str:
    """A delivery that reached one backend, and was refused permanently by the other's repository."""
    relay.github.faults.answer(422, on=ONE)
    await relay.github.open_pr(UPSTREAM)
    await relay.drain()
    relay.github.faults.clear()
    return str(relay.rows("SELECT guid FROM deliveries")[0]["guid"])


def test_this_module_has_a_body_for_every_act() -> None:
    assert set(BODIES) == set(EVERY_ACT)


@pytest.mark.parametrize("act", IN_API)
@pytest.mark.parametrize("access", ["public", "token"])
async def test_the_api_rejects_acts_without_an_admin_bearer_token(
    tmp_path: Path, act: str, access: str
) -> None:
    async with relay_with_tokens(tmp_path, access) as relay, visitor(relay) as me:
        await me.sign_in(ADMIN)
        cookie = f"crcr_session={me.http.cookies['crcr_session']}"
        for answer, status, expected_code in (
            (await call_act(relay, act, BODIES[act], token=None), 401, "not_signed_in"),
            (await call_act(relay, act, BODIES[act], token="wrong"), 401, "not_signed_in"),
            (await call_act(relay, act, BODIES[act], token=READER), 403, "not_admin"),
            (await call_act(relay, act, BODIES[act], token=None, cookie=cookie), 401, "not_signed_in"),
            (
                await call_act(relay, act, BODIES[act], cookie=cookie, origin="http://evil.test"),
                403,
                "cross_origin",
            ),
        ):
            assert (answer.status_code, error_code(answer)) == (status, expected_code)
            assert expected_code != "not_signed_in" or answer.headers["www-authenticate"] == "Bearer"
        assert audit_log(relay) == [("ann", "sign_in", "pages")]


@pytest.mark.parametrize("act", IN_API)
async def test_the_caller_is_authenticated_before_the_body_is_parsed(tmp_path: Path, act: str) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        answer = await relay.http.post(f"/api/v1/admin/{act}", content=b"{not json")
        assert (answer.status_code, error_code(answer)) == (401, "not_signed_in")
        bearer = {"authorization": f"Bearer {ADMIN}"}
        answer = await relay.http.post(f"/api/v1/admin/{act}", content=b"{not json", headers=bearer)
        assert (answer.status_code, error_code(answer)) == (400, "bad_request")


@pytest.mark.parametrize("act", EVERY_ACT)
async def test_a_form_needs_an_admin_session_and_its_own_csrf_token(tmp_path: Path, act: str) -> None:
    fields = {name: str(value) for name, value in BODIES[act].items()}
    async with (
        relay_with_tokens(tmp_path) as relay,
        visitor(relay) as admin,
        visitor(relay) as other,
        visitor(relay) as reader,
        visitor(relay) as stranger,
    ):
        await admin.sign_in(ADMIN)
        await other.sign_in(ADMIN)
        await reader.sign_in(READER)
        before = audit_log(relay)
        address, foreign_csrf = f"/crcr/admin/{act}", await other.csrf()
        for csrf in ("", "x", foreign_csrf, "é"):
            answer = await admin.send(address, {"csrf": csrf, **fields})
            assert answer.status_code == 403
            assert answer.headers["content-type"].startswith("text/html")
        own = {"csrf": await admin.csrf(), **fields}
        for headers in ({"origin": "http://evil.test"}, {"sec-fetch-site": "cross-site"}):
            assert (await admin.send(address, own, **headers)).status_code == 403
        assert (await reader.send(address, {"csrf": await reader.csrf(), **fields})).status_code == 403
        assert (await stranger.send(address, own)).status_code == 401
        bearer = await stranger.send(address, own, authorization=f"Bearer {ADMIN}")
        assert bearer.status_code == 401
        assert audit_log(relay) == before


@pytest.mark.parametrize("act", IN_API)
async def test_without_admins_administration_is_off(tmp_path: Path, act: str) -> None:
    async with (
        running_relay(tmp_path, "L1:\n  - org/one\n", downstreams=("org/one",)) as relay,
        visitor(relay) as me,
    ):
        answer = await call_act(relay, act, BODIES[act])
        assert (answer.status_code, answer.json()["error"]["detail"]) == (404, "administration is off")
        assert (await me.send(f"/crcr/admin/{act}", {})).status_code == 404
        assert [form for form in forms((await me.get("/crcr")).text) if "/admin/" in form[""]] == []


async def test_reader_tokens_alone_do_not_enable_administration(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path, CRCR_ADMIN_TOKENS="") as relay:
        assert (await call_act(relay, "pause", token=READER)).status_code == 404


async def test_parked_effects_are_retried_by_id_and_by_target(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        await me.sign_in(ADMIN)
        await refused_dispatch(relay)
        (parked,) = relay.rows("SELECT effect_id FROM effects WHERE state = 'parked'")
        answer = await me.act("retry", effect=str(parked["effect_id"]), next="/crcr/org/one?range=7d")
        assert answer.headers["location"] == "/crcr/org/one?range=7d&done=retried&n=1"
        assert "Retrying one call." in (await me.get(answer.headers["location"])).text
        await relay.drain()
        assert states(relay) == ["done", "done"]
        assert (await call_act(relay, "retry", {"target": "org/one"})).json() == {
            "ok": True,
            "act": "retry",
            "count": 0,
        }
        assert audit_log(relay)[1:] == [("ann", "retry", "1 effects")]


async def test_a_delivery_is_replayed_to_targets_that_missed_it_or_to_everyone(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        await me.sign_in(ADMIN)
        guid = await refused_dispatch(relay)
        assert (await call_act(relay, "replay", {"delivery": guid})).json()["count"] == 1
        await relay.drain()
        answer = await me.act("replay", delivery=guid)
        assert answer.headers["location"] == "/crcr?done=replayed&n=0"
        answer = await me.act("replay", delivery=guid, everyone="true")
        assert answer.headers["location"] == "/crcr?done=replayed&n=2"
        await relay.drain()
        assert audit_log(relay)[1:] == [("ann", "replay", guid)] * 3


async def test_a_backend_is_suspended_and_resumed(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        await me.sign_in(ADMIN)
        await me.act("suspend", repository="Org/One", reason="floods us")
        query = "SELECT suspended_at FROM repositories WHERE downstream = 'org/one'"
        assert relay.rows(query)[0]["suspended_at"]
        assert (await call_act(relay, "lift", {"repository": "org/one"})).json()["ok"] is True
        assert relay.rows(query)[0]["suspended_at"] is None
        assert [(who, act) for who, act, _ in audit_log(relay)[1:]] == [("ann", "suspend"), ("ann", "resume")]


async def test_dispatching_is_paused_and_resumed(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        await me.sign_in(ADMIN)
        answer = await me.act("pause", upstream=UPSTREAM)
        assert "Dispatching is paused" in (await me.get(answer.headers["location"])).text
        assert relay.rows("SELECT paused_at FROM upstreams")[0]["paused_at"]
        assert (await call_act(relay, "unpause")).status_code == 200
        assert relay.rows("SELECT paused_at FROM upstreams")[0]["paused_at"] is None


async def test_a_changed_id_is_accepted_by_an_admin(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        assert (await call_act(relay, "rebind", BODIES["rebind"])).status_code == 200
        query = "SELECT repository_id FROM repositories WHERE downstream = 'org/one'"
        assert relay.rows(query)[0]["repository_id"] == 77
        assert audit_log(relay) == [("ann", "rebind", "org/one")]


@pytest.mark.parametrize(
    ("act", "body", "status"),
    [
        ("replay", {"delivery": "no-such"}, 404),
        ("replay", {}, 400),
        ("replay", {"delivery": "x", "colour": "red"}, 400),
        ("retry", {}, 400),
        ("retry", {"effect": 1, "target": "org/one"}, 400),
        ("retry", {"target": "one"}, 400),
        ("retry", {"effect": 0}, 400),
        ("suspend", {"repository": "org/unheard-of"}, 404),
        ("suspend", {"repository": "../x"}, 400),
        ("rebind", {"repository": "org/unheard-of", "repository_id": 5}, 404),
        ("rebind", {"repository": "org/one", "repository_id": -5}, 400),
        ("pause", {"upstream": "no/such"}, 404),
        ("nonsense", {}, 404),
    ],
)
async def test_an_invalid_order_is_rejected_with_the_same_status_by_api_and_pages(
    tmp_path: Path, act: str, body: dict[str, Any], status: int
) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        assert (await call_act(relay, act, body)).status_code == status
        await me.sign_in(ADMIN)
        answer = await me.act(act, **{name: str(value) for name, value in body.items()})
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/html")
        assert [row for row in audit_log(relay) if row[1] != "sign_in"] == []


async def test_with_several_upstreams_the_upstream_must_be_named(tmp_path: Path) -> None:
    lists = {UPSTREAM: "L1:\n  - org/one\n", "other/core": "L1:\n  - org/one\n"}
    async with running_relay(tmp_path, lists, downstreams=("org/one",), **TOKENS) as relay:
        answer = await call_act(relay, "pause")
        assert (answer.status_code, "upstream is needed" in answer.text) == (400, True)
        assert (await call_act(relay, "pause", {"upstream": "other/core"})).status_code == 200
        paused = relay.rows("SELECT upstream FROM upstreams WHERE paused_at IS NOT NULL")
        assert paused == [{"upstream": "other/core"}]


@pytest.mark.parametrize("next_url", ["https://evil.test", "//evil.test", "/\\evil.test"])
async def test_an_act_redirects_to_this_site_only(tmp_path: Path, next_url: str) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        await me.sign_in(ADMIN)
        assert (await me.act("pause", next=next_url)).headers["location"] == "/crcr?done=paused&n=1"


async def test_fault_30_a_session_writes_no_trusted_rows(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay, visitor(relay) as me:
        await me.sign_in(ADMIN)
        row = {"trusted": {"verified_repo": "org/one"}, "untrusted": {"callback_payload": {}}}
        for headers in ({}, {"authorization": f"Bearer {ADMIN}"}):
            answer = await me.http.post("/api/crcr/results", json=row, headers=headers)
            assert answer.status_code in {401, 404, 405}
        assert relay.jobs() == []


async def test_the_acts_are_described_with_their_bodies(tmp_path: Path) -> None:
    async with relay_with_tokens(tmp_path) as relay:
        openapi = (await relay.http.get("/api/openapi.json")).json()
        for act in (action for action in ADMIN_ACTIONS if action.has_route):
            operation = openapi["paths"][f"/api/v1/admin/{act.name}"]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert schema.endswith(f"/{act.order.__name__}")
            assert {"200", "401", "403"} <= set(operation["responses"])
