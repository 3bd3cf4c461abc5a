"""Numbered pages of a list, as most of GitHub's lists have them; the delivery log has its own cursor."""

from typing import TypeVar

from github_sim.rest.exchange import Ask

Item = TypeVar("Item")


def page_of(base: str, ask: Ask, found: list[Item]) -> tuple[list[Item], dict[str, str]]:
    """One page of a list by `per_page` and `page`, with the Link header to the next."""
    size, number = ask.whole("per_page", 30, 100), ask.whole("page", 1, 10_000)
    shown = found[(number - 1) * size : number * size]
    if number * size >= len(found):
        return shown, {}
    others = "".join(f"{name}={value}&" for name, value in ask.query.items() if name != "page")
    return shown, {"link": f'<{base}{ask.path}?{others}page={number + 1}>; rel="next"'}
