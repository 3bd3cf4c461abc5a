"""Reader of registrations: which pipeline of which issuer may report for which repository.

`decide.oidc.registration` defines what each kind needs; this module parses the operator's tables. A public issuer's
kind follows from its address; others name it. Registering a pipeline also makes its issuer known.
"""

import json
from collections.abc import Mapping

from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.oidc.identity import IssuerKind
from crcr.decide.oidc.registration import RULES, Registration, make_registration
from crcr.settings.setting import InvalidValue, RawValue

_BY_ADDRESS = (
    ("https://agent.buildkite.com", IssuerKind.BUILDKITE),
    ("https://gitlab.com", IssuerKind.GITLAB),
    ("https://oidc.circleci.com/org/", IssuerKind.CIRCLECI),
)
_OWN = frozenset({"issuer", "kind", "repository", "branches", "claims", "ids"})
_FORM = '[{"issuer": "https://…", "repository": "owner/name", …}]'


def registrations(raw: RawValue) -> tuple[Registration, ...]:
    tables = _json(raw.value) if isinstance(raw.value, str) else raw.value
    if not isinstance(tables, list):
        raise InvalidValue(f"must be a list such as {_FORM}.")
    settings = tuple(_registration(number, table) for number, table in enumerate(tables, start=1))
    keys = [(registration.issuer, tuple(sorted(registration.ids.items()))) for registration in settings]
    if len(set(keys)) < len(keys):
        raise InvalidValue("registers one pipeline twice; keep one of them.")
    return settings


def _json(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidValue(f"must be JSON: {error}.") from None


def _registration(number: int, table: object) -> Registration:
    if not isinstance(table, dict):
        raise InvalidValue(f"(number {number}) must be a table such as {_FORM[1:-1]}.")
    issuer, repository = table.get("issuer"), table.get("repository")
    if not isinstance(issuer, str) or not issuer.startswith(("https://", "http://")):
        raise InvalidValue(f"(number {number}) must have an issuer, as it stands in the token's `iss`.")
    if not isinstance(repository, str) or not is_repo_name(repository):
        raise InvalidValue(f"(number {number}) must have a repository, as owner/name on the allowlist.")
    kind = _kind(number, issuer, table.get("kind"))
    try:
        return make_registration(
            issuer=issuer,
            kind=kind,
            repository=RepoName(repository),
            ids=_ids(number, kind, table),
            branches=_texts(number, "branches", table.get("branches", [])),
            claims=_claims(number, table.get("claims", {})),
        )
    except ValueError as wrong:
        if isinstance(wrong, InvalidValue):
            raise
        raise InvalidValue(f"(number {number}) {wrong}.") from None


def _kind(number: int, issuer: str, value: object) -> IssuerKind:
    if value is None:
        for address, kind in _BY_ADDRESS:
            if issuer == address or (address.endswith("/") and issuer.startswith(address)):
                return kind
        raise InvalidValue(f"(number {number}) must have a kind: {', '.join(RULES)}.")
    try:
        return IssuerKind(str(value))
    except ValueError:
        raise InvalidValue(f"(number {number}): kind must be one of {', '.join(RULES)}.") from None


def _ids(number: int, kind: IssuerKind, table: Mapping[str, object]) -> dict[str, str]:
    claims = {name: value for name, value in table.items() if name not in _OWN}
    if kind is IssuerKind.GENERIC:
        if claims:
            raise InvalidValue(f"(number {number}): {', '.join(claims)} is not known; name claims under ids.")
        ids = table.get("ids")
        claims = dict(ids) if isinstance(ids, dict) else {}
    return {name: _text(number, name, value) for name, value in claims.items()}


def _claims(number: int, value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise InvalidValue(f'(number {number}): claims must be a table such as {{build_source = ["api"]}}.')
    return {str(name): _texts(number, f"claims.{name}", allowed) for name, allowed in value.items()}


def _texts(number: int, name: str, value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise InvalidValue(f"(number {number}): {name} must be a list of texts.")
    return tuple(_text(number, name, value) for value in items)


def _text(number: int, name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"(number {number}): {name} must be text.")
    return value.strip()
