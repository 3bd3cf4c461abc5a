"""The counting of `tools/structure.py`, on made-up packages."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tools.structure import (
    FIGURES,
    MOST_MODULES,
    MOST_MODULES_IN_A_FOLDER,
    MOST_REPEATED_CLASS_NAMES,
    MOST_SMALL_MODULES_WITH_ONE_IMPORTER,
    Figure,
    Project,
    crowded_folders,
    main,
    module_count,
    one_sided_protocols,
    repeated_class_names,
    small_modules_with_one_importer,
)

PORT = """
from typing import Protocol

class Store(Protocol):
    async def save(self, key: str, *, force: bool) -> None: ...
"""
IMPLEMENTATION = """
class {name}:
    async def save(self, key: str, *, force: bool = False) -> None: ...
"""


def write(root: Path, files: Mapping[str, str]) -> Project:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Project(root)


def numbered(pattern: str, count: int) -> dict[str, str]:
    """`count` empty modules, ten to a folder where the pattern has one."""
    return {pattern.format(folder=number // 10, number=number): "" for number in range(count)}


def small_modules(count: int) -> dict[str, str]:
    """Small modules that one other imports, through a package that only exports them."""
    names = range(count)
    return {
        **numbered("src/app/part{folder}/m{number}.py", count),
        "src/app/__init__.py": "".join(f"from app.part{n // 10}.m{n} import f as f{n}\n" for n in names),
        "src/other/user.py": "".join(f"from app import f{n}\n" for n in names),
    }


def repeated_names(count: int) -> dict[str, str]:
    text = "".join(f"class Name{number}: ...\n" for number in range(count))
    return {"src/app/a.py": text, "src/sim/b.py": text}


@pytest.mark.parametrize(
    ("measure", "files_for", "most"),
    [
        (crowded_folders, lambda n: numbered("tests/unit/test_{number}.py", n), MOST_MODULES_IN_A_FOLDER),
        (module_count, lambda n: numbered("src/app/part{folder}/m{number}.py", n), MOST_MODULES),
        (small_modules_with_one_importer, small_modules, MOST_SMALL_MODULES_WITH_ONE_IMPORTER),
        (repeated_class_names, repeated_names, MOST_REPEATED_CLASS_NAMES),
    ],
)
def test_a_figure_is_ok_at_its_limit_and_over_it_with_one_more(
    tmp_path: Path,
    measure: Callable[[Project], Figure],
    files_for: Callable[[int], dict[str, str]],
    most: int,
) -> None:
    assert not measure(write(tmp_path / "at", files_for(most))).is_over
    over = measure(write(tmp_path / "over", files_for(most + 1)))
    assert over.is_over
    assert over.offenders


def test_packages_and_migrations_are_not_counted_as_modules(tmp_path: Path) -> None:
    project = write(
        tmp_path,
        {"src/app/__init__.py": "", "src/app/one.py": "", "src/app/migrations/versions/v1.py": ""}
        | numbered("src/app/migrations/versions/v{number}.py", MOST_MODULES_IN_A_FOLDER + 1),
    )
    assert module_count(project).value == 1
    assert crowded_folders(project).value == 0


def test_a_second_importer_a_registry_or_eighty_lines_exempt_a_module(tmp_path: Path) -> None:
    project = write(
        tmp_path,
        {
            "src/app/alone.py": "",
            "src/app/long.py": "\n" * 80,
            "src/app/shared.py": "",
            "src/app/listed.py": "",
            "src/app/user.py": "from . import alone, long, shared",
            "src/app/second.py": "def late() -> None:\n    from app.shared import thing",
            "src/app/wiring/parts.py": "import app.listed",
        },
    )
    [offender] = small_modules_with_one_importer(project).offenders
    assert offender.startswith("src/app/alone.py")


def test_private_and_inner_classes_may_have_the_same_name(tmp_path: Path) -> None:
    text = "class _Row: ...\nclass {name}:\n    class Inner: ...\n"
    project = write(tmp_path, {f"src/app/{name}.py": text.format(name=name) for name in ("A", "B")})
    assert repeated_class_names(project).value == 0


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("", 1),
        (IMPLEMENTATION.format(name="Memory"), 0),
        ("class Memory:\n    async def save(self, *arguments: object, **options: object) -> None: ...", 0),
        ("from app.port import Store\nclass Memory(Store): ...", 0),
        ("from app.sql import SqlStore\nclass Memory(SqlStore): ...", 1),
        ("class Memory:\n    save: bool = True", 1),
        ("class Memory:\n    def save(self, key: str, *, force: bool) -> None: ...", 1),
        ("class Memory:\n    async def save(self, key: str, place: str, *, force: bool) -> None: ...", 1),
        ("class Memory:\n    async def save(self, key: int, *, force: bool) -> None: ...", 1),
    ],
)
def test_a_protocol_is_two_sided_when_a_second_class_implements_it(
    tmp_path: Path, second: str, expected: int
) -> None:
    project = write(
        tmp_path,
        {
            "src/app/port.py": PORT,
            "src/app/sql.py": IMPLEMENTATION.format(name="SqlStore"),
            "tests/support/doubles.py": second,
        },
    )
    assert one_sided_protocols(project).value == expected


def test_a_protocol_requires_the_members_of_the_protocols_it_extends(tmp_path: Path) -> None:
    wide = "from app.port import Store\n\nclass Wide(Store, Protocol[T]):\n    size: int\n"
    project = write(
        tmp_path,
        {
            "src/app/port.py": PORT,
            "src/app/wide.py": f"from typing import Protocol, TypeVar\n{wide}",
            "src/app/a.py": IMPLEMENTATION.format(name="A")
            + "\n    def __init__(self) -> None:\n        self.size = 1",
            "src/app/b.py": IMPLEMENTATION.format(name="B"),
        },
    )
    [offender] = one_sided_protocols(project).offenders
    assert offender == "src/app/wide.py:4 Wide: src/app/a.py:2 A"


def test_a_callback_type_needs_no_second_class(tmp_path: Path) -> None:
    text = "from typing import Protocol\nclass Say(Protocol):\n    def __call__(self, text: str) -> None: ..."
    assert one_sided_protocols(write(tmp_path, {"src/app/say.py": text})).value == 0


def test_the_script_fails_when_a_figure_is_over_and_names_what_it_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"src/app/one.py": ""})
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.count(" ok\n") == len(FIGURES)
    write(tmp_path, {"src/app/port.py": PORT})
    assert main([str(tmp_path), "--list"]) == 1
    assert "src/app/port.py:4 Store: no class has all its members" in capsys.readouterr().out
