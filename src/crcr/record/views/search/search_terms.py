"""The searched text, parsed: a pull request's number, digits of a commit, a login, or part of a name.

Linear in the text, of which 200 characters are read: anybody may search.
"""

import re
from dataclasses import dataclass

from crcr.decide.model import RepoName
from crcr.record.store.statement import ascii_lower

_LONGEST = 200
SHORTEST = 2
"""Of a part of a name: one letter would match nearly everything."""

_NUMBER = re.compile(r"#?([1-9][0-9]{0,8})")
_DIGITS = re.compile(r"[0-9a-f]{7,64}")
_LOGIN = re.compile(r"@?([A-Za-z0-9][A-Za-z0-9_-]{0,38}(?:\[bot\])?)")
_ADDRESS = re.compile(r"https?://[^/\s]+/([\w.-]+/[\w.-]+?)(?:\.git)?(?:/(pull|commit)/(\w+)\S*|/)?")


@dataclass(frozen=True, slots=True)
class SearchTerms:
    text: str
    number: int | None = None
    digits: str | None = None
    login: str | None = None
    plain: bool = True
    """Whether it may also be part of a name or title."""

    @property
    def name_part(self) -> str | None:
        """The text as part of a name; None where that cannot be meant, or is too short."""
        return self.text if self.plain and len(self.text) >= SHORTEST else None


def clean_text(text: str) -> str:
    return " ".join(text[: 10 * _LONGEST].replace("\x00", " ").split())[:_LONGEST]


def parse_terms(cleaned: str, upstream: RepoName) -> SearchTerms | None:
    if not cleaned:
        return None
    if address := _ADDRESS.fullmatch(cleaned):
        return _parse_address(address, upstream)
    number = _NUMBER.fullmatch(cleaned)
    digits = _DIGITS.fullmatch(cleaned.lower())
    login = _LOGIN.fullmatch(cleaned)
    return SearchTerms(
        cleaned,
        int(number[1]) if number else None,
        digits[0] if digits else None,
        login[1].lower() if login else None,
        plain=cleaned[0] not in "#@" or (number is None and login is None),
    )


def history_search_text(text: str, upstream: RepoName) -> str | None:
    """The part of a job's name that is searched for; None when a name cannot be meant."""
    terms = parse_terms(clean_text(text), upstream)
    return terms.name_part if terms else None


def _parse_address(address: re.Match[str], upstream: RepoName) -> SearchTerms | None:
    """Parse an address on GitHub; of a repository that is not the upstream, only its name is searched."""
    name, kind, which = address[1], address[2], address[3]
    if kind is None:
        return SearchTerms(name)
    if name.lower() != upstream.key:
        return None
    if kind == "pull":
        number = _NUMBER.fullmatch(which)
        return SearchTerms(which, number=int(number[1]), plain=False) if number else None
    digits = _DIGITS.fullmatch(which.lower())
    return SearchTerms(which, digits=digits[0], plain=False) if digits else None


def name_pattern(part: str) -> str:
    """A LIKE pattern that matches the text anywhere in a lower-case value; wildcards in the text are escaped."""
    return "%" + re.sub(r"[%_!]", r"!\g<0>", ascii_lower(part)) + "%"
