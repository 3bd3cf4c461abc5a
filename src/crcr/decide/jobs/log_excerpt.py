"""Excerpts of a job's log: the first error line and the last lines, without what looks like a secret, and short.

The reporter masks and cuts before it sends, and a report may come from anything else, so both are done again with each report.
The rules of masking are the same as in `action/report.py`, which runs alone and cannot import them; a test compares the two.
Every pattern takes time in proportion to the text, however the text is written.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

MOST_ERROR_BYTES = 1_024
MOST_TAIL_BYTES = 7 * 1_024
MOST_TAIL_LINES = 60
_MOST_READ = 16 * 1_024
"""Characters of a text that are looked at; a reporter sends less."""


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """Untrusted text of a job's log; at most 8 KiB together."""

    first_error: str | None
    tail: str | None


def make_excerpt(first_error: object, tail: object) -> LogExcerpt | None:
    """Return the excerpt masked and cut; None when nothing is left of it."""
    error_lines = _clean_lines(_read_start(first_error))
    error = cut_line(mask_secrets(error_lines[0]), MOST_ERROR_BYTES) if error_lines else ""
    lines = cut_tail(mask_secrets("\n".join(_clean_lines(_read_end(tail)))).split("\n"), MOST_TAIL_BYTES)
    return LogExcerpt(error or None, lines or None) if error or lines else None


def _read_start(value: object) -> str:
    """Without a word that is cut in half: half a token would not be masked."""
    text = value if isinstance(value, str) else ""
    return text if len(text) <= _MOST_READ else " ".join(text[:_MOST_READ].split(" ")[:-1])


def _read_end(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= _MOST_READ else text[-_MOST_READ:].partition("\n")[2]


def _clean_lines(text: str) -> list[str]:
    lines = [clean_line(line.rstrip("\r").rpartition("\r")[2]) for line in text.split("\n")]
    first = next((index for index, line in enumerate(lines) if line), len(lines))
    return lines[first:]


# From here to the end the reporter has the same text.

MASK = "***"
CONTROL_CODES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*(?:[A-HJKSTXfhlmnrsu]| q)?|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b(?:[()*+][0-9AB]|[=>78])?"
)
"""Those that programs write; others lose only their first character, so that they take nothing from the text after them."""
SENSITIVE_NAMES = (
    r"passw(?:or)?d|passphrase|secrets?|tokens?|credentials?|api[_-]?keys?|access[_-]?keys?|private[_-]?key|"
    r"account[_-]?key|signing[_-]?key|encryption[_-]?key|deploy[_-]?key|auth[_-]?key|client[_-]?key|x-amz-signature|"
    r"sharedaccesssignature|_auth"
)
MASKED_FORMS = (
    # Keys and certificates, to their end or to the end of the text.
    (re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----.*?(?:-----END [A-Z0-9 ]{1,60}-----|\Z)", re.DOTALL), MASK),
    # Headers, to the end of their line.
    (
        re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s{0,3}[:=]\s{0,3})[^\n]+"),
        rf"\1\2{MASK}",
    ),
    # User and password in an address.
    (re.compile(r"://[^\s/?#\"'<>]*@"), f"://{MASK}@"),
    (re.compile(r"://[^\s/:@\"'<>]*:(?!\d{1,5}(?:[/?#\s]|\Z))[^\s@\"'<>]{1,128}@"), f"://{MASK}@"),
    # What a name calls secret: password=…, "token": "…", --api-key …, and curl's -u user:password.
    (
        re.compile(
            rf"(?i)((?:{SENSITIVE_NAMES})[\w.-]{{0,24}}(?:\\?['\"])?\s{{0,3}}(?::=|=>|=|:)\s{{0,3}})"
            r"(\"(?:[^\"\\\n]|\\[^\n])*\"?|'[^'\n]*'?|\\\"[^\"\n]*\"?|[^\s\"',;&][^\s,;&]*)"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(rf"(?i)((?<![\w-])--[\w-]{{0,24}}?(?:{SENSITIVE_NAMES}))(\s{{1,3}})[^\s-][^\s]*"),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"((?<!\S)(?:-u|--user)[ =]?['\"]?)[^\s:'\"]{1,100}:[^\s]+"), rf"\1{MASK}"),
    (re.compile(r"([?&](?:sig|signature|key|code|auth)=)[^\s&\"'<>]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|negotiate)(\s{1,3})[\w.~+/=-]{8,}"), rf"\1\2{MASK}"),
    (re.compile(r"\b([Bb]asic\s{1,3})[A-Za-z0-9+/]{8,}={0,2}(?<![a-z]{8})"), rf"\1{MASK}"),
    # Tokens with a form of their own: GitHub, GitLab, JSON Web Tokens, AWS, Slack, package indexes and others.
    (
        re.compile(
            r"(?<![A-Za-z0-9])(?:gh[oprsu]_[\w.-]{16,}|github_pat_\w{16,}|v1\.[0-9a-f]{40}|GR1348941[\w-]{16,}"
            r"|gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rtr?|soat|wt)-[\w.-]{16,}|eyJ[\w-]{8,}(?:\.[\w-]*){0,4}"
            r"|(?:AKIA|ASIA|AGPA|AIDA|AIPA|ANPA|ANVA|AROA)[A-Z0-9]{12,}|x(?:ox[a-z]|app)-[\w.-]{8,}|pypi-AgE[\w-]{16,}"
            r"|npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{20,}|dckr_\w{16,}|do[oprt]_v1_\w{16,}|[prsw]k_(?:live|test)_\w{10,}"
            r"|sk-[\w-]{32,}|AIza[\w-]{30,}|ya29\.[\w.-]{16,}|SG\.[\w.-]{16,}|hv[brs]\.[\w-]{16,}|bk(?:aj|ct|ps|ua)_\w{16,}"
            r"|CCIPAT_\w{10,}|AGE-SECRET-KEY-\w{16,}|whsec_\w{16,}|sha256~[\w-]{20,})"
        ),
        MASK,
    ),
    (re.compile(r"https://hooks\.slack\.com/[^\s\"'<>]+"), f"https://hooks.slack.com/{MASK}"),
)
END_OF_KEY = re.compile(r"-----END [A-Z0-9 ]{1,60}-----")
START_OF_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----")
LONG_RUN = re.compile(r"[A-Za-z0-9+/_=-]{24,}")
PLAIN_RUN = re.compile(
    r"[0-9a-f]{40}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|_{1,3}Z[A-Za-z0-9_]+|[0-9]+|[-=_+/]+"
)
"""A commit, an id, a name as the linker has it, a number, a ruler."""


