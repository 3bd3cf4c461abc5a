"""YAML as CI systems read it, and `WorkflowError`: only true and false are booleans (`on:` and `no` stay text), and a
duplicate key is an error.
"""

from typing import Any

import yaml


class WorkflowError(Exception):
    """A problem in a workflow file; its text is shown to the user."""


class _Loader(yaml.SafeLoader):
    """The safe loader with the booleans of YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = {key for key in keys if isinstance(key, str) and keys.count(key) > 1}
        if twice:
            raise WorkflowError(
                f"line {node.start_mark.line + 1}: {', '.join(sorted(twice))} stands there twice"
            )
        return super().construct_mapping(node, deep)


_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != _BOOLEAN or first in "tTfF"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str, name: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise WorkflowError(f"{name} is no YAML: {error}") from None
    except WorkflowError as problem:
        raise WorkflowError(f"{name}: {problem}") from None
    if not isinstance(found, dict):
        raise WorkflowError(f"{name} is no mapping")
    return found


def reject_unknown_keys(value: dict[str, Any], known: frozenset[str], where: str) -> None:
    strange = [str(key) for key in value if key not in known]
    if strange:
        raise WorkflowError(f"{where} has {', '.join(strange)}, which the simulated runner does not know")


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def as_mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise WorkflowError(f"{where} is no mapping")
    return value
