"""`<< … >>` in CircleCI's config, and the logic of `when`."""

import re
from collections.abc import Mapping
from typing import Any

from github_sim.runner.problems import Problem
from github_sim.runner.yaml_text import as_list

_MARK = re.compile(r"<<\s*([\w.-]+)\s*>>")
Values = Mapping[str, Any]


def filled(given: Any, values: Values) -> Any:
    """A part of the config with its parameters put in; one that is nothing but a parameter keeps its type."""
    if isinstance(given, dict):
        return {key: filled(value, values) for key, value in given.items()}
    if isinstance(given, list):
        return [filled(each, values) for each in given]
    if not isinstance(given, str):
        return given
    whole = _MARK.fullmatch(given.strip())
    if whole is not None:
        return _value(whole[1], values)
    return _MARK.sub(lambda found: str(_value(found[1], values)), given)


def _value(name: str, values: Values) -> Any:
    if name not in values:
        raise Problem(f"there is no {name} in the config")
    return values[name]


def holds(condition: Any) -> bool:
    """A value, or and, or, not and equal over values; the parameters are already put in."""
    if not isinstance(condition, dict):
        return bool(condition)
    if len(condition) != 1:
        raise Problem(f"the simulated CircleCI cannot read the condition {condition}")
    ((word, given),) = condition.items()
    if word == "and":
        return all(holds(each) for each in as_list(given))
    if word == "or":
        return any(holds(each) for each in as_list(given))
    if word == "not":
        return not holds(given)
    if word == "equal":
        return all(each == given[0] for each in given)
    raise Problem(f"the simulated CircleCI does not know the condition {word}")
