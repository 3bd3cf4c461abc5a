"""Registrations: which pipeline of another CI reports for which repository, and the claims that its token must have.

GitHub signs a repository's ids into its tokens; other CIs sign ids of their own, and most of them issue tokens to
builds of forks too. A registration therefore names the pipeline by its ids and, where forks could report, the allowed
branches. A missing claim never matches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import IssuerKind

CIRCLE = "oidc.circleci.com/"
_LISTS = frozenset({f"{CIRCLE}context-ids"})


@dataclass(frozen=True, slots=True)
class KindRules:
    """The claims that a kind of issuer signs about a pipeline, by the names that operators write."""

    ids: tuple[tuple[str, ...], ...]
    """Sets of claim names that identify a pipeline, the best first; empty: any claims, named by the operator."""
    prefix: str = ""
    """The prefix of those names in the token."""
    branch: str | None = None
    """The claim with the branch."""
    branch_form: str = "{}"
    branches_needed: bool = False
    """Whether builds of forks get tokens that differ only in the branch."""
    always: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    any_step: bool = False
    """Whether every step of a build can request a token."""
    wise: str = ""
    """Further recommended claims that exclude what branches do not, in the operator's syntax."""
    ask: str = ""
    """How a job requests a token with all of these claims."""

    def claim(self, name: str) -> str:
        return self.prefix + name.replace("_", "-") if self.prefix else name


RULES: Mapping[IssuerKind, KindRules] = MappingProxyType(
    {
        IssuerKind.BUILDKITE: KindRules(
            ids=(("organization_id", "pipeline_id"), ("organization_slug", "pipeline_slug")),
            branch="build_branch",
            branches_needed=True,
            any_step=True,
            # Branches of forks keep their own names unless the pipeline is configured to prefix them.
            wise='claims = {build_source = ["api", "ui"], step_key = ["crcr-started", "crcr-finished"]}',
            ask="buildkite-agent oidc request-token --audience … --claim organization_id,pipeline_id",
        ),
        IssuerKind.GITLAB: KindRules(
            ids=(("project_id",),),
            branch="ref",
            # Merge requests of forks run on unprotected refs.
            always={"ref_protected": ("true",)},
            wise='claims = {pipeline_source = ["trigger"]}',
            ask="declare `id_tokens` in the reporting job",
        ),
        IssuerKind.CIRCLECI: KindRules(
            ids=(("project_id",),),
            prefix=CIRCLE,
            branch=f"{CIRCLE}vcs-ref",
            any_step=True,
            wise='claims = {"oidc.circleci.com/context-ids" = ["the context of the reporting jobs"]}',
            branch_form="refs/heads/{}",
            branches_needed=True,
            ask='circleci run oidc get --claims \'{"aud": "…"}\'',
        ),
        IssuerKind.GENERIC: KindRules(ids=(), ask="ask the issuer for a token with these claims"),
    }
)
"""The kinds that need a registration. Tokens of other kinds name their repository themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    issuer: str
    kind: IssuerKind
    repository: RepoName
    ids: Mapping[str, str]
    """The claims that identify the pipeline, with their values."""
    required: Mapping[str, tuple[str, ...]]
    """Further claims that must have one of these values."""
    further: bool = False
    """Whether the operator requires claims beyond those that the kind needs."""

    @property
    def tells_steps_apart(self) -> bool:
        """Whether it requires more than a branch, where any step of a build can get a token."""
        return not RULES[self.kind].any_step or self.further

    @property
    def by_slugs(self) -> bool:
        """Whether it uses names, which can be released and taken by somebody else."""
        return any(name.endswith("_slug") for name in self.ids)


def make_registration(
    *,
    issuer: str,
    kind: IssuerKind,
    repository: RepoName,
    ids: Mapping[str, str],
    branches: Iterable[str] = (),
    claims: Mapping[str, tuple[str, ...]] | None = None,
) -> Registration:
    """Build a registration from the operator's settings; the `ValueError` says what is missing."""
    rules = RULES.get(kind)
    if rules is None:
        raise ValueError("needs no registration: tokens of GitHub name their repository")
    _check_ids(rules, ids)
    allowed = tuple(branches)
    if rules.branches_needed and not allowed:
        raise ValueError('needs branches, such as ["main"]: builds of forks can get tokens too')
    if allowed and rules.branch is None:
        raise ValueError("cannot have branches: name the claim that holds them under claims")
    further = dict(claims or {})
    guards = {*rules.always, *([rules.branch] if allowed and rules.branch else [])}
    if guards & set(further):
        raise ValueError(
            f"cannot say {', '.join(sorted(guards & set(further)))} under claims: it is required already"
        )
    required: dict[str, tuple[str, ...]] = dict(rules.always)
    if allowed and rules.branch is not None:
        required[rules.branch] = tuple(rules.branch_form.format(branch) for branch in allowed)
    if kind is IssuerKind.CIRCLECI:
        # A pipeline for a fork's change has the project's id and the fork's origin.
        required[f"{CIRCLE}vcs-origin"] = (f"github.com/{repository}",)
    return Registration(
        issuer=issuer,
        kind=kind,
        repository=repository,
        ids={rules.claim(name): value for name, value in ids.items()},
        required=required | further,
        further=bool(further),
    )


