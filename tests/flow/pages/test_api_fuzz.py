"""The API against its own OpenAPI description: every request gets a response as described, and none fails with 5xx.

The whole relay with a history is served over HTTP; requests are generated from `/api/openapi.json`, the same ones on
every run. They often name existing values (of another list or backend), so that successful responses are checked too.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.downstream.callbacks import bearer
from support.github.gated_upstream import GATING, INFORMING
from support.running_relay import UPSTREAM
from support.served_relay import ADMIN, HIDDEN_BACKEND, serve_relay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
LISTS = (
    "jobs",
    "deliveries",
    "effects/list",
    "audit",
    "waivers",
    "failing",
    "bisections",
    f"backends/{GATING}",
)
SampleValues = dict[str, list[Any]]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_relay(tmp_path_factory.mktemp("served")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def sample_values(address: str) -> SampleValues:
    """Existing values by parameter name; each cursor belongs to one list and is tried on all."""
    with httpx.Client(base_url=f"{address}/api/v1/", headers=bearer(ADMIN)) as client:
        jobs = client.get("jobs", params={"limit": 200}).json()["jobs"]
        deliveries = client.get("deliveries").json()["deliveries"]
        cursors = [client.get(path, params={"limit": 1}).json()["next"] for path in LISTS]
    owner, _, name = GATING.partition("/")
    return {
        "org": [owner],
        "repo": [name, INFORMING.partition("/")[2], HIDDEN_BACKEND.partition("/")[2]],
        "token": [job["token"] for job in jobs],
        "guid": [delivery["guid"] for delivery in deliveries],
        "number": [1, 2, 3, 4],
        "sha": [delivery["head_sha"] for delivery in deliveries if delivery["head_sha"]],
        "cursor": [cursor for cursor in cursors if cursor],
        "upstream": [UPSTREAM],
        "q": ["fuse", "1", "org/gating", "build"],
        "repository": ["new/comer"],
        "fingerprint": ["0123456789abcdef"],
        "id": [1],
    }


def operations(address: str) -> Iterator[Any]:
    schema = schemathesis.openapi.from_url(f"{address}/api/openapi.json")
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        yield result.ok()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_response_conforms_to_the_openapi_description(
    mode: GenerationMode, address: str, sample_values: SampleValues
) -> None:
    broken: dict[str, Exception] = {}
    with requests.Session() as session:
        for operation in operations(address):
            if mode is GenerationMode.NEGATIVE and not _takes_input(operation):
                continue
            try:
                _check_operation(operation, mode, sample_values, address, session)
            except Exception as failure:  # noqa: BLE001  reported together below
                broken[operation.label] = failure
    assert not broken, "\n\n".join(f"{label}:\n{failure}" for label, failure in broken.items())


def _takes_input(operation: Any) -> bool:
    """An operation without parameters and body has no invalid request."""
    return any(operation.iter_parameters()) or bool(operation.body)


def _check_operation(
    operation: Any, mode: GenerationMode, sample_values: SampleValues, address: str, session: requests.Session
) -> None:
    @settings(
        max_examples=8 if mode is GenerationMode.POSITIVE else 4,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode), data=st.data())
    def send_case(case: Any, data: st.DataObject) -> None:
        _use_sample_values(case, sample_values, data)
        headers = bearer(ADMIN) if data.draw(st.booleans()) else {}
        response = case.call(base_url=address, session=session, headers=headers)
        case.validate_response(response, checks=CHECKS)
        if response.status_code == 404 and response.headers["content-type"][0].startswith("text/plain"):
            assert not response.content  # `format=text` of latest-green
        elif response.status_code >= 400:
            assert response.json()["error"]["code"]
        # An invented cursor and an unlisted backend are errors of the caller.
        checkable = case.method == "GET" and not {"backends", "cursor"} & set(case.query or {})
        if mode is GenerationMode.POSITIVE and checkable:
            assert response.status_code in {200, 404}, response.text

    send_case()


def _use_sample_values(case: Any, sample_values: SampleValues, data: st.DataObject) -> None:
    for given_ in (case.path_parameters, case.query):
        for name in [name for name in given_ or {} if name in sample_values]:
            if data.draw(st.integers(0, 3)):
                given_[name] = data.draw(st.sampled_from(sample_values[name]))


WORST = ("%FF", "a%00b", "A" * 20_000)
ODD = (
    *("%C0%AF", "%ED%A0%80", "%F8%88%80%80%80", "%00", "%0D%0A", "%1b[0m", "%7F", "%F0%9F%98%80" * 2_000),
    *("W10", "bnVsbA", "WyJcdWQ4MDAiXQ", "WzFlOTldCg", "-1", "1e400", "NaN"),
)


def test_undecodable_or_oversized_parameters_never_cause_a_server_error(
    address: str, sample_values: SampleValues
) -> None:
    """Invalid UTF-8 and oversized text as every parameter of every GET path; odd values in turn."""
    odd = cycle(ODD)
    with httpx.Client(base_url=address) as client:
        for operation in (
            operation for operation in operations(address) if operation.method.upper() == "GET"
        ):
            valid_values = {name: str(values[0]) for name, values in sample_values.items()}
            paths = [parameter.name for parameter in operation.path_parameters]
            for name in (*paths, *(parameter.name for parameter in operation.query), "unheard_of"):
                for bad in (*WORST, next(odd), next(odd)):
                    path = operation.path.format(**{**valid_values, **({name: bad} if name in paths else {})})
                    url = path if name in paths else f"{path}?{name}={bad}"
                    answer = client.get(url)
                    assert answer.status_code < 500, url[:200]
                    if bad in WORST and name != "unheard_of":
                        assert answer.status_code in {400, 404}, url[:200]
                        assert answer.json()["error"]["code"] in {"bad_request", "not_found"}
