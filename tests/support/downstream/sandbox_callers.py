"""Repositories that are on no allowlist, and what they try out in the sandbox."""

from typing import Any

from support.running_relay import AUDIENCE, WORKFLOW, RunningRelay

NEWCOMER = "new/comer"
FAILED = [{"name": "test_attention", "file": "test_ops.py", "message": "AssertionError: 1.0 != 2.0"}]


async def report_from_sandbox(
    relay: RunningRelay,
    name: str = NEWCOMER,
    *,
    conclusion: str | None = None,
    private: bool = False,
    **workflow: Any,
) -> None:
    """A run of a new repository tells that its job began, and with a conclusion that it is over."""
    relay.github.create_repository(name, installed=False, private=private, workflows=[WORKFLOW])
    run = relay.github.start_run(name, event="repository_dispatch", event_type="pull_request")
    ended: dict[str, Any] = {"conclusion": conclusion, "failed_tests": FAILED, "test_results": {"failed": 1}}
    for status in ("in_progress", "completed") if conclusion else ("in_progress",):
        told = {**(ended if status == "completed" else {}), **workflow}
        body = relay.github.ci.report_body(run, run.job("build"), status, **told)
        token = relay.github.oidc_token(run, "build", audience=AUDIENCE)
        headers = {"authorization": f"Bearer {token}"}
        answer = await relay.http.post(
            "/github/callback", json={**body, "delivery_id": "any"}, headers=headers
        )
        assert answer.json()["sandbox"]
