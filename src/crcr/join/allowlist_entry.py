"""Text that others must add for a downstream: the upstream's allowlist entry, the operator's registration."""

import json
import re
from collections.abc import Mapping

from crcr.decide.model import Level
from crcr.join.request import CI_LOCATION_PARTS, Ci, JoinRequest, check_request

_GITLAB = "https://gitlab.com"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def allowlist_entry(request: JoinRequest) -> str:
    """Return the entry under its level, as YAML ready to paste into the upstream's allowlist."""
    _refuse_problems(request)
    name, options = request.repository, _options(request)
    text = f"{name}: {{{options}}}" if options else f"{name}"
    if request.level is Level.L3:
        return (
            f"L3:\n  {_quote_if_needed(request.device or '')}:\n    {text if options else f'{name}: {{}}'}\n"
        )
    return f"{request.level.name}:\n  - {text}\n"


def _options(request: JoinRequest) -> str:
    options = []
    if request.oncalls:
        options.append(
            f"oncalls: [{', '.join(_quote_if_needed(oncall.removeprefix('@')) for oncall in request.oncalls)}]"
        )
    if request.level is Level.L4:
        # Without it the gate cannot know when all jobs have reported.
        options.append(f"jobs: [{_quote_if_needed(request.job_name)}]")
    return ", ".join(options)


def registration(request: JoinRequest) -> str | None:
    """Return the TOML that the operator adds to the relay's settings, so that it accepts another CI's tokens."""
    _refuse_problems(request)
    match request.ci:
        case Ci.GITHUB:
            return None
        case Ci.BUILDKITE:
            own: dict[str, str | None] = {"organization_id": None, "pipeline_id": None}
            # Any step can request a token; these two run no code of a pull request. Code that uploads steps can take
            # their names, as the file says: this prevents accidents, not attacks.
            claims = {"build_source": ["api", "ui"], "step_key": ["crcr-started", "crcr-finished"]}
            return _registration(request, "https://agent.buildkite.com", own, claims)
        case Ci.GITLAB:
            url = (request.where("url") or "").rstrip("/")
            own = {"project_id": None} if url == _GITLAB else {"kind": "gitlab", "project_id": None}
            return _registration(request, url, own, {"pipeline_source": ["trigger"]})
        case Ci.CIRCLECI:
            issuer = f"https://oidc.circleci.com/org/{_location_part(request, 'organization_id')}"
            # Any job can request a token; only those with the context run no code of a pull request.
            contexts = {"oidc.circleci.com/context-ids": [_location_part(request, "context_id")]}
            return _registration(request, issuer, {"project_id": None}, contexts)


def _registration(
    request: JoinRequest, issuer: str, own: Mapping[str, str | None], claims: Mapping[str, list[str]]
) -> str:
    """Write a registration; a value that is None in `own` is taken from the request's location."""
    values = {"issuer": issuer, "repository": str(request.repository)}
    values |= {name: value or _location_part(request, name) for name, value in own.items()}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    lines.append(f"branches = [{json.dumps(request.branch)}]")
    table = ", ".join(f"{_quote_key(name)} = {json.dumps(allowed)}" for name, allowed in claims.items())
    return "\n".join(("[[oidc.registration]]", *lines, f"claims = {{{table}}}", ""))


def _location_part(request: JoinRequest, name: str) -> str:
    """Return a part of the location, or a placeholder that describes it."""
    meaning = next(part.meaning for part in CI_LOCATION_PARTS[request.ci] if part.name == name)
    return request.where(name) or f"<{meaning}>"


def _quote_key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def _quote_if_needed(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
    return text if plain else json.dumps(text, ensure_ascii=False)


def _refuse_problems(request: JoinRequest) -> None:
    if problems := check_request(request):
        raise ValueError("; ".join(problems))