def clean_line(line: str) -> str:
    """Return a line without colours and other characters that cannot be seen; tabs become blanks."""
    if line.isprintable():
        return line.rstrip()
    plain = CONTROL_CODES.sub("", line).replace("\t", "    ")
    if not plain.isprintable():
        letters = (" " if unicodedata.category(letter)[0] == "Z" else letter for letter in plain)
        plain = "".join(letter for letter in letters if unicodedata.category(letter)[0] != "C")
    return plain.rstrip()


def mask_secrets(text: str, values: Iterable[str] = ()) -> str:
    """Return the text without these values and without what looks like a secret."""
    for value in sorted(set(values), key=len, reverse=True):
        text = text.replace(value, MASK)
    text = _without_open_key(text)
    for pattern, replacement in MASKED_FORMS:
        text = pattern.sub(replacement, text)
    return LONG_RUN.sub(_mask_run, text)


def _without_open_key(text: str) -> str:
    """Mask a key whose first lines are missing: everything up to an end without a beginning."""
    end, start = END_OF_KEY.search(text), START_OF_KEY.search(text)
    return MASK + text[end.end() :] if end and (start is None or start.start() > end.start()) else text


def _mask_run(run: re.Match[str]) -> str:
    """Mask a run of characters as random as those of a key; parts of a path are looked at one by one too."""
    if looks_random(run[0]):
        return MASK
    return "/".join(MASK if looks_random(part) else part for part in run[0].split("/"))


def looks_random(run: str) -> bool:
    """Whether digits, capitals and small letters change as often as chance makes them, and not as in names and words."""
    if len(run) < 24 or PLAIN_RUN.fullmatch(run):
        return False
    kinds = ["d" if one.isdigit() else "u" if one.isupper() else "l" if one.isalpha() else "" for one in run]
    # A capital before small letters begins a word.
    pairs = [kinds[index : index + 2] for index in range(len(kinds) - 1)]
    changes = sum(a != b for a, b in pairs if a and b and (a, b) != ("u", "l"))
    return kinds.count("d") >= 2 and 4 * changes > len(run)


def cut_line(line: str, most_bytes: int) -> str:
    """Cut a masked line between characters."""
    whole = line.encode("utf-8", "replace")
    return (
        line if len(whole) <= most_bytes else whole[: most_bytes - 3].decode("utf-8", "ignore").rstrip() + "…"
    )


def cut_tail(lines: list[str], most_bytes: int) -> str:
    """Return as many of the last masked lines as fit, without blank ones at both ends."""
    kept, size = [], 0
    for line in reversed(lines[-MOST_TAIL_LINES:]):
        shown = cut_line(line, MOST_ERROR_BYTES)
        size += len(shown.encode("utf-8", "replace")) + 1
        if size > most_bytes:
            break
        kept.append(shown)
    return "\n".join(reversed(kept)).strip("\n")
