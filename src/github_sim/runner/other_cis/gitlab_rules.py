"""Conditions of GitLab's `rules`, and `$NAME` inside the values of its variables."""

import re
from collections.abc import Mapping

from github_sim.runner.problems import Problem

_TERM = re.compile(r"""\$(\w+)(?:\s*(==|!=)\s*(?:"([^"]*)"|'([^']*)'|(null)|\$(\w+)))?""")
_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def holds(condition: str, values: Mapping[str, str]) -> bool:
    """`$A`, `$A == "b"`, `!=`, joined by `&&` and `||`; anything more is a `Problem`."""
    return any(
        all(_term(term.strip(), condition, values) for term in part.split("&&"))
        for part in condition.split("||")
    )


def _term(term: str, condition: str, values: Mapping[str, str]) -> bool:
    found = _TERM.fullmatch(term)
    if found is None:
        raise Problem(f"the simulated GitLab cannot read the condition `{condition}`")
    name, sign, double, single, null, other = found.groups()
    value = values.get(name)
    if sign is None:
        return bool(value)
    wanted = None if null else values.get(other) if other else double if double is not None else single
    return (value == wanted) == (sign == "==")


def expanded(value: str, values: Mapping[str, str]) -> str:
    return _NAME.sub(lambda found: values.get(found[1] or found[2], found[0]), value)
