"""Starts a build of another CI for a dispatch: what the bridge workflow runs. Made by `crcr init`; safe to edit.

Standard library only, Python 3.8 or newer. All values come from the environment. Each must have its narrow form, so
that no untrusted text reaches the other CI; titles, branches and labels are not passed on at all. Only a
dispatch that names a relay which the workflow pins (CRCR_RELAYS) starts a build.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

FORMS = {
    "CRCR_DELIVERY_ID": r"[0-9A-Za-z][0-9A-Za-z-]{0,99}",
    "CRCR_EVENT_TYPE": r"pull_request|push|merge_group|crcr_pair|crcr_test|nightly",
    "CRCR_CALLBACK_URL": r"https?://[A-Za-z0-9.:\[\]-]+/[A-Za-z0-9._/-]*",
    "CRCR_AUDIENCE": r"[A-Za-z0-9][A-Za-z0-9._~:/@+-]{0,254}",
    "CRCR_UPSTREAM": r"[A-Za-z0-9][A-Za-z0-9_-]{0,38}/[A-Za-z0-9._-]{1,100}",
    "CRCR_HEAD_SHA": r"[0-9a-f]{40}",
    "CRCR_NUMBER": r"[0-9]{1,18}",
    "CRCR_ACTION": r"[a-z_]{1,50}",
    "CRCR_PAIR_NUMBER": r"[0-9]{1,18}",
    "CRCR_PAIR_SHA": r"[0-9a-f]{40}",
    "CRCR_PAIR_CLONE_URL": r"https?://[A-Za-z0-9.:-]+/[A-Za-z0-9._/-]+",
}
PAIR = {"CRCR_PAIR_NUMBER", "CRCR_PAIR_SHA", "CRCR_PAIR_CLONE_URL"}
OPTIONAL = {"CRCR_HEAD_SHA", "CRCR_NUMBER", "CRCR_ACTION"} | PAIR
ENDED = {"closed", "destroyed"}
NO_COMMIT = "0" * 40
ATTEMPTS, TIMEOUT_S, PAUSE_S = 4, 30, 2.0
AGAIN = {429, 500, 502, 503, 504}


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect must not carry the token to another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def stop(message: str) -> NoReturn:
    print(f"::error title=CRCR bridge::{message}")
    sys.exit(1)


def read_dispatch(env: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the dispatch after a check of their form; the build gets nothing else."""
    values = {}
    for name, form in FORMS.items():
        value = env.get(name, "")
        if not value and name in OPTIONAL:
            continue
        if not re.fullmatch(form, value):
            stop(f"{name} of the dispatch has an invalid value; nothing was started")
        values[name] = value
    is_pair = values["CRCR_EVENT_TYPE"] == "crcr_pair"
    if any((name in values) is not is_pair for name in PAIR):
        stop("a pair, and nothing else, has the pull request of this repository that it is tested with")
    return values


def check_relay(values: Mapping[str, str], pinned: str) -> None:
    """Stop unless the dispatch names a pinned relay: everyone who may write to the repository can send a dispatch."""
    lines = [line.split(None, 1) for line in pinned.splitlines() if line.strip()]
    pins = [(callback_address(fields[0]), fields[1].strip()) for fields in lines if len(fields) == 2]
    if not pins:
        stop(
            "no relay is pinned, so nothing was started. Add CRCR_RELAYS to `env` of this step: the relay's callback"
            " address, a space, its audience. Its page /crcr/onboarding and `crcr init` write them; do not take them"
            " from a dispatch"
        )
    relay = (callback_address(values["CRCR_CALLBACK_URL"]), values["CRCR_AUDIENCE"])
    if relay not in pins:
        stop(
            f"the dispatch names the relay {' with the audience '.join(relay)}, which CRCR_RELAYS of this workflow"
            f" does not pin; nothing was started. Pinned: {'; '.join(map(' with the audience '.join, pins))}"
        )


def callback_address(address: str) -> str:
    """Normalize an address as the reporter does: remove a slash at its end, and complete a bare one."""
    trimmed = re.sub(r"/\Z", "", address)
    return trimmed + "/github/callback" if re.fullmatch(r"https?://[^/?#]+", trimmed) else trimmed


