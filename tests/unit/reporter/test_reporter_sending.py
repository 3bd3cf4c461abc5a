"""How the reporter sends: retries and their limits, tokens, and the output for each response."""

from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any

import pytest

from crcr.app import STATUS
from support.downstream.reporter import (
    ANYWHERE,
    GITHUB,
    NO_ANSWER,
    RECORDED,
    TOKEN,
    ScriptedNetwork,
    http_answer,
    refusal,
    reporter,
    run_reporter,
)

START = ("--strict", "--status", "in_progress")
END = ("--strict", "--status", "completed", "--conclusion", "success")
BUSY = refusal(503, "store_unavailable")


# ---- retries


@pytest.mark.parametrize("status", [0, 408, 425, 429, 500, 502, 503, 504])
def test_temporary_errors_are_retried(status: int) -> None:
    network = ScriptedNetwork([http_answer(status) if status else NO_ANSWER, RECORDED])
    assert run_reporter(*START, network=network)[0] == 0
    assert len(network.sent) == 2


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 403, 404, 405, 409, 413, 418, 422])
def test_permanent_errors_are_not_retried(status: int) -> None:
    network = ScriptedNetwork([http_answer(status), RECORDED])
    code, output = run_reporter(*START, network=network)
    assert (code, len(network.sent), network.pauses) == (1, 1, [])
    assert "not recorded" in output


def test_pauses_grow_exponentially_with_jitter() -> None:
    for chance, pauses in ((1.0, [2, 4, 8, 16, 30, 30]), (0.5, [1, 2, 4, 8, 15, 15]), (0.0, [0.1] * 6)):
        network = ScriptedNetwork([*[NO_ANSWER] * 6, RECORDED], chance=chance)
        assert run_reporter(*START, network=network)[0] == 0
        assert network.pauses == pauses


def test_retries_stay_within_the_time_budget_and_the_last_is_at_its_end() -> None:
    network = ScriptedNetwork([NO_ANSWER], chance=0.9)
    code, output = run_reporter(*START, "--max-time", "100", network=network)
    assert code == 1
    assert sum(network.pauses) == pytest.approx(100)
    assert len(network.sent) == len(network.pauses) + 1
    assert "not recorded: the relay cannot be reached" in output


@pytest.mark.parametrize("text", ["5m", "-1", "nan", "inf"])
def test_an_invalid_time_budget_becomes_the_default(text: str) -> None:
    network = ScriptedNetwork([NO_ANSWER])
    _, output = run_reporter(*START, f"--max-time={text}", network=network)
    assert sum(network.pauses) == pytest.approx(300)
    assert "is not a number of seconds" in output


def test_retry_after_is_the_minimum_pause_with_jitter_on_top() -> None:
    network = ScriptedNetwork([http_answer(429, retry_after="17"), RECORDED], chance=0.25)
    assert run_reporter(*START, network=network)[0] == 0
    assert network.pauses == [17.5]


def test_retry_after_as_a_date_is_relative_to_the_servers_clock() -> None:
    server_now = 5_000_000.0
    late = http_answer(
        503, retry_after=formatdate(server_now + 40, usegmt=True), date=formatdate(server_now, usegmt=True)
    )
    network = ScriptedNetwork([late, RECORDED], chance=0.0)
    run_reporter(*START, network=network)
    assert network.pauses == [40]
    network = ScriptedNetwork(
        [http_answer(503, retry_after=formatdate(1_000_020, usegmt=True)), RECORDED], chance=0.0
    )
    run_reporter(*START, network=network)
    assert network.pauses == [20]


@pytest.mark.parametrize("text", ["soon", "-5", "1e9", "", "Mon, 99 Foo 2026", "٣", "9" * 30])
def test_an_invalid_retry_after_is_ignored(text: str) -> None:
    network = ScriptedNetwork([http_answer(503, retry_after=text), RECORDED], chance=0.0)
    assert run_reporter(*START, network=network)[0] == 0
    assert network.pauses == [0.1]


def test_retry_after_is_capped_at_the_time_budget() -> None:
    for words in (START, END):
        network = ScriptedNetwork([http_answer(429, retry_after="86400"), RECORDED])
        assert run_reporter(*words, network=network)[0] == 0
        assert network.pauses == [300]


# ---- tokens


def test_the_github_token_is_requested_for_the_pinned_audience() -> None:
    network = ScriptedNetwork()
    run_reporter(*START, "--relays", "https://relay.example.org a b&audience=c#d", network=network)
    [request] = network.asked
    assert request.full_url == "https://token.example.org/request?v=1&audience=a%20b%26audience%3Dc%23d"
    assert request.get_header("Authorization") == "Bearer request-secret"
    assert network.bearers == ["Bearer a.b.token1"]


