"""Prints how the code is laid out, in figures with a bar each: `python tools/structure.py [--list] [ROOT]`.

Reads the files under `src/` and `tests/` and imports none of them, so it works on any packages that lie there. What
is counted, and what is left out, stands at each function. Exit code 1 when a figure is over its bar.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

MOST_MODULES_IN_A_FOLDER = 16
MOST_MODULES = 620
SMALL_MODULE_LINES = 80
MOST_SMALL_MODULES_WITH_ONE_IMPORTER = 20
MOST_REPEATED_CLASS_NAMES = 20
LONG_FUNCTION_LINES = 50
LONGEST_SHOWN = 5
SHARED_PREFIX_MODULES = 3

MIGRATIONS = ("*/migrations/*",)
WIRING = ("*/wiring/*",)
REGISTRIES = (*WIRING, "*/routes.py", "*/cli/main.py", "*/cli/root.py", "*/tables.py", "*/all_tables.py")
"""Modules that import others to enter them into a table; such an import is no sign that the two belong together."""
_PROPERTIES = {"property", "cached_property"}
_KEEPS_SIGNATURE = {"override", "abstractmethod", "classmethod", "staticmethod"}
_AWAITABLE = re.compile("Awaitable|Coroutine|Future|Task|Async|Any")
_FITS_EVERYTHING = {"Any", "object", "NoReturn", "Never", "Self"}
_SAYS_LITTLE = {
    "None",
    "list",
    "tuple",
    "dict",
    "set",
    "frozenset",
    "type",
    "Sequence",
    "Mapping",
    "Iterable",
    "Iterator",
}
"""Words of an annotation that count only where it has no others."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    path: Path
    """Relative to the root of the checkout."""
    name: str
    """As it is imported."""
    tree: ast.Module
    lines: int
    is_link: bool

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def matches(self, patterns: Iterable[str]) -> bool:
        return any(fnmatch(self.path.as_posix(), pattern) for pattern in patterns)

    @property
    def only_exports(self) -> bool:
        """Whether the module is a package's `__init__` with imports, a docstring and `__all__` alone."""
        return self.is_package and not any(
            isinstance(node, Function | ast.ClassDef | ast.If | ast.For | ast.With) for node in self.tree.body
        )


@dataclass(frozen=True, slots=True)
class Import:
    module: str
    name: str | None
    """None for `import module`."""
    bound_to: str


@dataclass(frozen=True, slots=True)
class Member:
    """A method or an attribute of a class."""

    function: Function | None = None
    """Of a method whose parameters are as they are written."""
    annotation: ast.expr | None = None
    """Of an attribute."""
    is_assigned: bool = False
    """In the class body or by a decorator: this may be a method too."""


@dataclass(frozen=True, eq=False)
class ClassDefinition:
    module: Module
    node: ast.ClassDef
    own_members: dict[str, Member]
    bases: list[str]

    @property
    def is_protocol(self) -> bool:
        return any(base.rpartition(".")[2] == "Protocol" for base in self.bases)

    def __str__(self) -> str:
        return f"{self.module.path}:{self.node.lineno} {self.node.name}"


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    value: int
    most: int | None
    """The highest value that is ok; None for a figure without a bar."""
    offenders: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.most is not None and self.value > self.most

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.title:<72} {self.value:>5}"
        return (
            f"{self.title:<72} {self.value:>5}   at most {self.most:>3}   {'over' if self.is_over else 'ok'}"
        )


