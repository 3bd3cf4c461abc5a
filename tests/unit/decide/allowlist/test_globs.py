"""The allowlist's globs: what they match, and that no pattern makes them slow."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.globs import name_glob, path_glob

PATHS = [
    ("refs/heads/main", "refs/heads/main", True),
    ("refs/heads/main", "refs/heads/main2", False),
    ("refs/heads/*", "refs/heads/main", True),
    ("refs/heads/*", "refs/heads/gh/user/1", False),
    ("refs/heads/gh/**", "refs/heads/gh/user/1/head", True),
    ("refs/heads/gh/**", "refs/heads/ghost", False),
    ("**", "a/b/c", True),
    ("**/test_*.py", "test_a.py", True),
    ("**/test_*.py", "a/b/test_a.py", True),
    ("**/test_*.py", "a/mytest_a.py", False),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**/b", "a/xb", False),
    ("a/**/**/b", "a/b", True),
    ("**a*b", "a/ab", True),
    ("v?.*", "v2.11", True),
    ("v?", "v/", False),
    ("[ab]", "a", False),
    ("[ab]{c,d}", "[ab]{c,d}", True),
    (r"a\*", "a*", True),
    (r"a\*", "ab", False),
    ("a.b", "axb", False),
    ("", "", True),
    ("*", "", True),
    ("MAIN", "main", False),
]


@pytest.mark.parametrize(("pattern", "text", "matches"), PATHS)
def test_in_paths_a_star_stops_at_a_slash(pattern: str, text: str, matches: bool) -> None:
    assert path_glob(pattern).matches(text) is matches


NAMES = [
    ("*xfail*", "ci / xfail case", True),
    ("build (*)", "build (cuda, 3.12)", True),
    ("build (*)", "build", False),
    ("**/b", "b", False),
    ("**/**/b", "a/b", False),
    ("?", "/", True),
]


@pytest.mark.parametrize(("pattern", "text", "matches"), NAMES)
def test_in_names_a_slash_is_a_character_like_any_other(pattern: str, text: str, matches: bool) -> None:
    assert name_glob(pattern).matches(text) is matches


def test_a_pattern_that_would_hang_a_backtracking_matcher_is_matched() -> None:
    text = "a" * 5_000
    assert name_glob("*a" * 120 + "b").matches(text) is False
    assert path_glob("**a*" * 60 + "b").matches(text) is False


def as_regex(pattern: str) -> str:
    """Return the equivalent regular expression, which may be slow."""
    words = re.split(r"((?<![^/])\*\*+/|\*\*+|\*|\?)", pattern)
    special = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        "(?:.*/)?"
        if re.fullmatch(r"\*\*+/", word)
        else ".*"
        if re.fullmatch(r"\*\*+", word)
        else special.get(word, re.escape(word))
        for word in words
    )


@given(st.text("ab/*?", max_size=8), st.text("ab/", max_size=8))
def test_a_glob_agrees_with_its_equivalent_regular_expression(pattern: str, text: str) -> None:
    assert path_glob(pattern).matches(text) is bool(re.fullmatch(as_regex(pattern), text))
