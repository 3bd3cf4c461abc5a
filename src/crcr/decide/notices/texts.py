"""The texts of notices, for each kind of channel.

Summaries and details may hold names from outside (jobs, pull requests). GitHub gets them in code spans, so that they can
mention nobody; Slack's control characters are escaped; an e-mail is plain text; the JSON is data.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crcr.decide.checks.text.markdown import code, format_utc, one_line
from crcr.decide.model import RepoName
from crcr.decide.notices.notice import ENDING, NoticeKind, ThreadChange, cut_line

WEBHOOK_VERSION = 1
_MOST_LINES = 30
_MOST_TITLE = 200
_FEW_THREADS = 10
_FEW_DETAILS = 3
_MOST_COMMENT_BYTES = 60_000
"""GitHub refuses a comment of more than 65,536."""
_OWN_WORDS = re.compile(r"(?:[A-Za-z0-9 ,;'-]|(?<=[0-9]):(?=[0-9]))*")
"""Nothing that GitHub would make a link, a mention or markup of."""
_HEADINGS: Mapping[NoticeKind, str] = {
    NoticeKind.RED: "{backend} is red on the base branch of {upstream}",
    NoticeKind.RECOVERED: "{backend} has recovered on the base branch of {upstream}",
    NoticeKind.SILENT: "{backend} does not report to {upstream}",
    NoticeKind.REPORTING: "{backend} reports to {upstream} again",
    NoticeKind.DEMOTED: "{backend} was demoted by {upstream}",
    NoticeKind.ALARMED: "{backend} gates {upstream} and fails the criteria of its level",
    NoticeKind.RESTORED: "{backend} is no longer demoted or alarmed at {upstream}",
    NoticeKind.ELIGIBLE: "{backend} may move up a level at {upstream}",
    NoticeKind.NOT_ELIGIBLE: "{backend} is no longer waiting to move up a level at {upstream}",
    NoticeKind.GATE_FAILED: "{backend} blocks {upstream}#{number} with a new failure",
    NoticeKind.GATE_RESOLVED: "{backend} no longer blocks {upstream}#{number}",
    NoticeKind.BISECTED: "A bisection of {backend} at {upstream} has ended",
    NoticeKind.SETUP_BROKEN: "The set-up of {subject} is broken",
    NoticeKind.SETUP_REPAIRED: "The set-up of {subject} works again",
    NoticeKind.BREAKING: "{upstream}#{number} announces a breaking change for {backend}",
    NoticeKind.BREAKING_ENDED: "{upstream}#{number} has ended its announcement of a breaking change for {backend}",
    NoticeKind.TEST: "A test notice of {upstream}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadText:
    """A thread as a message shows it: its newest event, and whom it concerns."""

    thread_id: int
    kind: NoticeKind
    change: ThreadChange
    upstream: RepoName
    backend: RepoName | None
    number: int | None
    summary: str
    details: tuple[str, ...]
    oncalls: tuple[str, ...]
    url: str
    opened_at: datetime
    closed_at: datetime | None
    is_open: bool

    @property
    def heading(self) -> str:
        return _HEADINGS[self.kind].format(
            backend=self.backend,
            upstream=self.upstream,
            number=self.number,
            subject=self.backend or self.upstream,
        )


def post_mark(relay_url: str, channel: str, thread_id: int, attempted_at: datetime) -> str:
    """Return the invisible mark by which the relay finds its own issue or comment after a lost answer."""
    at = f"{attempted_at.timestamp():.6f}"
    return f"<!-- crcr notice {thread_id} of {relay_url} for {channel} at {at} -->"


def issue_title(thread: ThreadText) -> str:
    return cut_line(one_line(thread.heading), _MOST_TITLE)


def issue_body(thread: ThreadText, mark: str) -> str:
    """Return the whole body, with which the issue is created and updated."""
    lines = [
        _shown(thread.summary),
        "",
        *(f"- {_shown(detail)}" for detail in thread.details),
        "",
        f"Since {format_utc(thread.opened_at)}; [details]({thread.url}).",
        *_mention(thread.oncalls),
        "",
        "This issue is updated by the relay, and closed when the condition ends.",
        mark,
    ]
    return "\n".join(lines)


def _shown(text: str) -> str:
    """Our own words as they are; what follows a colon, and whatever is not plain, in a code span."""
    if _OWN_WORDS.fullmatch(text):
        return text
    own, colon, quoted = text.partition(": ")
    if colon and quoted and _OWN_WORDS.fullmatch(own):
        return f"{own}: {code(quoted, 300)}"
    return code(text, 300)


def _mention(oncalls: Sequence[str]) -> list[str]:
    """The on-calls are checked logins and teams of the allowlist: these may be mentioned."""
    return [f"On call: {', '.join(f'@{person}' for person in oncalls)}"] if oncalls else []


def comment_body(threads: Sequence[ThreadText], mark: str) -> str:
    """Return the one comment of a pull request; those who are no longer concerned stay visible as ended."""
    parts: list[str] = []
    left = _MOST_COMMENT_BYTES
    for thread in sorted(threads, key=lambda thread: (not thread.is_open, str(thread.backend)))[:_MOST_LINES]:
        part = _comment_part(thread, _some_details(thread, threads))
        left -= len(part.encode())
        if left < 0:
            break
        parts.append(part)
    if len(parts) < len(threads):
        parts.append(f"and {len(threads) - len(parts):,} more\n")
    if threads:
        parts.append(f"[Details]({threads[0].url})")
    return "\n".join([*parts, mark])


def _comment_part(thread: ThreadText, details: Sequence[str]) -> str:
    if thread.is_open and thread.kind is NoticeKind.BREAKING:
        # The paragraph is in the text of the pull request itself, and the same for all backends.
        return "\n".join([f"📣 **{thread.heading}**", *_mention(thread.oncalls), ""])
    sign = "❌" if thread.is_open else "✅"
    lines = [f"{sign} **{thread.heading}**: {_shown(thread.summary)}"]
    if thread.is_open:
        lines += [*(f"  - {_shown(detail)}" for detail in details), *_mention(thread.oncalls)]
    return "\n".join([*lines, ""])


def slack_body(threads: Sequence[ThreadText]) -> dict[str, Any]:
    lines = [_slack_line(thread) for thread in threads[:_MOST_LINES]]
    if len(threads) > _MOST_LINES:
        lines.append(f"and {len(threads) - _MOST_LINES:,} more")
    return {"text": "\n".join([_storm_heading(threads), *lines] if len(threads) > 1 else lines)}


def _slack_line(thread: ThreadText) -> str:
    sign = ":white_check_mark:" if thread.change in ENDING else ":red_circle:"
    people = f" On call: {_escape_slack(', '.join(thread.oncalls))}." if thread.oncalls else ""
    link = f"<{thread.url}|details>"
    return f"{sign} {_escape_slack(thread.heading)}: {_shown_in_slack(thread.summary)}{people} {link}"


def _shown_in_slack(text: str) -> str:
    """Like `_shown`: receivers that are compatible with Slack may resolve `@channel` and Markdown in a plain text."""
    if _OWN_WORDS.fullmatch(text):
        return text
    own, colon, quoted = text.partition(": ")
    words = f"{own}: " if colon and quoted and _OWN_WORDS.fullmatch(own) else ""
    return f"{words}`{_escape_slack((quoted if words else text).replace('`', chr(39)))}`"


def _escape_slack(text: str) -> str:
    """Escape the characters that begin mentions and links: https://docs.slack.dev/messaging/formatting-message-text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _storm_heading(threads: Sequence[ThreadText]) -> str:
    kinds = dict.fromkeys(thread.kind.value.replace("_", " ") for thread in threads)
    return f"{threads[0].upstream}: {len(threads):,} notices ({', '.join(kinds)})"