def read_modules(root: Path, folder: str) -> dict[str, Module]:
    """Return the modules under `root/folder` by the name that they are imported by."""
    modules = {}
    for path in sorted((root / folder).rglob("*.py")):
        parts = list(path.relative_to(root / folder).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(
            path.relative_to(root), name, ast.parse(text), len(text.splitlines()), path.is_symlink()
        )
    return modules


def imports_of(module: Module) -> Iterator[Import]:
    """Return every import of a module, also those inside functions."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for alias in node.names:
                yield Import(source, alias.name, alias.asname or alias.name)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    kept = parts[: len(parts) - node.level + int(module.is_package)]
    return ".".join([*kept, *([node.module] if node.module else [])])


class Project:
    """The modules of `src` and `tests`, with the classes in them and the imports between them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = read_modules(root, "src")
        self.tests = read_modules(root, "tests")
        in_tests = {f"tests.{name}": module for name, module in self.tests.items()}
        self._ancestors: dict[ClassDefinition, list[ClassDefinition]] = {}
        self._by_name = {**in_tests, **self.tests, **self.source}
        self._imports = {
            module.path: list(imports_of(module))
            for module in chain(self.source.values(), self.tests.values())
        }

    @cached_property
    def counted(self) -> list[Module]:
        """The modules of `src` beside `__init__`, without migrations."""
        return [each for each in self.source.values() if not each.is_package and not each.matches(MIGRATIONS)]

    def defining_module(self, source: str, name: str | None) -> Module | None:
        """Return the module that an import reaches; a package that only exports a name is looked through."""
        if name is not None and f"{source}.{name}" in self._by_name:
            return self._by_name[f"{source}.{name}"]
        module = self._by_name.get(source)
        if module is not None and module.is_package and name is not None:
            for each in self._imports[module.path]:
                if each.bound_to == name and each.module != source:
                    return self.defining_module(each.module, each.name) or module
        return module

    @cached_property
    def importers(self) -> Mapping[Path, set[Path]]:
        """For each module of `src` the modules of `src` that import it, through exporting packages too."""
        found: dict[Path, set[Path]] = defaultdict(set)
        for module in self.source.values():
            if module.only_exports:
                continue
            for each in self._imports[module.path]:
                for target in self._reached(each):
                    found[target.path].add(module.path)
        return found

    def _reached(self, imported: Import) -> Iterator[Module]:
        target = self.defining_module(imported.module, imported.name)
        if target is None:
            return
        yield target
        if target.only_exports and imported.name is None:
            for each in self._imports[target.path]:
                exported = self.defining_module(each.module, each.name)
                if exported is not None:
                    yield exported

    @cached_property
    def classes(self) -> list[ClassDefinition]:
        """Every class of `src` and `tests`, also those inside functions."""
        return [
            ClassDefinition(module, node, members_of(node), [_dotted(base) for base in node.bases])
            for module in chain(self.source.values(), self.tests.values())
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
        ]

    @cached_property
    def _classes_by_place(self) -> dict[tuple[Path, str], ClassDefinition]:
        return {(each.module.path, each.node.name): each for each in reversed(self.classes)}

    def ancestors(self, definition: ClassDefinition) -> list[ClassDefinition]:
        """Return the bases that the project defines, and theirs."""
        if definition not in self._ancestors:
            self._ancestors[definition] = []  # ends a circle of two classes with the same name
            self._ancestors[definition] = self._find_ancestors(definition)
        return self._ancestors[definition]

    def _find_ancestors(self, definition: ClassDefinition) -> list[ClassDefinition]:
        found: list[ClassDefinition] = []
        for name in definition.bases:
            base = self._base(definition.module, name)
            if base is not None and base is not definition and base not in found:
                found += [base, *(each for each in self.ancestors(base) if each not in found)]
        return found

    def _base(self, module: Module, dotted: str) -> ClassDefinition | None:
        in_module = self._classes_by_place.get((module.path, dotted))
        if in_module is not None:
            return in_module
        before, _, name = dotted.rpartition(".")
        for each in self._imports[module.path]:
            if each.bound_to == (before or name):
                wanted = (each.module, each.name) if not before else (_joined(each), name)
                target = self.defining_module(*wanted)
                found = target and self._classes_by_place.get((target.path, wanted[1] or ""))
                if found:
                    return found
        return None

    def members(self, definition: ClassDefinition) -> dict[str, Member]:
        """Return the members of a class and of its ancestors in the project."""
        inherited: dict[str, Member] = {}
        for base in reversed(self.ancestors(definition)):
            inherited |= base.own_members
        return inherited | definition.own_members


def _joined(imported: Import) -> str:
    return imported.module if imported.name is None else f"{imported.module}.{imported.name}"


def _dotted(expression: ast.expr) -> str:
    """Return a base class's name without its type arguments."""
    return ast.unparse(expression.value if isinstance(expression, ast.Subscript) else expression)


def members_of(node: ast.ClassDef) -> dict[str, Member]:
    """Return methods, properties, fields and attributes that a class defines itself, `self.x = …` included."""
    members: dict[str, Member] = {}
    for statement in node.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for name in _attributes_set_in(statement):
                    members.setdefault(name, Member())
                members[statement.name] = _member(statement)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                members[name] = Member(annotation=annotation)
            case ast.Assign(targets=targets):
                members |= {
                    each.id: Member(is_assigned=True) for each in targets if isinstance(each, ast.Name)
                }
    return members


def _member(function: Function) -> Member:
    decorators = {_dotted(each).rpartition(".")[2] for each in function.decorator_list}
    if decorators & _PROPERTIES:
        return Member(annotation=function.returns)
    return Member(function) if decorators <= _KEEPS_SIGNATURE else Member(is_assigned=True)


def _attributes_set_in(function: Function) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


@dataclass(frozen=True, slots=True)
class Signature:
    positional: list[ast.arg]
    required: list[str]
    """The positional ones without a default."""
    keywords: dict[str, bool]
    """Keyword-only parameters, and whether each is required."""
    takes_more: bool
    takes_more_keywords: bool

    @classmethod
    def of(cls, function: Function) -> "Signature":
        arguments = function.args
        is_static = any(_dotted(each) == "staticmethod" for each in function.decorator_list)
        positional = [*arguments.posonlyargs, *arguments.args][0 if is_static else 1 :]
        keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        return cls(
            positional,
            [argument.arg for argument in positional[: max(0, len(positional) - len(arguments.defaults))]],
            {argument.arg: default is None for argument, default in keywords},
            arguments.vararg is not None,
            arguments.kwarg is not None,
        )


class TypeNames:
    """Compares annotations by the names in them, with aliases and base classes of the project looked up."""

    def __init__(self, project: Project) -> None:
        self._related: dict[str, set[str]] = defaultdict(set)
        self._fits_everything = set(_FITS_EVERYTHING)
        for definition in project.classes:
            bases = {each.node.name for each in project.ancestors(definition)}
            self._related[definition.node.name] |= bases
            if definition.is_protocol:
                self._fits_everything.add(definition.node.name)
        for module in chain(project.source.values(), project.tests.values()):
            for node in module.tree.body:
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
                        if _dotted(function).endswith("TypeVar"):
                            self._fits_everything.add(name)
                    case ast.Assign(
                        targets=[ast.Name(id=name)], value=ast.BinOp() | ast.Subscript() as alias
                    ):
                        self._related[name] |= _words(alias)

    def meet(self, offered: ast.expr | None, wanted: ast.expr | None) -> bool:
        """Whether one annotation may stand for the other; a type that is not written may stand for all."""
        if offered is None or wanted is None:
            return True
        mine, theirs = self._names(offered), self._names(wanted)
        return bool(mine & theirs or (mine | theirs) & self._fits_everything)

    def _names(self, annotation: ast.expr) -> set[str]:
        words = set(_words(annotation))
        if words != {"Any"}:
            words -= {"Any"}
        words |= {related for word in words for related in self._related.get(word, ())}
        return words - _SAYS_LITTLE or words


class ProtocolMatcher:
    """Finds the classes that implement a Protocol: by inheriting from it, or by having all its members.

    A method fits when a call as the Protocol declares it would be accepted: number of parameters, keywords, async,
    and names in the annotations.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._types = TypeNames(project)
        self.protocols = [each for each in project.classes if each.is_protocol]
        self._candidates = {each: project.members(each) for each in project.classes if not each.is_protocol}
        self._callables = {"Callable"} | {each.node.name for each in self.protocols if self.is_callback(each)}

    def implementations(self, protocol: ClassDefinition) -> list[ClassDefinition]:
        """Return the classes that implement it; one that inherits all of it from another is the same implementation."""
        wanted = self._project.members(protocol)
        matching = [
            candidate
            for candidate, offered in self._candidates.items()
            if protocol in self._project.ancestors(candidate) or self._has_all(offered, wanted)
        ]
        return [
            each
            for each in matching
            if each.own_members.keys() & wanted.keys()
            or not any(base in matching for base in self._project.ancestors(each))
        ]

    def is_callback(self, protocol: ClassDefinition) -> bool:
        """Whether functions implement it: its only member is `__call__`."""
        return set(self._project.members(protocol)) == {"__call__"}

    def _has_all(self, offered: Mapping[str, Member], wanted: Mapping[str, Member]) -> bool:
        return bool(wanted) and all(
            name in offered and self._fits(offered[name], member) for name, member in wanted.items()
        )

    def _fits(self, offered: Member, wanted: Member) -> bool:
        if offered.is_assigned:
            return True
        if wanted.function is None:
            return offered.function is None and self._types.meet(offered.annotation, wanted.annotation)
        if offered.function is None:
            return offered.annotation is not None and bool(_words(offered.annotation) & self._callables)
        return (
            _awaits_alike(offered.function, wanted.function)
            and self._accepts(Signature.of(offered.function), Signature.of(wanted.function))
            and self._types.meet(offered.function.returns, wanted.function.returns)
        )

    def _accepts(self, offered: Signature, wanted: Signature) -> bool:
        names = {argument.arg for argument in offered.positional} | offered.keywords.keys()
        required = {name for name, is_required in offered.keywords.items() if is_required}
        required |= set(offered.required[len(wanted.positional) :])
        return (
            (offered.takes_more or len(wanted.positional) <= len(offered.positional))
            and (offered.takes_more_keywords or wanted.keywords.keys() <= names)
            and required <= wanted.keywords.keys()
            and all(
                self._types.meet(mine.annotation, theirs.annotation)
                for mine, theirs in zip(offered.positional, wanted.positional, strict=False)
            )
        )


@cache
def _words(annotation: ast.expr) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", ast.unparse(annotation)))


def _awaits_alike(offered: Function, wanted: Function) -> bool:
    if type(offered) is type(wanted):
        return True
    plain = offered if isinstance(offered, ast.FunctionDef) else wanted
    return plain.returns is not None and bool(_AWAITABLE.search(ast.unparse(plain.returns)))


def crowded_folders(project: Project) -> Figure:
    """Count folders of `src` and `tests` with too many modules beside `__init__`; revisions of the schema left out."""
    folders: dict[Path, int] = defaultdict(int)
    for module in chain(project.source.values(), project.tests.values()):
        if not module.is_package and not module.matches(MIGRATIONS):
            folders[module.path.parent] += 1
    crowded = {path: count for path, count in folders.items() if count > MOST_MODULES_IN_A_FOLDER}
    offenders = [f"{path}: {count}" for path, count in sorted(crowded.items(), key=lambda item: -item[1])]
    title = f"folders of src and tests with more than {MOST_MODULES_IN_A_FOLDER} modules"
    return Figure(title, len(crowded), 0, offenders)


def module_count(project: Project) -> Figure:
    """Count modules under `src` beside `__init__`, without migrations. A linked file counts."""
    packages: dict[str, int] = defaultdict(int)
    for module in project.counted:
        packages["/".join(module.path.parts[:3])] += 1
    offenders = [f"{path}: {count}" for path, count in sorted(packages.items(), key=lambda item: -item[1])]
    return Figure(
        "modules under src (beside __init__; migrations left out)",
        len(project.counted),
        MOST_MODULES,
        offenders,
    )


def small_modules_with_one_importer(project: Project) -> Figure:
    """Count small modules that a single module of `src` imports.

    Packages that only export are looked through. Left out: entry modules (`__main__`), migrations, and modules whose
    importer is a registry. A part of `wiring` is not entered into a table by another part of it.
    """
    found = _with_one_importer(project)
    offenders = [text for text, module, importer in found if not _is_registered(module, importer)]
    title = f"modules under {SMALL_MODULE_LINES} lines with a single importer (registries left out)"
    return Figure(title, len(offenders), MOST_SMALL_MODULES_WITH_ONE_IMPORTER, offenders)


def registered_small_modules(project: Project) -> Figure:
    """Count the small modules with one importer that were left out because the importer is a registry."""
    found = _with_one_importer(project)
    offenders = [text for text, module, importer in found if _is_registered(module, importer)]
    title = f"modules under {SMALL_MODULE_LINES} lines that only a registry imports"
    return Figure(title, len(offenders), None, offenders)


def _is_registered(module: Module, importer: Module) -> bool:
    return importer.matches(REGISTRIES) and not module.matches(WIRING)


def _with_one_importer(project: Project) -> Iterator[tuple[str, Module, Module]]:
    paths = {module.path: module for module in project.source.values()}
    for module in project.counted:
        importers = project.importers.get(module.path, set()) - {module.path}
        if module.lines < SMALL_MODULE_LINES and module.path.stem != "__main__" and len(importers) == 1:
            [importer] = importers
            yield f"{module.path} ({module.lines} lines): only {importer}", module, paths[importer]


def repeated_class_names(project: Project) -> Figure:
    """Count names of public top-level classes that more than one module under `src` defines.

    A linked file is left out: it is shipped as text (the reporter), runs alone, and nothing imports its classes.
    """
    places: dict[str, list[Path]] = defaultdict(list)
    for module in project.counted:
        if module.is_link:
            continue
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.path)
    repeated = {name: paths for name, paths in places.items() if len(set(paths)) > 1}
    ordered = sorted(repeated.items(), key=lambda item: (-len(item[1]), item[0]))
    offenders = [f"{name}: {', '.join(map(str, paths))}" for name, paths in ordered]
    title = "public class names that more than one module under src defines"
    return Figure(title, len(repeated), MOST_REPEATED_CLASS_NAMES, offenders)


def one_sided_protocols(project: Project) -> Figure:
    """Count Protocols of `src` with fewer than two implementing classes in `src` and `tests` together.

    Callback types, whose only member is `__call__`, are left out: any function implements them. Doubles that are no
    class with all the members (`SimpleNamespace`, `__getattr__`) are not seen.
    """
    one_sided = {protocol: found for protocol, found in _sides(project).items() if len(found) < 2}
    offenders = [
        f"{protocol}: {found[0] if found else 'no class has all its members'}"
        for protocol, found in one_sided.items()
    ]
    return Figure("Protocols with one side (callback types left out)", len(offenders), 0, offenders)


def two_sided_protocols(project: Project) -> Figure:
    """Count the other Protocols; their implementations are named, because names and signatures may agree by chance."""
    two_sided = {protocol: found for protocol, found in _sides(project).items() if len(found) >= 2}
    offenders = [f"{protocol}: {', '.join(map(str, found))}" for protocol, found in two_sided.items()]
    return Figure("Protocols with two sides", len(offenders), None, offenders)


@cache
def _sides(project: Project) -> dict[ClassDefinition, list[ClassDefinition]]:
    """Return the Protocols of `src` with the classes that implement each, callback types left out."""
    matcher = ProtocolMatcher(project)
    in_source = {module.path for module in project.source.values()}
    return {
        protocol: matcher.implementations(protocol)
        for protocol in matcher.protocols
        if protocol.module.path in in_source and not matcher.is_callback(protocol)
    }


def long_functions(project: Project) -> Figure:
    found = [
        (node.end_lineno - node.lineno + 1, f"{module.path}:{node.lineno} {node.name}")
        for module in project.counted
        if not module.is_link
        for node in ast.walk(module.tree)
        if isinstance(node, Function) and node.end_lineno is not None
    ]
    long = sorted((each for each in found if each[0] > LONG_FUNCTION_LINES), reverse=True)
    offenders = [f"{name}: {lines} lines" for lines, name in long]
    return Figure(f"functions under src over {LONG_FUNCTION_LINES} lines", len(long), None, offenders)


def shared_prefixes(project: Project) -> Figure:
    """Count modules of `src` whose first word is that of two other modules in the folder: a package in disguise."""
    groups: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for module in project.counted:
        groups[module.path.parent, module.path.stem.lstrip("_").partition("_")[0]].append(module.path.stem)
    shared = {place: stems for place, stems in groups.items() if len(stems) >= SHARED_PREFIX_MODULES}
    offenders = [f"{folder}/{word}*: {', '.join(stems)}" for (folder, word), stems in sorted(shared.items())]
    count = sum(len(stems) for stems in shared.values())
    return Figure("modules that share the first word of their name with two others", count, None, offenders)


def longest_modules(project: Project) -> Figure:
    ours = (module for module in project.counted if not module.is_link)
    longest = sorted(ours, key=lambda module: -module.lines)[:LONGEST_SHOWN]
    offenders = [f"{module.path}: {module.lines} lines" for module in longest]
    return Figure(
        "lines of the longest module under src", longest[0].lines if longest else 0, None, offenders
    )


FIGURES: tuple[Callable[[Project], Figure], ...] = (
    crowded_folders,
    module_count,
    small_modules_with_one_importer,
    repeated_class_names,
    one_sided_protocols,
)
INFORMATION: tuple[Callable[[Project], Figure], ...] = (
    registered_small_modules,
    two_sided_protocols,
    long_functions,
    shared_prefixes,
    longest_modules,
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print the figures of the code's layout with their bars.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="the checkout (default: here)")
    parser.add_argument("--list", action="store_true", help="name what each figure counts")
    options = parser.parse_args(arguments)
    project = Project(options.root)
    figures = [measure(project) for measure in FIGURES]
    for figure in [*figures, *(measure(project) for measure in INFORMATION)]:
        sys.stdout.write(f"{figure}\n")
        if options.list or figure.title.startswith("lines of the longest"):
            sys.stdout.writelines(f"    {offender}\n" for offender in figure.offenders)
    return int(any(figure.is_over for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
