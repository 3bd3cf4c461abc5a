"""Values of secrets that are kept elsewhere: in a file, or by reference in AWS.

`<NAME>_FILE` names a file, `aws-sm://NAME#field` (Secrets Manager) or `aws-ssm://PATH` (parameter store). Errors name the
reference and never the value.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.client import BaseClient

SECRETS_MANAGER = "aws-sm://"
PARAMETER_STORE = "aws-ssm://"
_MAX_SECRET_BYTES = 64 * 1024
_SHOWN = 200
_ATTEMPTS = 3
_MISSING = frozenset({"ResourceNotFoundException", "ParameterNotFound", "ParameterVersionNotFound"})
_FORBIDDEN = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedException"})


class SecretUnreadable(ValueError):
    """A secret that cannot be read; the text follows the name of the setting."""


@dataclass(slots=True)
class SecretFiles:
    """Reads the secrets of one loading of the settings, with one client for each service and region."""

    used: bool = False
    """Whether any secret was read: only then can reading again bring another value."""
    _clients: dict[tuple[str, str | None], "BaseClient"] = field(default_factory=dict)
    _answers: dict[tuple[str, str], str] = field(default_factory=dict)

    def read(self, place: str, folder: Path) -> str:
        self.used = True
        if place.startswith(SECRETS_MANAGER):
            return self._from_secrets_manager(place.removeprefix(SECRETS_MANAGER), _quote(place))
        if place.startswith(PARAMETER_STORE):
            return self._from_parameter_store(place.removeprefix(PARAMETER_STORE), _quote(place))
        return _from_file(folder / place)

    def _from_secrets_manager(self, rest: str, shown: str) -> str:
        name, mark, key = rest.partition("#")
        if not name or (mark and not key):
            raise SecretUnreadable(f"is {shown}; write aws-sm://NAME, or aws-sm://NAME#field for one field.")
        text = self._fetch("secretsmanager", name, shown)
        return text if not mark else _find_field(text, key, shown)

    def _from_parameter_store(self, path: str, shown: str) -> str:
        if not path.strip("/") or "#" in path:
            raise SecretUnreadable(
                f"is {shown}; write aws-ssm://PATH, such as aws-ssm:///crcr/webhook-secret."
            )
        is_arn = path.startswith("arn:")
        # The parameter store requires the slash in front of a path, and refuses it nowhere.
        name = path if is_arn or path.startswith("/") or "/" not in path else f"/{path}"
        return self._fetch("ssm", name, shown)

    def _fetch(self, service: str, name: str, shown: str) -> str:
        if (service, name) not in self._answers:
            self._answers[service, name] = self._call(service, name, shown)
        return self._answers[service, name]

    def _call(self, service: str, name: str, shown: str) -> str:
        try:
            from botocore.exceptions import BotoCoreError, ClientError, NoRegionError  # noqa: PLC0415
        except ImportError:
            raise SecretUnreadable(
                f"is {shown}, which needs the package botocore: install crcr[aws], or requirements/aws.txt."
            ) from None
        from crcr.aws_client import error_code  # noqa: PLC0415

        try:
            return _read_answer(service, self._request(service, name), shown)
        except NoRegionError:
            raise SecretUnreadable(f"is {shown}, but no region is known; set AWS_REGION.") from None
        except (BotoCoreError, ClientError) as fault:
            raise SecretUnreadable(f"is {shown}, {_reason(error_code(fault))}.") from None

    def _request(self, service: str, name: str) -> Any:
        client: Any = self._client(service, name)
        if service == "ssm":
            return client.get_parameter(Name=name, WithDecryption=True)
        return client.get_secret_value(SecretId=name)

    def _client(self, service: str, name: str) -> "BaseClient":
        from crcr.aws_client import open_client  # noqa: PLC0415  botocore is an optional extra

        region = name.split(":")[3] if name.startswith("arn:") and name.count(":") >= 5 else None
        if (service, region) not in self._clients:
            self._clients[service, region] = open_client(service, region=region, attempts=_ATTEMPTS)
        return self._clients[service, region]


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SECRET_BYTES).decode().strip("\r\n")
    except OSError as error:
        raise SecretUnreadable(f"names a file that cannot be read: {error.strerror}.") from None
    except ValueError:  # not UTF-8, or a path that cannot be one
        raise SecretUnreadable("names a file that does not hold text.") from None


def _read_answer(service: str, answer: Any, shown: str) -> str:
    text = answer["Parameter"]["Value"] if service == "ssm" else answer.get("SecretString")
    if text is None:
        try:
            text = answer.get("SecretBinary", b"").decode()
        except ValueError:
            raise SecretUnreadable(f"is {shown}, which does not hold text.") from None
    return str(text).strip("\r\n")


def _find_field(text: str, key: str, shown: str) -> str:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise SecretUnreadable(f"is {shown}, but that secret is not a JSON object with fields.")
    value = fields.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise SecretUnreadable(f"is {shown}, but that secret has no such field with a text.")
    return value.strip("\r\n")


def _reason(code: str) -> str:
    if code in _MISSING:
        return "which does not exist"
    if code in _FORBIDDEN:
        return "which this role may not read"
    return f"which cannot be read: {code}"


def _quote(place: str) -> str:
    return ascii(place[:_SHOWN])[1:-1]