def build_variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values for the reporter, and those by the names that the build knows."""
    return {
        **values,
        "UPSTREAM_REPO": values["CRCR_UPSTREAM"],
        "UPSTREAM_SHA": values.get("CRCR_HEAD_SHA", ""),
        "UPSTREAM_PR": values.get("CRCR_NUMBER", ""),
        **(
            {
                "DEPENDS_ON_SHA": values["CRCR_PAIR_SHA"],
                "DEPENDS_ON_CLONE_URL": values["CRCR_PAIR_CLONE_URL"],
            }
            if "CRCR_PAIR_SHA" in values
            else {}
        ),
    }


class Api:
    """The other CI's API. Network and server errors are retried; a refusal ends the bridge with its reason."""

    def __init__(self, env: Mapping[str, str], sleep: Callable[[float], None]) -> None:
        self.sleep = sleep
        self.base = env.get("CRCR_BRIDGE_API", "").rstrip("/")
        self.token = env.get("CRCR_BRIDGE_TOKEN", "")
        if not self.token:
            stop("the secret with the other CI's token is empty; see the comment in the workflow")
        self.opener = urllib.request.build_opener(NoRedirects())

    def call(self, method: str, path: str, headers: Mapping[str, str], body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(1, ATTEMPTS + 1):
            request = urllib.request.Request(self.base + path, data=data, method=method)
            for name, value in {
                "Content-Type": "application/json",
                "Accept": "application/json",
                **headers,
            }.items():
                request.add_header(name, value)
            try:
                with self.opener.open(request, timeout=TIMEOUT_S) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as refused:
                fault = f"{method} {path.partition('?')[0]} was answered with {refused.code}"
                if refused.code not in AGAIN:
                    stop(fault)
            except (OSError, ValueError) as broken:
                fault = f"{method} {path.partition('?')[0]} failed: {type(broken).__name__}"
            if attempt < ATTEMPTS:
                self.sleep(PAUSE_S * 2 ** (attempt - 1))
        stop(fault)


class Buildkite:
    def __init__(self, api: Api, env: Mapping[str, str]) -> None:
        self.api, self.branch = api, env["CRCR_BRIDGE_BRANCH"]
        organization, pipeline = env["CRCR_BRIDGE_ORGANIZATION"], env["CRCR_BRIDGE_PIPELINE"]
        self.builds = f"/v2/organizations/{organization}/pipelines/{pipeline}/builds"
        self.headers = {"Authorization": f"Bearer {api.token}"}

    def start(self, values: Mapping[str, str]) -> None:
        body = {
            "commit": "HEAD",
            "branch": self.branch,
            "message": f"{values['CRCR_UPSTREAM']}: {values['CRCR_EVENT_TYPE']} {values['CRCR_DELIVERY_ID']}",
            "env": build_variables(values),
            "meta_data": {"crcr_change": change_key(values)},
        }
        self.api.call("POST", self.builds, self.headers, body)

    def cancel(self, values: Mapping[str, str]) -> None:
        query = [("meta_data[crcr_change]", change_key(values)), ("per_page", "100")]
        query += [("state[]", state) for state in ("scheduled", "running", "failing")]
        builds: list[dict[str, Any]] = self.api.call(
            "GET", f"{self.builds}?{urllib.parse.urlencode(query)}", self.headers
        )
        for build in builds:
            self.api.call("PUT", f"{self.builds}/{int(build['number'])}/cancel", self.headers)


class Gitlab:
    def __init__(self, api: Api, env: Mapping[str, str]) -> None:
        self.api, self.branch = api, env["CRCR_BRIDGE_BRANCH"]
        self.trigger = f"/api/v4/projects/{env['CRCR_BRIDGE_PROJECT']}/trigger/pipeline"

    def start(self, values: Mapping[str, str]) -> None:
        body = {"token": self.api.token, "ref": self.branch, "variables": build_variables(values)}
        self.api.call("POST", self.trigger, {}, body)

    def cancel(self, values: Mapping[str, str]) -> None:
        print(
            f"the running pipelines of {change_key(values)} continue: a trigger token can start pipelines, not cancel them"
        )


class Circleci:
    def __init__(self, api: Api, env: Mapping[str, str]) -> None:
        self.api, self.branch = api, env["CRCR_BRIDGE_BRANCH"]
        self.pipeline = f"/api/v2/project/{env['CRCR_BRIDGE_PROJECT']}/pipeline"
        self.definition = env.get("CRCR_BRIDGE_DEFINITION", "")

    def start(self, values: Mapping[str, str]) -> None:
        parameters = {name.lower(): value for name, value in values.items()}
        headers, at = {"Circle-Token": self.api.token}, {"branch": self.branch}
        if self.definition:
            body = {"definition_id": self.definition, "config": at, "checkout": at, "parameters": parameters}
            self.api.call("POST", f"{self.pipeline}/run", headers, body)
        else:
            self.api.call("POST", self.pipeline, headers, {**at, "parameters": parameters})

    def cancel(self, values: Mapping[str, str]) -> None:
        print(
            f"the running pipelines of {change_key(values)} continue: CircleCI does not find pipelines by their parameters"
        )


def change_key(values: Mapping[str, str]) -> str:
    """Return the key that builds of the same change share; only the newest of them matters."""
    pair = f" with #{values['CRCR_PAIR_NUMBER']}" if "CRCR_PAIR_NUMBER" in values else ""
    return f"{values['CRCR_UPSTREAM']}#{values.get('CRCR_NUMBER') or values['CRCR_DELIVERY_ID']}{pair}"


def main(
    env: Mapping[str, str],
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> None:
    values = read_dispatch(env)
    if values["CRCR_EVENT_TYPE"] == "nightly":
        # A nightly run is reported once, by a step that does not know when the build started; dashboards need that time.
        values["CRCR_STARTED_AT"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now()))
    check_relay(values, env.get("CRCR_RELAYS", ""))
    kinds: dict[str, type[Buildkite | Gitlab | Circleci]]
    kinds = {"buildkite": Buildkite, "gitlab": Gitlab, "circleci": Circleci}
    ci = kinds[env["CRCR_BRIDGE_TO"]](Api(env, sleep), env)
    ended = values.get("CRCR_ACTION") in ENDED or values.get("CRCR_HEAD_SHA") == NO_COMMIT
    if "CRCR_NUMBER" in values:
        ci.cancel(values)
    if ended:
        print("the change is closed or gone: nothing to start")
    else:
        ci.start(values)
        print(f"a build was started for delivery {values['CRCR_DELIVERY_ID']}")


if __name__ == "__main__":
    main(os.environ)