def test_a_temporary_error_of_the_token_service_is_retried() -> None:
    network = ScriptedNetwork(token_answers=[http_answer(500), NO_ANSWER])
    assert run_reporter(*START, network=network)[0] == 0
    assert (len(network.asked), len(network.sent)) == (3, 1)


def test_a_token_is_renewed_after_four_minutes() -> None:
    network = ScriptedNetwork([BUSY, http_answer(503, retry_after="250"), BUSY, RECORDED], chance=0.0)
    assert run_reporter(*END, network=network)[0] == 0
    assert network.bearers == [f"Bearer a.b.token{n}" for n in (1, 1, 2, 2)]


def test_an_old_token_is_used_when_none_can_be_fetched() -> None:
    network = ScriptedNetwork([http_answer(503, retry_after="250"), RECORDED], chance=0.0)
    network.token_answers = [http_answer(200, {"value": TOKEN}), http_answer(403)]
    code, output = run_reporter(*END, network=network)
    assert (code, network.bearers) == (0, [f"Bearer {TOKEN}"] * 2)
    assert "the old one is used" in output


@pytest.mark.parametrize("detail", ["the token expired 5 s ago (`exp`)", "in words of another relay", None])
def test_a_token_refused_by_the_relay_is_renewed_once(detail: str | None) -> None:
    refused = refusal(401, "not_authentic", **({"detail": detail} if detail else {}))
    network = ScriptedNetwork([refused, RECORDED])
    assert run_reporter(*START, network=network)[0] == 0
    assert network.bearers == ["Bearer a.b.token1", "Bearer a.b.token2"]
    network = ScriptedNetwork([refused])
    assert run_reporter(*START, network=network)[0] == 1
    assert len(network.sent) == 2


def test_a_refused_token_is_renewed_only_once_over_all_requests() -> None:
    refused, no_start = refusal(401, "not_authentic"), refusal(409, "no_in_progress")
    network = ScriptedNetwork([refused, no_start, refused])
    assert run_reporter(*END, network=network)[0] == 1
    assert network.bearers == [f"Bearer a.b.token{n}" for n in (1, 2, 2)]


def test_a_refused_static_token_is_not_sent_again() -> None:
    network = ScriptedNetwork([refusal(401, "not_authentic")])
    assert run_reporter(*START, env=ANYWHERE, network=network)[0] == 1
    assert len(network.sent) == 1


def test_without_a_new_token_the_refusal_is_printed() -> None:
    network = ScriptedNetwork([refusal(401, "not_authentic", detail="unknown key")])
    network.token_answers = [http_answer(200, {"value": TOKEN}), http_answer(403)]
    code, output = run_reporter(*START, network=network)
    assert (code, len(network.sent)) == (1, 1)
    assert "no new token" in output
    assert "unknown key" in output


def test_another_401_code_does_not_renew_the_token() -> None:
    network = ScriptedNetwork([refusal(401, "something_else")])
    assert run_reporter(*START, network=network)[0] == 1
    assert len(network.sent) == 1


def test_an_old_buildkite_agent_is_called_again_without_claims() -> None:
    def old_agent(words: Sequence[str]) -> str:
        if "--claim" in words:
            raise reporter.Problem("flag provided but not defined")
        return TOKEN

    env = {**ANYWHERE, "CRCR_ID_TOKEN": "", "BUILDKITE": "true"}
    network = ScriptedNetwork(programs=old_agent)
    assert run_reporter(*START, env=env, network=network)[0] == 0
    words = ["buildkite-agent", "oidc", "request-token", "--audience", "relay.example.org"]
    assert network.ran == [[*words, "--claim", "organization_id,pipeline_id"], words]


def test_the_circleci_token_is_requested_with_the_audience_as_json() -> None:
    network = ScriptedNetwork()
    pinned = 'https://relay.example.org it\'s "ours"'
    env = {**ANYWHERE, "CRCR_ID_TOKEN": "", "CIRCLECI": "true", "CRCR_RELAYS": pinned}
    assert run_reporter(*START, env=env, network=network)[0] == 0
    assert network.ran == [["circleci", "run", "oidc", "get", "--claims", '{"aud": "it\'s \\"ours\\""}']]


