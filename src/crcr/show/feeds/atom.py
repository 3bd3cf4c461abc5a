"""Atom 1.0 (RFC 4287) from values: ids are `tag:` URIs, texts are plain, and no character is outside of XML 1.0.

Text from outside is made visible first (`safe_text`); what XML does not allow even as a reference is replaced.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from urllib.parse import quote, urlsplit

from crcr import __version__
from crcr.show.render.safe_text import visible

MEDIA_TYPE = "application/atom+xml"
_MOST_TITLE = 300
_MOST_SUMMARY = 2_000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
"""When a feed without entries was updated: the present time would give it another ETag each second."""
_YEAR = "2026"
"""A `tag:` URI names its authority at a time; ids must never change, so the time does not either."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    key: tuple[str, ...]
    """Tells it apart from other entries of the same feed, for ever."""
    title: str
    at: datetime
    url: str
    summary: str
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    key: tuple[str, ...]
    title: str
    url: str
    """The page that shows the same, as an absolute address."""
    own_url: str
    entries: Sequence[FeedEntry]


def write_feed(feed: Feed, site: str) -> bytes:
    """Return the document; `site` is the public address of the relay."""
    updated = max((entry.at for entry in feed.entries), default=_NEVER)
    head = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        _element("id", make_tag(site, *feed.key)),
        _element("title", _clip(feed.title, _MOST_TITLE)),
        _element("updated", _stamp(updated)),
        f'<link rel="self" type="{MEDIA_TYPE}" href="{_escape(feed.own_url)}"/>',
        f'<link rel="alternate" type="text/html" href="{_escape(feed.url)}"/>',
        "<author><name>crcr</name></author>",
        f'<generator version="{_escape(__version__)}">crcr</generator>',
    ]
    newest_first = sorted(feed.entries, key=lambda entry: (entry.at, entry.key), reverse=True)
    entries = [_entry(entry, feed, site) for entry in newest_first]
    return "\n".join([*head, *entries, "</feed>\n"]).encode()


def make_tag(site: str, *parts: str) -> str:
    """Return a `tag:` URI (RFC 4151); the host of the public address is its authority."""
    host = urlsplit(site).hostname or ""
    authority = host if re.fullmatch(r"[a-z0-9.-]+", host) else "localhost"
    return f"tag:{authority},{_YEAR}:crcr/{'/'.join(quote(part, safe='') for part in parts)}"


def _entry(entry: FeedEntry, feed: Feed, site: str) -> str:
    return "\n".join(
        [
            "<entry>",
            _element("id", make_tag(site, *feed.key, *entry.key)),
            _element("title", _clip(entry.title, _MOST_TITLE)),
            _element("updated", _stamp(entry.at)),
            f'<link rel="alternate" type="text/html" href="{_escape(entry.url)}"/>',
            f'<category term="{_escape(entry.category)}"/>',
            _element("summary", _clip(entry.summary, _MOST_SUMMARY)),
            "</entry>",
        ]
    )


def _element(name: str, text: str) -> str:
    return f"<{name}>{_escape(text)}</{name}>"


def _clip(text: str, most: int) -> str:
    return visible(text, most)


def _escape(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
