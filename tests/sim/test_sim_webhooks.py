import hashlib
import hmac
import json
from collections.abc import Callable

import httpx

from github_sim.clock import ManualClock
from github_sim.github import GitHub

AppAuth = Callable[..., dict[str, str]]
LOG = "/app/hook/deliveries"


async def test_a_webhook_is_signed_and_as_large_as_a_real_one(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    pull = await github.open_pr("org/upstream")
    (request,) = received_requests
    digest = hmac.new(github.webhook_secret.encode(), request.content, hashlib.sha256).hexdigest()
    assert request.headers["x-hub-signature-256"] == f"sha256={digest}"
    assert request.headers["x-github-event"] == "pull_request"
    assert len(request.content) > 20_000
    assert pull.last_delivery is not None
    assert pull.last_delivery.guid == request.headers["x-github-delivery"]
    assert (pull.last_delivery.status_code, pull.last_delivery.answer_body) == (202, '{"ok":true}')


def test_the_signature_equals_githubs_published_example(github: GitHub) -> None:
    headers = github.webhooks.headers("ping", "guid", b"Hello, World!")
    assert headers["X-Hub-Signature-256"] == (
        "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    )


async def test_synchronize_has_before_and_after(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    pull = await github.open_pr("org/upstream")
    before = pull.head_sha
    await github.push_to_pr(pull)
    body = json.loads(received_requests[-1].content)
    assert (body["action"], body["before"], body["after"]) == ("synchronize", before, pull.head_sha)
    assert body["pull_request"]["head"]["sha"] == pull.head_sha


async def test_a_push_lists_its_commits_up_to_githubs_maximum(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    await github.push("org/upstream", commits=2_050)
    body = json.loads(received_requests[-1].content)
    assert len(body["commits"]) == 2_048
    assert body["head_commit"]["id"] == body["after"] == github.repository("org/upstream").head_sha


async def test_a_deleted_branch_has_no_head_commit(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    await github.push("org/upstream", ref="refs/heads/old", created=True)
    assert json.loads(received_requests[-1].content)["created"] is True
    await github.push("org/upstream", ref="refs/heads/old", deleted=True)
    body = json.loads(received_requests[-1].content)
    assert (body["deleted"], body["after"], body["head_commit"]) == (True, "0" * 40, None)


async def test_a_repository_without_the_app_sends_no_webhooks(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    github.create_repository("acme/bare", installed=False)
    pull = await github.open_pr("acme/bare")
    assert (pull.last_delivery, received_requests) == (None, [])


async def test_the_delivery_log_is_paged_newest_first(
    github: GitHub, api: httpx.AsyncClient, app_auth: AppAuth
) -> None:
    for _ in range(5):
        await github.push("org/upstream")
    first = await api.get(LOG, params={"per_page": 2}, headers=app_auth())
    second = await api.get(first.links["next"]["url"], headers=app_auth())
    third = await api.get(second.links["next"]["url"], headers=app_auth())
    listed = [each["guid"] for page in (first, second, third) for each in page.json()]
    assert listed == [each.guid for each in reversed(github.deliveries())]
    assert "next" not in third.links


async def test_the_delivery_log_is_kept_for_three_days(
    github: GitHub, api: httpx.AsyncClient, app_auth: AppAuth, clock: ManualClock
) -> None:
    await github.push("org/upstream")
    clock.advance(3 * 86_400 + 1)
    assert (await api.get(LOG, headers=app_auth())).json() == []


async def test_a_failed_delivery_is_listed_and_redelivered_under_its_guid(
    github: GitHub, api: httpx.AsyncClient, app_auth: AppAuth, answers: list[httpx.Response]
) -> None:
    answers.append(httpx.Response(503, text="later"))
    await github.push("org/upstream")
    await github.push("org/upstream")
    (failed,) = (await api.get(LOG, params={"status": "failure"}, headers=app_auth())).json()
    assert failed["status_code"] == 503
    detail = (await api.get(f"{LOG}/{failed['id']}", headers=app_auth())).json()
    assert detail["request"]["payload"]["ref"] == "refs/heads/main"
    again = await api.post(f"{LOG}/{failed['id']}/attempts", headers=app_auth())
    assert again.status_code == 202
    assert [each.status_code for each in github.deliveries(failed["guid"])] == [503, 202]
    assert github.deliveries(failed["guid"])[-1].redelivery is True


async def test_an_unreachable_relay_is_logged_as_failed(github: GitHub) -> None:
    github.webhook_url = None
    sent = await github.push("org/upstream")
    assert sent is not None
    assert (sent.ok, sent.status_code) == (False, 502)


async def test_installing_and_uninstalling_send_webhooks_to_the_app(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    github.create_repository("acme/second", installed=False)
    github.create_repository("fresh/one", installed=False)
    for act in (github.install("acme/second"), github.install("fresh/one"), github.uninstall("fresh/one")):
        await act
    webhooks = [
        (each.headers["x-github-event"], json.loads(each.content)["action"]) for each in received_requests
    ]
    assert webhooks == [
        ("installation_repositories", "added"),
        ("installation", "created"),
        ("installation", "deleted"),
    ]


async def test_a_transfer_keeps_the_id_and_changes_the_owner(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    before = github.repository("acme/backend")
    number, owner = before.id, before.owner.id
    await github.transfer_repository("acme/backend", "bigger")
    after = github.repository("bigger/backend")
    assert (after.id, after.owner.id != owner) == (number, True)
    assert (
        json.loads(received_requests[-1].content)["changes"]["owner"]["from"]["organization"]["login"]
        == "acme"
    )
