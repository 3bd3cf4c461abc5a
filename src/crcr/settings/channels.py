"""Settings of channels: the `[[channel]]` tables, which say where notices are sent.

Addresses are secrets: whoever has the address of a Slack webhook can write there. Each is also read from a file
(`url_file`), and no message quotes one.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import time
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BaseModel, ConfigDict, SecretStr

from crcr.decide.allowlist.check import CHANNEL_NAME
from crcr.decide.notices.notice import ChannelKind, ChannelRules, QuietHours
from crcr.settings.readers import single_values
from crcr.settings.readers.service_urls import ServiceUrl, service_url
from crcr.settings.secret_files import SecretUnreadable
from crcr.settings.setting import (
    FILE_SUFFIX,
    FROZEN,
    InvalidValue,
    RawValue,
    Setting,
    settings_of,
    suggest_name,
)

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,10}")
_MOST_CHANNELS = 100


def _name(raw: RawValue) -> str:
    value = single_values.text(raw)
    if not CHANNEL_NAME.fullmatch(value):
        raise InvalidValue("must have 1 to 40 letters, digits, dashes and underscores.")
    return value


def _kind(raw: RawValue) -> ChannelKind:
    return ChannelKind(single_values.one_of(*ChannelKind)(raw))


def _url(raw: RawValue) -> SecretStr:
    """An address whose path or query is a secret; whether it points outside is checked when it is used."""
    value = single_values.text(raw)
    parts = single_values.split_url(value)
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname or not value.isascii():
        raise InvalidValue("must be an https:// address.")
    if parts.username is not None or parts.fragment:
        raise InvalidValue("must be an address without user, password and #.")
    return SecretStr(value)


def _mail(raw: RawValue) -> str:
    value = single_values.text(raw)
    if not _MAIL.fullmatch(value):
        raise InvalidValue("must be an e-mail address.")
    return value


def _mails(raw: RawValue) -> tuple[str, ...]:
    values = single_values.texts(raw)
    if len(values) > 50 or not all(_MAIL.fullmatch(value) for value in values):
        raise InvalidValue("must be up to 50 e-mail addresses.")
    return values


def _time_of_day(text: str) -> time:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(f"must have times such as 07:30, not {single_values.quote(text)}.")
    return time(int(match[1]), int(match[2]))


def _quiet_hours(raw: RawValue) -> QuietHours:
    start, dash, end = single_values.text(raw).partition("-")
    if not dash or _time_of_day(start) == _time_of_day(end):
        raise InvalidValue("must be two different times such as 22:00-07:00.")
    return QuietHours(_time_of_day(start), _time_of_day(end))


def _digest(raw: RawValue) -> time:
    return _time_of_day(single_values.text(raw))


def _zone(raw: RawValue) -> ZoneInfo:
    name = single_values.text(raw)
    if name not in available_timezones() | {"UTC"}:
        raise InvalidValue(f"must be a time zone such as Europe/Berlin, not {single_values.quote(name)}.")
    return ZoneInfo(name)


def _hosts(raw: RawValue) -> tuple[str, ...]:
    return tuple(host.lower() for host in single_values.texts(raw))


def _no_path(parts: object) -> None:
    if getattr(parts, "path", "").strip("/"):
        raise InvalidValue("must end with the server's port.")


class ChannelSetting(BaseModel):
    """One place where notices are sent to."""

    model_config = ConfigDict(**FROZEN, arbitrary_types_allowed=True)

    name: Annotated[
        str, Setting("", "name", _name, "the name by which upstreams and entries choose it", required=True)
    ]
    kind: Annotated[
        ChannelKind,
        Setting(
            "",
            "kind",
            _kind,
            "`issue`: an issue in the backend's repository; `comment`: one comment on the upstream's pull request; `slack`: "
            "a Slack-compatible webhook; `webhook`: signed JSON; `email`",
            required=True,
        ),
    ]
    url: Annotated[
        SecretStr | None,
        Setting("", "url", _url, "`slack`, `webhook`: its https address, which must be public", secret=True),
    ] = None
    secret: Annotated[
        SecretStr | None,
        Setting("", "secret", single_values.secret, "`webhook`: the key of the HMAC signature", secret=True),
    ] = None
    smtp: Annotated[
        ServiceUrl | None,
        Setting(
            "",
            "smtp",
            service_url("smtp", "smtps", checked=_no_path),
            "`email`: the server, `smtps://user:password@host:465` or `smtp://…:587` with STARTTLS (without TLS on this "
            "machine only)",
            secret=True,
        ),
    ] = None
    sender: Annotated[str | None, Setting("", "sender", _mail, "`email`: the address that it is from")] = None
    to: Annotated[tuple[str, ...], Setting("", "to", _mails, "`email`: the addresses that get it")] = ()
    quiet: Annotated[
        QuietHours | None,
        Setting("", "quiet", _quiet_hours, "hours in which nothing is sent, such as `22:00-07:00`"),
    ] = None
    digest: Annotated[
        time | None,
        Setting("", "digest", _digest, "a time such as `09:00`: everything is sent together once a day"),
    ] = None
    time_zone: Annotated[ZoneInfo, Setting("", "time_zone", _zone, "of `quiet` and `digest`", default="UTC")]
    private_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "private_hosts",
            _hosts,
            "hosts of `url` that may have a private address; a loopback one may also be `http://`",
        ),
    ] = ()

    @property
    def rules(self) -> ChannelRules:
        return ChannelRules(
            name=self.name, kind=self.kind, quiet=self.quiet, digest=self.digest, zone=self.time_zone
        )

    @property
    def masked_address(self) -> str:
        """Where it goes, without what makes it secret, for administrators."""
        if self.url is not None:
            parts = single_values.split_url(self.url.get_secret_value())
            return f"{parts.scheme}://{parts.hostname}/…" if parts else "…"
        if self.to:
            return ", ".join(f"{mail[0]}…@{mail.partition('@')[2]}" for mail in self.to)
        return ""

    def secrets(self) -> tuple[str, ...]:
        plain = (
            self.url.get_secret_value() if self.url else "",
            self.secret.get_secret_value() if self.secret else "",
        )
        return tuple(filter(None, (*plain, *(self.smtp.secrets() if self.smtp else ()))))


_NEEDS: Mapping[ChannelKind, tuple[str, ...]] = {
    ChannelKind.ISSUE: (),
    ChannelKind.COMMENT: (),
    ChannelKind.SLACK: ("url",),
    ChannelKind.WEBHOOK: ("url", "secret"),
    ChannelKind.EMAIL: ("smtp", "sender", "to"),
}
_ADDRESSES = ("url", "secret", "smtp", "sender", "to", "private_hosts")


def read_channels(raw: RawValue) -> tuple[ChannelSetting, ...]:
    tables = _json(raw.value) if isinstance(raw.value, str) else raw.value
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidValue("must be [[channel]] tables, or a JSON list of them.")
    if len(tables) > _MOST_CHANNELS:
        raise InvalidValue(f"must be at most {_MOST_CHANNELS}.")
    found = tuple(_channel(number, table, raw) for number, table in enumerate(tables, start=1))
    if len({channel.name for channel in found}) < len(found):
        raise InvalidValue("has two channels of one name; rename one.")
    return found


def _json(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:
        raise InvalidValue("must be JSON.") from None  # its text may be a secret


def _channel(number: int, table: Mapping[str, object], raw: RawValue) -> ChannelSetting:
    rows, folder = settings_of(ChannelSetting), raw.folder
    values = {key: RawValue(value, key, folder) for key, value in _with_files(number, table, rows, raw)}
    for key in values:
        if key not in rows:
            raise InvalidValue(f"(number {number}): {key[:60]} is not a key; {suggest_name(key, list(rows))}")
    read: dict[str, Any] = {}
    for field, row in rows.items():
        given = values.get(field) or row.by_default(folder)
        if given is None and row.required:
            raise InvalidValue(f"(number {number}) must have a {field}.")
        if given is not None:
            read[field] = _read(number, field, row.reader, given)
    _check_kind(number, read)
    return ChannelSetting(**read)


def _with_files(
    number: int, table: Mapping[str, object], rows: Mapping[str, Setting], raw: RawValue
) -> Iterator[tuple[str, object]]:
    suffix = FILE_SUFFIX.lower()
    for key, value in table.items():
        name = key.removesuffix(suffix)
        if name == key or name not in rows or not rows[name].secret:
            yield key, value
        elif name in table:
            raise InvalidValue(f"(number {number}): {name} and {key} are both given; keep one.")
        else:
            yield name, _content(number, key, str(value), raw)


def _content(number: int, key: str, place: str, raw: RawValue) -> str:
    try:
        return raw.secret_files.read(place, raw.folder)
    except SecretUnreadable as wrong:
        raise InvalidValue(f"(number {number}): {key} {wrong}") from None


def _read(number: int, field: str, reader: Callable[[RawValue], object], given: RawValue) -> object:
    try:
        return reader(given)
    except InvalidValue as wrong:
        raise InvalidValue(f"(number {number}): {field} {wrong}") from None


def _check_kind(number: int, read: Mapping[str, Any]) -> None:
    kind = read["kind"]
    for field in _NEEDS[kind]:
        if not read.get(field):
            raise InvalidValue(f"(number {number}) is of kind {kind.value} and must have {field}.")
    for field in _ADDRESSES:
        is_used = field in _NEEDS[kind] or (field == "private_hosts" and "url" in _NEEDS[kind])
        if field in read and not is_used:
            raise InvalidValue(f"(number {number}) is of kind {kind.value}, which has no {field}; remove it.")
    url = read.get("url")
    parts = single_values.split_url(url.get_secret_value()) if url else None
    if parts is not None and parts.scheme == "http":
        host = parts.hostname or ""
        if host not in single_values.LOOPBACK or host not in read.get("private_hosts", ()):
            raise InvalidValue(
                f"(number {number}): url must be https:// (http:// only on this machine, in private_hosts)."
            )