def _check_ids(rules: KindRules, ids: Mapping[str, str]) -> None:
    if not rules.ids:
        if not ids:
            raise ValueError('needs ids, such as {project = "42"}: the claims that tell the pipeline')
        return
    if not any(set(ids) == set(names) for names in rules.ids):
        raise ValueError(f"needs {' or '.join(' and '.join(names) for names in rules.ids)}")


def claim_text(value: object) -> str | None:
    """Return a claim's value as text: some issuers sign numbers and booleans. None for other types."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return value if isinstance(value, str) and value else None


def _claim_texts(name: str, value: object) -> tuple[str, ...]:
    """Return a claim's values: several only for claims that are known to be lists."""
    values = value if name in _LISTS and isinstance(value, list) else [value]
    return tuple(text for text in map(claim_text, values) if text is not None)


def find_registration(
    registrations: Iterable[Registration], claims: Mapping[str, object]
) -> Registration | None:
    """Return the registration whose ids are all in the claims."""
    for registration in registrations:
        if all(claim_text(claims.get(name)) == value for name, value in registration.ids.items()):
            return registration
    return None


def unmet_requirement(registration: Registration, claims: Mapping[str, object]) -> str | None:
    """Return the first requirement that a registered pipeline's token does not meet, as text."""
    for name, allowed in registration.required.items():
        claimed = _claim_texts(name, claims.get(name))
        if not set(claimed) & set(allowed):
            expected = " or ".join(allowed)
            return (
                f"the claim {name!r} is {_quote_claim(', '.join(claimed) or None)}; registered for {expected}"
            )
    if registration.kind is IssuerKind.GITLAB:
        ran_in = claim_text(claims.get("job_project_id"))
        if ran_in is not None and ran_in != registration.ids["project_id"]:
            return (
                f"the job ran in project {_quote_claim(ran_in)} (`job_project_id`), not in the registered one"
            )
    if registration.kind is IssuerKind.CIRCLECI and claim_text(claims.get(f"{CIRCLE}ssh-rerun")) == "true":
        return "the job was started again with SSH, so a person could have spoken for it"
    return None


def registration_example(kind: IssuerKind, issuer: str, claims: Mapping[str, object]) -> str:
    """Return the settings that an operator would add for a pipeline, as far as its token contains them."""
    rules = RULES[kind]
    names = rules.ids[0] if rules.ids else ()
    values = {name: claim_text(claims.get(rules.claim(name))) for name in names}
    if any(value is None for value in values.values()) and len(rules.ids) > 1:
        values = {name: claim_text(claims.get(rules.claim(name))) for name in rules.ids[1]}
    parts = [f"{name} = {_toml_string(value)}" for name, value in values.items()] or [
        'ids = {claim = "value"}'
    ]
    if rules.branches_needed:
        parts.append('branches = ["main"]')
    if rules.wise:
        parts.append(rules.wise)
    return "; ".join(
        ["[[oidc.registration]]", f"issuer = {_toml_string(issuer)}", *parts, 'repository = "owner/name"']
    )


def missing_claims(kind: IssuerKind, claims: Mapping[str, object]) -> tuple[str, ...]:
    """Return the claims of the best id set that the token lacks."""
    rules = RULES[kind]
    required = [rules.claim(name) for name in (rules.ids[0] if rules.ids else ())]
    return tuple(name for name in required if claim_text(claims.get(name)) is None)


def _quote_claim(value: str | None) -> str:
    return "missing" if value is None else ascii(value)[:100]


def _toml_string(value: str | None) -> str:
    return '"…"' if value is None else '"' + ascii(value)[1:-1][:100].replace('"', "'") + '"'