@pytest.mark.parametrize(
    "more",
    [
        {"GITLAB_CI": "true"},
        {"GITLAB_CI": "true", "CI_JOB_TOKEN": "t", "CI_PIPELINE_ID": "9"},
        {"BUILDKITE": "true", "BUILDKITE_AGENT_ACCESS_TOKEN": "t", "CRCR_ID_TOKEN": ""},
        {"CIRCLECI": "true", "CIRCLE_OIDC_TOKEN": "t", "CRCR_ID_TOKEN": ""},
        {},
    ],
)
def test_a_token_of_another_ci_is_never_printed(more: dict[str, str]) -> None:
    env = {**ANYWHERE, "GITHUB_ACTIONS": "true", **more}
    network = ScriptedNetwork()
    code, output = run_reporter(*START, env=env, network=network)
    assert (code, network.bearers) == (0, [f"Bearer {TOKEN}"])
    assert TOKEN not in output


def test_a_github_token_is_masked_in_the_log_before_its_use() -> None:
    network = ScriptedNetwork(token_answers=[http_answer(200, {"value": "x\n::error::y"})])
    assert "::error::y" not in run_reporter(*START, network=network)[1]
    assert run_reporter(*START)[1].splitlines()[0] == "::add-mask::a.b.token1"


def test_a_token_in_a_named_variable_overrides_the_token_of_the_ci() -> None:
    network = ScriptedNetwork()
    run_reporter(*START, "--token-env", "MINE", env={**GITHUB, "MINE": "x.y.z\n"}, network=network)
    assert (network.asked, network.bearers) == ([], ["Bearer x.y.z"])


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c\r\nX-Evil: 1", "a b.c.d", "ghs_abc", "a..c"])
def test_a_malformed_token_is_not_sent(token: str) -> None:
    network = ScriptedNetwork()
    code, output = run_reporter(*START, "--token-env", "MINE", env={**GITHUB, "MINE": token}, network=network)
    assert (code, network.sent) == (1, [])
    assert not token or token not in output


# ---- relay URLs


@pytest.mark.parametrize(
    "address",
    [
        "http://relay.example.org/github/callback",
        "http://127.0.0.1.example.org/",
        "http://10.0.0.1/github/callback",
        "ftp://relay.example.org/",
        "file:///etc/passwd",
        "https://user:pass@relay.example.org/",
        "https://relay.example.org:port/",
        "https:///github/callback",
        "https://r\u00e9lay.example.org/",
        "relay.example.org",
        "javascript:alert(1)",
    ],
)
def test_a_token_is_sent_only_over_https_or_to_localhost(address: str) -> None:
    network = ScriptedNetwork()
    code, output = run_reporter(*START, "--relays", f"{address} crcr", network=network)
    assert (code, network.asked, network.sent) == (1, [], [])
    assert "pins nothing" in output


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000/x", "http://localhost:1/x", "http://[::1]:1/x", "https://r.example/x"])  # fmt: skip
def test_full_callback_urls_are_used_unchanged(address: str) -> None:
    network = ScriptedNetwork()
    assert run_reporter(*START, "--relays", f"{address} crcr", network=network)[0] == 0
    assert network.sent[0].full_url == address


@pytest.mark.parametrize("address", ["https://relay.example.org", "https://relay.example.org/"])
def test_a_url_without_a_path_gets_the_callback_path(address: str) -> None:
    network = ScriptedNetwork()
    run_reporter(*START, "--relays", f"{address} crcr", network=network)
    assert network.sent[0].full_url == "https://relay.example.org/github/callback"


# ---- responses of the relay


def test_a_missing_start_is_sent_late_and_the_result_is_repeated() -> None:
    network = ScriptedNetwork([refusal(409, "no_in_progress"), RECORDED])
    code, output = run_reporter(*END, network=network)
    assert code == 0
    sent = [(body["workflow"]["status"], body["workflow"].get("late")) for body in network.bodies]
    assert sent == [("completed", None), ("in_progress", True), ("completed", None)]
    late = network.bodies[1]["workflow"]
    assert not {"conclusion", "started_at", "completed_at", "test_results"} & set(late)
    assert network.bodies[0] == network.bodies[2]
    assert "marked late" in output


def test_the_late_start_is_sent_only_once() -> None:
    network = ScriptedNetwork([refusal(409, "no_in_progress"), RECORDED, refusal(409, "no_in_progress")])
    assert run_reporter(*END, network=network)[0] == 1
    assert len(network.sent) == 3
    network = ScriptedNetwork([refusal(409, "no_in_progress"), refusal(403, "suspended")])
    assert "suspended" in run_reporter(*END, network=network)[1]
    assert len(network.sent) == 2


