"""Settings of the upstreams: two variables for one, or `[[upstream]]` tables for any number.

The variables override name and allowlist of the only table. With several tables their meaning would be ambiguous, so
that is a problem.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from crcr.decide.checks.gate import EXCUSABLE
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.levels.criteria import LevelCriteria
from crcr.decide.model import RepoName, is_repo_name
from crcr.settings.readers import locations, single_values
from crcr.settings.readers.locations import AllowlistSource
from crcr.settings.setting import (
    FROZEN,
    InvalidValue,
    RawValue,
    Setting,
    describe_missing,
    read_value,
    settings_of,
    suggest_name,
)


def _repo_name(raw: RawValue) -> RepoName:
    if not isinstance(raw.value, str) or not is_repo_name(raw.value.strip()):
        raise InvalidValue(f"must be owner/repo, not {single_values.quote(raw.value)}.")
    return RepoName(raw.value.strip())


def _gate(raw: RawValue) -> str:
    if isinstance(raw.value, bool):
        return "on" if raw.value else "off"
    return single_values.one_of("auto", "on", "off")(raw)


def _excuses(raw: RawValue) -> tuple[VerdictKind, ...]:
    kinds = single_values.list_of_texts(raw)
    if kinds == ("none",):
        return ()
    unknown = [kind for kind in kinds if kind not in EXCUSABLE]
    if unknown:
        raise InvalidValue(
            f"must be none, or any of {', '.join(EXCUSABLE)}, not {single_values.quote(unknown[0])}."
        )
    return tuple(VerdictKind(kind) for kind in kinds)


def _channel_names(raw: RawValue) -> tuple[str, ...]:
    names = single_values.list_of_texts(raw)
    return () if names == ("none",) else names


def _label(raw: RawValue) -> str:
    label = single_values.text(raw).strip()
    return "" if label == "none" else label


def _on_or_off(raw: RawValue) -> str:
    if isinstance(raw.value, bool):
        return "on" if raw.value else "off"
    return single_values.one_of("on", "off")(raw)


def _level_criteria(raw: RawValue) -> LevelCriteria:
    if raw.value == "":
        return LevelCriteria()
    if not isinstance(raw.value, dict):
        raise InvalidValue("must be a table such as {pass_percent = 95}.")
    known = {field.name: field.type for field in fields(LevelCriteria)}
    for name, value in raw.value.items():
        if name not in known:
            raise InvalidValue(f"has no value {single_values.quote(name)}; {suggest_name(name, list(known))}")
        whole = known[name] is int
        if (
            isinstance(value, bool)
            or not isinstance(value, int if whole else (int, float))
            or not isfinite(value)
        ):
            raise InvalidValue(
                f"needs a {'whole ' if whole else ''}number for {name}, not {single_values.quote(value)}."
            )
    criteria = LevelCriteria(**raw.value)
    problem = next(criteria.find_problems(), None)
    if problem is not None:
        raise InvalidValue(f"cannot be used: {problem}.")
    return criteria


class UpstreamSetting(BaseModel):
    model_config = FROZEN

    name: Annotated[
        RepoName,
        Setting(
            "UPSTREAM", "upstream.name", _repo_name, "`owner/repo` whose events are relayed", required=True
        ),
    ]
    allowlist: Annotated[
        AllowlistSource,
        Setting(
            "ALLOWLIST",
            "upstream.allowlist",
            locations.allowlist_source,
            "its allowlist: a file's path, or `https://github.com/owner/repo/blob/branch/path` read with "
            "the App's token (a `/` in the branch is written `%2F`)",
            required=True,
        ),
    ]
    gate: Annotated[
        Literal["auto", "on", "off"],
        Setting(
            "",
            "upstream.gate",
            _gate,
            "whether every head gets the check `crcr/gate`; `auto`: from the first L4 entry on",
            default="auto",
        ),
    ]
    label_prefixes: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "upstream.label_prefixes",
            single_values.list_of_texts,
            "prefixes of the labels that request an L3 device",
            default="ciflow/crcr/",
        ),
    ]
    l3_conclusion: Annotated[
        Literal["neutral", "failure"],
        Setting(
            "",
            "upstream.l3_conclusion",
            single_values.one_of("neutral", "failure"),
            "how the check of a failed L3 job ends: `neutral` or `failure` (red, still not required)",
            default="neutral",
        ),
    ]
    l3_pending: Annotated[
        Literal["in_progress", "neutral"],
        Setting(
            "",
            "upstream.l3_pending",
            single_values.one_of("in_progress", "neutral"),
            "how a running L3 job is shown; `neutral` for merge tools that wait for every pending check",
            default="in_progress",
        ),
    ]
    l3_pair: Annotated[
        Literal["plain", "neutral"],
        Setting(
            "",
            "upstream.l3_pair",
            single_values.one_of("plain", "neutral"),
            "what the check of an L3 backend shows that fails alone and passes with the pull request that the change "
            "depends on: `plain`: its failure; `neutral`: that it passes with the other one, ended neutral",
            default="plain",
        ),
    ]
    job_checks: Annotated[
        Literal["failures", "all", "none"],
        Setting(
            "",
            "upstream.job_checks",
            single_values.one_of("failures", "all", "none"),
            "jobs that have a check of their own, besides their backend's: `failures`: the first 3 of a backend that "
            "fail; `all`: all of a backend with up to 20, which costs two requests to GitHub for each; `none`",
            default="failures",
        ),
    ]
    excuses: Annotated[
        tuple[VerdictKind, ...],
        Setting(
            "",
            "upstream.excuses",
            _excuses,
            "verdicts that let a failed job not block the gate, where their confidence is high: `pre-existing`, `flaky`, both "
            "in a list, or `none`; docs/upstream.md says what else an excuse needs",
            default="none",
        ),
    ]
    verdict_window_days: Annotated[
        int,
        Setting(
            "",
            "upstream.verdict_window_days",
            single_values.integer(1, 90),
            "how many days of history verdicts are judged by",
            default="14",
        ),
    ]
    verdict_passes: Annotated[
        int,
        Setting(
            "",
            "upstream.verdict_passes",
            single_values.integer(1, 100),
            "passing results without the change that make an unknown failure `new`",
            default="3",
        ),
    ]
    verdict_pulls: Annotated[
        int,
        Setting(
            "",
            "upstream.verdict_pulls",
            single_values.integer(2, 50),
            "pull requests that must fail alike to make a failure `pre-existing` where the places of their heads are unknown",
            default="3",
        ),
    ]
    verdict_authors: Annotated[
        int,
        Setting(
            "",
            "upstream.verdict_authors",
            single_values.integer(1, 50),
            "trusted authors that these pull requests must have",
            default="2",
        ),
    ]
    verdict_flips: Annotated[
        int,
        Setting(
            "",
            "upstream.verdict_flips",
            single_values.integer(1, 50),
            "how often a failure must have come and gone to be `flaky` with more than low confidence",
            default="2",
        ),
    ]
    verdict_fleet_jobs: Annotated[
        int,
        Setting(
            "",
            "upstream.verdict_fleet_jobs",
            single_values.integer(2, 1000),
            "failed jobs of a backend within 45 minutes that make it a sick fleet",
            default="4",
        ),
    ]
    verdict_fleet_heads: Annotated[
        int,
        Setting(
            "",
            "upstream.verdict_fleet_heads",
            single_values.integer(2, 100),
            "unrelated commits that these jobs must be of",
            default="3",
        ),
    ]
    verdict_fleet_percent: Annotated[
        int,
        Setting(
            "",
            "upstream.verdict_fleet_percent",
            single_values.integer(50, 100),
            "percentage of the backend's results that must have failed then",
            default="80",
        ),
    ]
    channels: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "upstream.channels",
            _channel_names,
            "names of `[[channel]]` tables that get all notices of this upstream; an allowlist entry names more with "
            "`channels`",
            default="none",
        ),
    ]
    level_criteria: Annotated[
        LevelCriteria,
        Setting(
            "",
            "upstream.level_criteria",
            _level_criteria,
            "values of the criteria of L3 that differ from the defaults of docs/levels.md, as a table: "
            "`{pass_percent = 95, leave_pass_percent = 90}`",
            default="",
        ),
    ]
    silent_mode: Annotated[
        Literal["on", "off"],
        Setting(
            "",
            "upstream.silent_mode",
            _on_or_off,
            "whether an L3 backend that fails the criteria of L3 has no checks until it recovers",
            default="on",
        ),
    ]
    l4_downgrade: Annotated[
        Literal["auto", "off"],
        Setting(
            "",
            "upstream.l4_downgrade",
            single_values.one_of("auto", "off"),
            "`auto`: an L4 backend that fails the criteria of L3 does not gate heads that arrive from then on; gates that "
            "are open keep it. `off`: it is alarmed only",
            default="off",
        ),
    ]
    breaking_label: Annotated[
        str,
        Setting(
            "",
            "upstream.breaking_label",
            _label,
            "the label of pull requests that announces a breakage to the backends that they concern; `none`: no label does",
            default="crcr/breaking",
        ),
    ]
    ignore_refs: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "upstream.ignore_refs",
            single_values.list_of_texts,
            "globs of refs whose pushes are never dispatched",
            default="refs/heads/gh/**, refs/heads/gh-readonly-queue/**",
        ),
    ]


Table = dict[str, RawValue]
"""The values of one upstream, by field."""


def read_upstreams(
    file: RawValue | None, variables: Mapping[str, RawValue], problems: list[str]
) -> tuple[UpstreamSetting, ...]:
    """Return the upstreams that could be read; `variables` is by field of `UpstreamSetting`."""
    tables = list(_tables(file, problems)) if file else []
    if len(tables) > 1 and variables:
        names = " and ".join(given.written for given in variables.values())
        problems.append(
            f"{names} can define one upstream only, but the file has {len(tables)} [[upstream]] tables; "
            "use one or the other."
        )
        return ()
    if len(tables) < 2:
        tables = [{**(tables[0] if tables else {}), **variables}]
    several = len(tables) > 1
    found = tuple(
        upstream
        for number, table in enumerate(tables, start=1)
        if (upstream := _upstream(table, problems, number=number if several else None))
    )
    _find_repeats(found, problems)
    return found


def _tables(file: RawValue, problems: list[str]) -> Iterator[Table]:
    if not isinstance(file.value, list) or not all(isinstance(table, dict) for table in file.value):
        problems.append("upstream must be written as [[upstream]] tables, each with name and allowlist.")
        return
    known = list(settings_of(UpstreamSetting))
    for number, table in enumerate(file.value, start=1):
        place = f"in [[upstream]] {number}"
        unknown = [key for key in table if key not in known]
        problems += [f"{key} {place} is not a setting; {suggest_name(key, known)}" for key in unknown]
        yield {key: RawValue(table[key], f"{key} {place}", file.folder) for key in known if key in table}


def _upstream(table: Table, problems: list[str], *, number: int | None) -> UpstreamSetting | None:
    values: dict[str, Any] = {}
    for field, row in settings_of(UpstreamSetting).items():
        given = table.get(field) or row.by_default()
        if given is None:
            problems.append(
                f"{field} is missing in [[upstream]] {number}; add it." if number else describe_missing(row)
            )
        elif (value := read_value(row, given, problems)) is not None:
            values[field] = value
    complete = len(values) == len(UpstreamSetting.model_fields)
    return UpstreamSetting(**values) if complete else None


def _find_repeats(upstreams: tuple[UpstreamSetting, ...], problems: list[str]) -> None:
    seen: set[RepoName] = set()
    for upstream in upstreams:
        if upstream.name in seen:
            problems.append(f"The upstream {upstream.name} is in two [[upstream]] tables; keep one.")
        seen.add(upstream.name)
