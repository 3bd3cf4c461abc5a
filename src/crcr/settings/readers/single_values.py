"""Readers of single values: each returns a checked value, or raises `InvalidValue`.

Texts come from the environment, typed values from TOML: numbers and lists are accepted in both forms. The readers of
secrets (`secret`, `private_key`, `database`) never include the value in their message.
"""

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from urllib.parse import SplitResult, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import SecretStr

from crcr.settings.setting import InvalidValue, RawValue

_DURATION = re.compile(r"([0-9]{1,9})\s?([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_DURATION_S = 30 * 86400
_APP_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_TAKEN_HEADERS = frozenset(
    (
        *("accept", "accept-charset", "accept-encoding", "accept-language", "authorization", "cache-control"),
        *("connection", "content-length", "content-type", "cookie", "date", "dnt", "expect", "forwarded"),
        *("host", "keep-alive", "origin", "pragma", "priority", "proxy-authorization", "range", "referer"),
        *("te", "trailer", "transfer-encoding", "upgrade", "upgrade-insecure-requests", "user-agent", "via"),
        *("x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip"),
        *("x-hud-internal-bot", "x-requested-with"),
    )
)
"""Headers that browsers and proxies send without a sign-in; also `Sec-…` and `If-…`."""
_SHOWN = 80
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SWITCH = {
    **dict.fromkeys(("1", "on", "true", "yes"), "on"),
    **dict.fromkeys(("0", "off", "false", "no"), "off"),
}


def quote(value: object) -> str:
    """Quote a value for a sentence, short and on one line."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def text(raw: RawValue) -> str:
    if not isinstance(raw.value, str):
        raise InvalidValue("must be text in quotes.")
    if not raw.value.strip() or "\0" in raw.value:
        raise InvalidValue("must not be empty.")
    return raw.value.strip()


def secret(raw: RawValue) -> SecretStr:
    """Read a secret unchanged, including spaces; only a line end is removed."""
    if not isinstance(raw.value, str):
        raise InvalidValue("must be text in quotes.")
    value = raw.value.rstrip("\r\n")
    if not value.strip():
        raise InvalidValue("must not be empty.")
    return SecretStr(value)


def private_key(raw: RawValue) -> SecretStr:
    pem = secret(raw)
    # One-line environment files write line ends as a backslash and an n.
    key_text = pem.get_secret_value().strip().replace("\\n", "\n")
    try:
        key = _load_key(key_text)
    except TypeError:
        raise InvalidValue("is protected by a password; store the key without one.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidValue(
            "is not a readable PEM key; use the .pem file that GitHub gave for the App, unchanged."
        ) from None
    if not isinstance(key, RSAPrivateKey) or key.key_size < 2048:
        raise InvalidValue("must be an RSA key of at least 2,048 bits, as GitHub makes it for the App.")
    return pem


@lru_cache(maxsize=4)
def _load_key(pem: str) -> PrivateKeyTypes:
    """Checking an RSA key takes some 40 ms; a process that loads its settings again has the same key."""
    return load_pem_private_key(pem.encode(), password=None)


def app_id(raw: RawValue) -> str:
    value = raw.value
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not _APP_ID.fullmatch(value.strip()):
        raise InvalidValue(
            f"must be the App's id or client id from its settings page, not {quote(raw.value)}."
        )
    return value.strip()


def integer(least: int, most: int) -> Callable[[RawValue], int]:
    def read(raw: RawValue) -> int:
        value = raw.value
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidValue(f"must be a whole number from {least} to {most}, not {quote(raw.value)}.")
        return value

    return read


def integer_or_zero(least: int, most: int) -> Callable[[RawValue], int]:
    """Read a number, or 0 for no limit."""

    def read(raw: RawValue) -> int:
        try:
            return integer(0, 0)(raw)
        except InvalidValue:
            pass
        try:
            return integer(least, most)(raw)
        except InvalidValue:
            raise InvalidValue(
                f"must be 0 or a whole number from {least} to {most}, not {quote(raw.value)}."
            ) from None

    return read


def duration(raw: RawValue) -> int:
    """Return seconds."""
    found = _DURATION.fullmatch(raw.value.strip()) if isinstance(raw.value, str) else None
    seconds = int(found[1]) * _UNIT_S[found[2]] if found else 0
    if not 0 < seconds <= _MAX_DURATION_S:
        raise InvalidValue(
            f"must be a duration of at most 30d such as 90s, 30m, 6h or 2d, not {quote(raw.value)}."
        )
    return seconds


def one_of(*known: str) -> Callable[[RawValue], str]:
    def read(raw: RawValue) -> str:
        value = raw.value.strip().lower() if isinstance(raw.value, str) else raw.value
        if not isinstance(value, str) or value not in known:
            raise InvalidValue(f"must be {' or '.join(known)}, not {quote(raw.value)}.")
        return value

    return read


def switch(raw: RawValue) -> str:
    """Read `1`, `on`, `true` or `yes`, and their opposites."""
    word = str(raw.value).strip().lower() if isinstance(raw.value, str | int) else ""
    if word not in _SWITCH:
        raise InvalidValue(f"must be on or off, not {quote(raw.value)}.")
    return _SWITCH[word]


def texts(raw: RawValue) -> tuple[str, ...]:
    """Read `a, b` or a list of texts; repeats are dropped."""
    items = raw.value.split(",") if isinstance(raw.value, str) else raw.value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise InvalidValue('must be a list of texts: "a, b" or ["a", "b"].')
    found = tuple(dict.fromkeys(item.strip() for item in items if item.strip()))
    if not found:
        raise InvalidValue("must name at least one.")
    return found


def list_of_texts(raw: RawValue) -> tuple[str, ...]:
    """Read a list that may be empty."""
    return () if raw.value == [] else texts(raw)


def networks(raw: RawValue) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(_network(item) for item in texts(raw))


def cover_all_addresses(networks: Collection[IPv4Network | IPv6Network]) -> bool:
    """Whether the networks together cover all IPv4 or all IPv6 addresses."""
    fours = [network for network in networks if isinstance(network, IPv4Network)]
    sixes = [network for network in networks if isinstance(network, IPv6Network)]
    merged = [*(network.prefixlen for network in collapse_addresses(fours))]
    merged += [network.prefixlen for network in collapse_addresses(sixes)]
    return 0 in merged


def _network(item: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(item)
    except ValueError:
        pass
    try:
        network = ip_network(item, strict=False)
    except ValueError:
        raise InvalidValue(
            f"holds {quote(item)}; write an address or a network such as 10.0.0.0/8."
        ) from None
    raise InvalidValue(f"holds {quote(item)}, which is inside a network; write {network}.")


def host(raw: RawValue) -> str:
    if not isinstance(raw.value, str) or not _HOST.fullmatch(raw.value.strip()):
        raise InvalidValue(f"must be an address or a name to listen on, not {quote(raw.value)}.")
    return raw.value.strip()


def header_name(raw: RawValue) -> str:
    value = text(raw)
    name = value.lower()
    if not _HEADER.fullmatch(value) or name in _TAKEN_HEADERS or name.startswith(("sec-", "if-")):
        raise InvalidValue(f"must be a header's name such as X-Forwarded-User, not {quote(raw.value)}.")
    return value


def url(raw: RawValue) -> str:
    """Read an http(s) address, without a slash at its end, so that a path can be appended."""
    value = text(raw)
    parts = split_url(value)
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidValue("must be an http:// or https:// address.")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidValue("must be an address without user, password, ? and #.")
    return value.rstrip("/")


def safe_url(raw: RawValue) -> str:
    """Read an address that receives credentials: https, or on this machine."""
    value = url(raw)
    parts = urlsplit(value)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise InvalidValue("must be an https:// address (http:// only on this machine).")
    return value


def split_url(value: str) -> SplitResult | None:
    try:
        parts = urlsplit(value)
        _ = parts.port  # read for its check
    except ValueError:
        return None
    return None if re.search(r"[\s\x00-\x1f\x7f\\]", value) else parts