def test_a_report_refused_as_too_large_is_resent_without_its_failed_tests() -> None:
    network = ScriptedNetwork([http_answer(413, b"<html>nginx</html>"), RECORDED])
    code, _ = run_reporter(
        *END, "--failed-tests", '["a"]', "--test-results", '{"failed": 1}', network=network
    )
    assert code == 0
    first, second = (body["workflow"] for body in network.bodies)
    assert ("failed_tests" in first, "failed_tests" in second) == (True, False)
    assert second["test_results"] == {"failed": 1}


CALLBACK_CODES = (
    "bad_report", "not_authentic", "not_registered", "identity_changed", "not_allowlisted", "suspended", "claim_mismatch",
    "wrong_event", "wrong_ref", "unknown_delivery", "run_bound_elsewhere", "ambiguous_job", "no_in_progress", "conflicting_result",
    "too_large", "rate_limited",
)  # fmt: skip


def test_every_error_code_of_the_callback_is_explained() -> None:
    assert set(CALLBACK_CODES) <= set(reporter.MEANING)
    assert set(reporter.MEANING) <= set(STATUS)


@pytest.mark.parametrize("code", [*CALLBACK_CODES, "brand_new"])
def test_every_refusal_is_printed_with_its_meaning_detail_hint_and_request_id(code: str) -> None:
    network = ScriptedNetwork(
        [refusal(STATUS.get(code, 403), code, detail="the detail", hint="the hint", request_id="r-1")]
    )
    exit_code, output = run_reporter(*START, "--max-time", "0", network=network)
    assert exit_code == 1
    error = output.splitlines()[-1]
    assert error.startswith(f"::error title=CRCR relay::not recorded ({STATUS.get(code, 403)} {code})")
    assert "The relay says: the detail. Its hint: the hint. Request r-1." in error
    assert reporter.MEANING.get(code, reporter.REFUSED) in error


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (http_answer(200, b"<html>log in</html>"), "is not a relay"),
        (http_answer(200, b"[]"), "is not a relay"),
        (http_answer(302, location="https://evil.example.org"), "redirect (302), which is never followed"),
        (http_answer(404, b"nothing"), "there is no relay at this address"),
        (http_answer(403, b"\xff\xfe"), "refuses the report"),
        (http_answer(400, {"error": "text"}), "refuses the report"),
        (http_answer(400, {"error": {"code": ["x"], "detail": {"a": 1}}}), "refuses the report"),
        (http_answer(400, b"[" * 60_000), "refuses the report"),
        (reporter.HttpAnswer(0, fault="self-signed", final=True), "certificate is not trusted (self-signed)"),
    ],
)
def test_responses_that_are_not_from_a_relay_are_distinguished(response: Any, said: str) -> None:
    network = ScriptedNetwork([response])
    code, output = run_reporter(*START, network=network)
    assert (code, len(network.sent)) == (1, 1)
    assert said in output


def test_warnings_and_hints_of_the_relay_are_printed_as_notices() -> None:
    with_warning = {
        "ok": True,
        "status": "in_progress",
        "repeat": False,
        "warning": "name the legs",
        "job_name": "build (2)",
    }
    _, output = run_reporter(*START, network=ScriptedNetwork([http_answer(200, with_warning)]))
    assert (
        "::notice title=CRCR relay::the relay says: name the legs. It is recorded as 'build (2)'." in output
    )
    _, output = run_reporter(
        *START,
        network=ScriptedNetwork(
            [http_answer(200, {"ok": True, "sandbox": True, "hint": "ask for an entry"})]
        ),
    )
    assert "sandbox: it does not count and is deleted soon. ask for an entry" in output
    ignored = {"ok": True, "status": "ignored", "reason": "L1", "hint": "ask for L2"}
    code, output = run_reporter(*START, network=ScriptedNetwork([http_answer(202, ignored)]))
    assert (code, "::notice title=CRCR relay::the relay ignores this report: L1. ask for L2" in output) == (
        0,
        True,
    )
    _, output = run_reporter(
        *START, network=ScriptedNetwork([http_answer(200, {"ok": True, "repeat": True})])
    )
    assert "it was already recorded" in output


HOSTILE = "x\n::set-output name=a::b\r\n::error::c\x1b[31m##[add-mask]y\u202e\u2028::stop-commands::z\x00%0A::warning::w"