def webhook_body(threads: Sequence[ThreadText], *, delivery: str, at: datetime) -> dict[str, Any]:
    """Return the body of the generic webhook. Fields are only added within a version."""
    return {
        "version": WEBHOOK_VERSION,
        "id": delivery,
        "at": at.isoformat(),
        "upstream": str(threads[0].upstream),
        "notices": [
            {
                "thread": thread.thread_id,
                "kind": thread.kind.value,
                "change": thread.change.value,
                "state": "open" if thread.is_open else "closed",
                "backend": str(thread.backend) if thread.backend else None,
                "pull_request": thread.number,
                "heading": thread.heading,
                "summary": thread.summary,
                "details": list(_some_details(thread, threads)),
                "oncalls": list(thread.oncalls),
                "opened_at": thread.opened_at.isoformat(),
                "closed_at": thread.closed_at.isoformat() if thread.closed_at else None,
                "url": thread.url,
            }
            for thread in threads
        ],
    }


def _some_details(thread: ThreadText, threads: Sequence[ThreadText]) -> tuple[str, ...]:
    """In a storm only the first ones: 200 threads with all of theirs would be a megabyte."""
    return thread.details if len(threads) <= _FEW_THREADS else thread.details[:_FEW_DETAILS]


def email_subject(threads: Sequence[ThreadText]) -> str:
    text = threads[0].heading if len(threads) == 1 else _storm_heading(threads)
    return cut_line(f"[crcr] {text}", _MOST_TITLE)


def email_text(threads: Sequence[ThreadText]) -> str:
    parts = []
    for thread in threads:
        people = [f"On call: {', '.join(thread.oncalls)}"] if thread.oncalls else []
        details = [f"- {detail}" for detail in _some_details(thread, threads)]
        parts.append("\n".join([thread.heading, thread.summary, *details, *people, thread.url]))
    return "\n\n".join(parts) + "\n"
