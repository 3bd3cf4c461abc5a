"""The examples in github_sim's README are executed unchanged."""

import inspect
import re
from importlib.resources import files
from typing import Any

import pytest

from github_sim.github import GitHub
from github_sim.runner.runner import Runner

README = files("github_sim").joinpath("README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def examples() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own file
    return {name: value for name, value in names.items() if name.startswith("test_")}


EXAMPLES = examples()


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) == len(BLOCKS) - 1  # the first block is the bot
    assert all(inspect.iscoroutinefunction(example) for example in EXAMPLES.values())


def test_the_first_test_has_ten_lines() -> None:
    body = BLOCKS[1].partition("async def ")[2].strip().splitlines()
    assert len(body) <= 10


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_passes(name: str) -> None:
    await EXAMPLES[name]()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(?:github|faults|runner)\.(\w+)", README))))
def test_every_attribute_that_the_readme_names_exists(name: str) -> None:
    github = GitHub()
    assert any(hasattr(owner, name) for owner in (github, github.faults, Runner(github)))
