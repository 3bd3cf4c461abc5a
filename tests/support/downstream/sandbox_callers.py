"""Reports of repositories that are on no allowlist, which go to the sandbox."""

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
    """Report the start of a job of a new repository, and with a conclusion its end."""
    relay.github.create_repository(name, installed=False, private=private, workflows=[WORKFLOW])
    run = relay.github.start_run(name, event="repository_dispatch", event_type="pull_request")
    ended: dict[str, Any] = {"conclusion": conclusion, "failed_tests": FAILED, "test_results": {"failed": 1}}
    for status in ("in_progress", "completed") if conclusion else ("in_progress",):
        fields = {**(ended if status == "completed" else {}), **workflow}
        body = relay.github.ci.report_body(run, run.job("build"), status, **fields)
        token = relay.github.oidc_token(run, "build", audience=AUDIENCE)
        headers = {"authorization": f"Bearer {token}"}
        answer = await relay.http.post(
            "/github/callback", json={**body, "delivery_id": "any"}, headers=headers
        )
        assert answer.json()["sandbox"]
