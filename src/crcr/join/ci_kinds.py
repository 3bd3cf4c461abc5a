"""The CIs that a downstream may use, and the values that locate a build there."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Ci(StrEnum):
    GITHUB = "github"
    BUILDKITE = "buildkite"
    GITLAB = "gitlab"
    CIRCLECI = "circleci"

    @property
    def title(self) -> str:  # type: ignore[override]  # str.title is of no use for a name
        return _TITLES[self]


_TITLES = {
    Ci.GITHUB: "GitHub Actions",
    Ci.BUILDKITE: "Buildkite",
    Ci.GITLAB: "GitLab CI",
    Ci.CIRCLECI: "CircleCI",
}


@dataclass(frozen=True, slots=True)
class LocationPart:
    """One value that locates a build at another CI, or identifies its reporter."""

    name: str
    meaning: str
    form: str
    required: bool = False
    default: str | None = None


_SLUG = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

CI_LOCATION_PARTS: Mapping[Ci, tuple[LocationPart, ...]] = MappingProxyType(
    {
        Ci.GITHUB: (),
        Ci.BUILDKITE: (
            LocationPart("organization", "the organisation's slug", _SLUG, required=True),
            LocationPart("pipeline", "the pipeline's slug", _SLUG, required=True),
            LocationPart("organization_id", "the organisation's id", _UUID),
            LocationPart("pipeline_id", "the pipeline's id", _UUID),
        ),
        Ci.GITLAB: (
            LocationPart("project_id", "the project's number", r"[1-9][0-9]{0,17}", required=True),
            LocationPart("url", "the instance's URL", r"https?://.+", default="https://gitlab.com"),
        ),
        Ci.CIRCLECI: (
            LocationPart(
                "project",
                "the project's slug, such as gh/org/repo",
                rf"{_SLUG}/{_SLUG}/{_SLUG}",
                required=True,
            ),
            LocationPart("definition_id", "the pipeline definition's id", _UUID),
            LocationPart("organization_id", "the organisation's id", _UUID),
            LocationPart("project_id", "the project's id", _UUID),
            LocationPart("context_id", "the id of the context `crcr`", _UUID),
        ),
    }
)
"""The keys of `JoinRequest.place` per CI. The operator's registration needs the ids; they may follow later."""
