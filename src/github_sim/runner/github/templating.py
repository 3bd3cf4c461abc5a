"""`${{ … }}` inside the text of a workflow file, and the conditions of `if`.

One pass: what an expression yields is put in as it is, whatever it looks like.
"""

from collections.abc import Iterator
from typing import Any

from github_sim.runner.github.expression_functions import Standing
from github_sim.runner.github.expression_values import text, truthy
from github_sim.runner.github.expressions import Contexts, parse
from github_sim.runner.problems import Problem

OPEN, CLOSE = "${{", "}}"


def _parts(template: str) -> Iterator[tuple[str, bool]]:
    """Pieces in their order, each with whether it is an expression."""
    at = 0
    while (start := template.find(OPEN, at)) >= 0:
        yield template[at:start], False
        end = _end(template, start + len(OPEN))
        yield template[start + len(OPEN) : end], True
        at = end + len(CLOSE)
    yield template[at:], False


def _end(template: str, at: int) -> int:
    """Where the expression ends; braces inside a quoted text do not count."""
    quoted = False
    for place in range(at, len(template)):
        if template[place] == "'":
            quoted = not quoted
        elif not quoted and template.startswith(CLOSE, place):
            return place
    raise Problem(f"an expression never ends: {template[at - 3 :][:60]!r}")


def filled(template: Any, contexts: Contexts) -> Any:
    """A value of the file with its expressions evaluated; one that is nothing but an expression keeps its type."""
    if isinstance(template, dict):
        return {key: filled(value, contexts) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(each, contexts) for each in template]
    if not isinstance(template, str) or OPEN not in template:
        return template
    parts = [(piece, is_code) for piece, is_code in _parts(template) if piece or is_code]
    if len(parts) == 1:
        return parse(parts[0][0]).value(contexts)
    return "".join(text(parse(piece).value(contexts)) if is_code else piece for piece, is_code in parts)


def filled_text(template: Any, contexts: Contexts) -> str:
    return text(filled(template, contexts))


def holds(condition: Any, contexts: Contexts, standing: Standing) -> bool:
    """An `if`; one that does not ask how things stand holds only while everything succeeded."""
    source = "success()" if condition is None else text(condition).strip()
    if OPEN in source:
        source = _bare(source)
    expression = parse(source)
    if not expression.asks_status and not standing.functions()["success"]():
        return False
    return truthy(expression.value(contexts, standing))


def _bare(source: str) -> str:
    parts = [(piece, is_code) for piece, is_code in _parts(source) if piece or is_code]
    if len(parts) != 1:
        raise Problem(f"`if: {source}` mixes text and expressions, which GitHub takes for true always")
    return parts[0][0]