@pytest.mark.parametrize(
    "response",
    [
        refusal(403, HOSTILE, detail=HOSTILE, hint=HOSTILE, request_id=HOSTILE),
        refusal(503, HOSTILE, detail=HOSTILE),
        http_answer(202, {"ok": True, "status": "ignored", "reason": HOSTILE, "hint": HOSTILE}),
        http_answer(
            200, {"ok": True, "warning": HOSTILE, "job_name": HOSTILE, "sandbox": HOSTILE, "hint": HOSTILE}
        ),
        reporter.HttpAnswer(0, fault=reporter.clean_text(HOSTILE)),
    ],
)
@pytest.mark.parametrize("env", [GITHUB, ANYWHERE])
def test_text_of_the_relay_cannot_become_a_workflow_command(response: Any, env: dict[str, str]) -> None:
    _, output = run_reporter(
        *START, "--max-time", "1", "--job-name", HOSTILE, env=env, network=ScriptedNetwork([response])
    )
    ours = ("crcr: ", "::notice title=CRCR relay::", "::error title=CRCR relay::", "::add-mask::a.b.token")
    assert all(line.startswith(ours) for line in output.split("\n") if line)
    assert not [letter for letter in output if letter != "\n" and not letter.isprintable()]
    assert "##[" not in output
    # The runner undoes these escapes in an annotation, so a per cent sign must not come through bare.
    annotations = [line for line in output.splitlines() if line.startswith("::")]
    assert not [line for line in annotations if "%" in line.replace("%25", "")]


# ---- exit codes


class Broken(Exception):
    pass


def _raises(*_: object) -> Any:
    raise Broken("out of order ::error::")


MISHAPS: dict[str, Callable[[], tuple[dict[str, str], Any]]] = {
    "relay away": lambda: (GITHUB, ScriptedNetwork([NO_ANSWER])),
    "relay busy": lambda: (GITHUB, ScriptedNetwork([http_answer(429, retry_after="60")])),
    "relay broken": lambda: (GITHUB, ScriptedNetwork([http_answer(500)])),
    "refused": lambda: (GITHUB, ScriptedNetwork([refusal(403, "not_allowlisted")])),
    "no relay": lambda: (GITHUB, ScriptedNetwork([http_answer(200, b"hello")])),
    "redirect": lambda: (GITHUB, ScriptedNetwork([http_answer(301)])),
    "no permission": lambda: ({**GITHUB, "ACTIONS_ID_TOKEN_REQUEST_URL": ""}, ScriptedNetwork()),
    "token refused": lambda: (GITHUB, ScriptedNetwork(token_answers=[http_answer(403)])),
    "token nonsense": lambda: (GITHUB, ScriptedNetwork(token_answers=[http_answer(200, b"nonsense")])),
    "token address": lambda: (
        {**GITHUB, "ACTIONS_ID_TOKEN_REQUEST_URL": "http://evil.example"},
        ScriptedNetwork(),
    ),
    "no agent": lambda: (
        {**ANYWHERE, "CRCR_ID_TOKEN": "", "BUILDKITE": "true"},
        ScriptedNetwork(programs=_raises),
    ),
    "no token": lambda: ({**ANYWHERE, "CRCR_ID_TOKEN": ""}, ScriptedNetwork()),
    "gitlab token": lambda: ({**ANYWHERE, "CRCR_ID_TOKEN": "", "GITLAB_CI": "true"}, ScriptedNetwork()),
    "token file": lambda: ({**ANYWHERE, "CRCR_TOKEN_FILE": "/no/such/file"}, ScriptedNetwork()),
    "event file": lambda: (
        {
            **GITHUB,
            "CRCR_DELIVERY_ID": "",
            "GITHUB_EVENT_PATH": "/no",
            "GITHUB_EVENT_NAME": "repository_dispatch",
        },
        ScriptedNetwork(),
    ),
    "our own fault": lambda: (GITHUB, reporter.Machine(fetch=_raises)),
    "no memory": lambda: (GITHUB, reporter.Machine(clock=lambda: 1 / 0)),
}


@pytest.mark.parametrize("mishap", MISHAPS)
def test_no_failure_fails_the_build_unless_strict(mishap: str) -> None:
    for strict, expected, level in (("false", 0, "warning"), ("true", 1, "error")):
        env, network = MISHAPS[mishap]()
        machine = network.machine() if isinstance(network, ScriptedNetwork) else network
        code, output = run_reporter(
            "--status",
            "completed",
            "--conclusion",
            "success",
            env={**env, "CRCR_STRICT": strict},
            machine=machine,
        )
        assert (mishap, code) == (mishap, expected)
        last = output.splitlines()[-1]
        assert last.startswith((f"::{level} title=CRCR relay::", f"crcr: {level}: "))
        assert "Traceback" not in output
