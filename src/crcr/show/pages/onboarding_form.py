"""The form of the onboarding page: the values of its address, the problem of each field, and the request they make.

Values are kept as typed, right or wrong. Each field is checked by putting it alone into a valid request, so that the
generator's own rules apply and their message appears next to the field.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crcr.decide.model import Level, RepoName, is_repo_name
from crcr.join.request import CI_LOCATION_PARTS, Ci, JoinRequest, check_request
from crcr.show.render.status import LEVELS

EXAMPLE = RepoName("your-org/your-repo")
"""The placeholder in files while the form has no repository."""
_PLACE_EXAMPLES = {
    "organization": "your-org",
    "pipeline": "your-pipeline",
    "project": "gh/your-org/your-repo",
    "project_id": "12345678",
}
_LONGEST = 2_000
_YES = frozenset({"1", "on", "true", "yes"})
_TYPED: Mapping[str, tuple[str, str]] = {
    "device": ("Device", "L3 only: makes the label that asks for your checks"),
    "oncalls": ("On-calls", "logins or org/team, with commas; L4 needs one"),
    "command": ("Build command", "gets the upstream's commit in its environment"),
    "job_name": ("Job name", "how its results are called on the pages"),
    "junit": ("JUnit files", "a pattern; tests are counted from them"),
    "runs_on": ("Runner", "a label, or several with commas"),
    "branch": ("Default branch", ""),
}
"""Fields beside repository and place: label and hint."""
_EXAMPLES = {"device": "npu", "oncalls": "alice, your-org/ci", "junit": "reports/**/*.xml"}
_OPTIONAL = frozenset({"device", "junit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A text field."""

    name: str
    label: str
    text: str
    example: str = ""
    hint: str = ""
    problem: str | None = None
    later: bool = False
    """It can be filled in later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormChoice:
    """A choice among a few values."""

    name: str
    label: str
    choices: Mapping[str, str]
    chosen: str
    hint: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnboardingForm:
    ci: FormChoice
    own: tuple[FormField, ...]
    level: FormChoice
    people: tuple[FormField, ...]
    work: tuple[FormField, ...]
    nightly: bool
    chosen_ci: Ci
    chosen_level: Level
    repository: RepoName | None
    """The repository that was entered, if it is a valid name."""
    request: JoinRequest | None
    """None while a field is invalid."""
    others: tuple[str, ...] = ()
    """Problems that belong to no single field."""

    @property
    def has_examples(self) -> bool:
        """Whether the request has placeholders for required fields that are empty."""
        required = {part.name for part in CI_LOCATION_PARTS[self.chosen_ci] if part.required} | {"repository"}
        return any(not entry.text for entry in self.own if entry.name in required)


def read_form_values(query: Mapping[str, str], plain: JoinRequest) -> OnboardingForm:
    """`plain` holds what the relay provides: upstream, addresses, audience."""
    ci, level = _parse_ci(query), _parse_level(query)
    nightly = query.get("nightly", "").lower() in _YES
    text = {name: value.strip()[:_LONGEST] for name, value in query.items()}
    good = _make_valid_request(replace(plain, nightly=nightly), ci or plain.ci, level or plain.level)
    example_problems = set(check_request(good))
    own = tuple(_make_own_fields(text, good, example_problems))
    typed = {name: _make_typed_field(name, text.get(name, ""), good, example_problems) for name in _TYPED}
    request, others = _build_request(good, (*own, *typed.values()), example_problems)
    repository = text.get("repository", "")
    return OnboardingForm(
        ci=_make_ci_choice(ci, good.ci),
        own=own,
        level=_make_level_choice(level, good.level),
        people=(typed["device"], typed["oncalls"]),
        work=tuple(entry for name, entry in typed.items() if name not in {"device", "oncalls"}),
        nightly=nightly,
        chosen_ci=good.ci,
        chosen_level=good.level,
        repository=RepoName(repository) if is_repo_name(repository) else None,
        request=request if ci and level else None,
        others=others,
    )


def _parse_ci(query: Mapping[str, str]) -> Ci | None:
    """Return None for an unknown CI; GitHub Actions by default."""
    text = query.get("ci", "").strip().lower()
    return next((ci for ci in Ci if ci.value == text), None) if text else Ci.GITHUB


def _parse_level(query: Mapping[str, str]) -> Level | None:
    text = query.get("level", "").strip().upper()
    return next((level for level in Level if level.name == text), None) if text else Level.L2


def _make_ci_choice(chosen: Ci | None, instead: Ci) -> FormChoice:
    return FormChoice(
        name="ci",
        label="CI",
        choices={ci.value: ci.title for ci in Ci},
        chosen=(chosen or instead).value,
        problem=None if chosen else "choose one of these",
    )


def _make_level_choice(chosen: Level | None, instead: Level) -> FormChoice:
    return FormChoice(
        name="level",
        label="Level",
        choices={level.name: f"{level.name} {LEVELS[level]}" for level in Level},
        chosen=(chosen or instead).name,
        problem=None if chosen else "choose one of these",
    )


def _make_valid_request(plain: JoinRequest, ci: Ci, level: Level) -> JoinRequest:
    """Return a valid request for this CI and level, with examples in all required fields."""
    place = {part.name: _PLACE_EXAMPLES[part.name] for part in CI_LOCATION_PARTS[ci] if part.required}
    return replace(
        plain,
        ci=ci,
        level=level,
        repository=EXAMPLE,
        place=place,
        device="npu" if level is Level.L3 else None,
        oncalls=("alice",) if level is Level.L4 else (),
    )


def _make_own_fields(
    text: Mapping[str, str], good: JoinRequest, example_problems: set[str]
) -> Iterator[FormField]:
    repository = text.get("repository", "")
    is_name = is_repo_name(repository)
    problems = _find_problems(good, example_problems, repository=RepoName(repository)) if is_name else ()
    wrong = "write owner/name, as on GitHub" if repository and not is_name else None
    yield FormField(
        name="repository",
        label="Your repository",
        text=repository,
        example=EXAMPLE.full_name,
        problem=wrong or _first_or_none(problems),
    )
    for part in CI_LOCATION_PARTS[good.ci]:
        value, needed = text.get(part.name, ""), part.required or part.default is not None
        problems = (
            _find_problems(good, example_problems, place={**good.place, part.name: value}) if value else ()
        )
        yield FormField(
            name=part.name,
            label=_capitalize(part.meaning.removeprefix("the ")),
            text=value,
            example=part.default or _PLACE_EXAMPLES.get(part.name, "") if needed else "",
            later=not needed,
            problem=_first_or_none(problems),
        )


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _make_typed_field(name: str, text: str, good: JoinRequest, example_problems: set[str]) -> FormField:
    label, hint = _TYPED[name]
    default = getattr(good, name)
    return FormField(
        name=name,
        label=label,
        text=text,
        example=_EXAMPLES.get(name) or str(default),
        hint=hint,
        problem=_first_or_none(
            _find_problems(good, example_problems, **{name: _parse_value(name, text, default)})
        ),
    )


def _parse_value(name: str, text: str, default: Any) -> Any:
    if name == "oncalls":
        return tuple(part for part in text.replace(",", " ").split() if part)
    if name in _OPTIONAL:
        return text or None
    return text or default


def _find_problems(good: JoinRequest, example_problems: set[str], **changes: Any) -> tuple[str, ...]:
    return tuple(
        problem for problem in check_request(replace(good, **changes)) if problem not in example_problems
    )


def _first_or_none(problems: tuple[str, ...]) -> str | None:
    return problems[0] if problems else None


def _build_request(
    good: JoinRequest, entries: tuple[FormField, ...], example_problems: set[str]
) -> tuple[JoinRequest | None, tuple[str, ...]]:
    """All fields together, unless one of them is wrong; and what is wrong whatever the fields say."""
    if any(entry.problem for entry in entries):
        return None, tuple(sorted(example_problems))
    texts = {entry.name: entry.text for entry in entries}
    place = {
        part.name: texts[part.name] or good.place.get(part.name, "") for part in CI_LOCATION_PARTS[good.ci]
    }
    request = replace(
        good,
        repository=RepoName(texts["repository"]) if texts["repository"] else good.repository,
        place={name: value for name, value in place.items() if value},
        **{name: _parse_value(name, texts[name], getattr(good, name)) for name in _TYPED},
    )
    problems = check_request(request)
    return (None, problems) if problems else (request, ())
