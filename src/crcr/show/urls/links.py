"""The address of a page with what a reader chose on it: links change one choice and keep the others."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from crcr.decide.views.overview import JobView
from crcr.show.urls.job_tokens import token_of_job
from crcr.show.urls.location import Here

JOB = "job"
"""Which job's details are open."""


def formats(
    here: Here, api: str, chosen: Mapping[str, str] | None = None, *, csv: str = ""
) -> dict[str, str]:
    """Where the same view is to be had as data, from its beginning on; `csv` where it has another name there."""
    kept = {name: value for name, value in (chosen or {}).items() if name != "after"}
    return {
        "JSON": here.url(f"/api/v1/{api}", **kept),
        "CSV": here.url(f"/api/v1/{csv or api}.csv", **kept),
    }


@dataclass(frozen=True, slots=True)
class Links:
    here: Here
    kept: Mapping[str, str]
    shared: bool = False
    """Whether jobs of several backends stand on the page, so that a job's link must name its own."""

    def url(self, **changes: str | None) -> str:
        """The page with some choices changed; None takes one back."""
        chosen = {**self.kept, **changes}
        return self.here.url(**{name: value for name, value in chosen.items() if value})

    def query(self, **changes: str | None) -> str:
        """The same as `url` without the path, to be short where there are thousands of them."""
        return f"?{self.url(**changes).partition('?')[2]}"

    def job(self, job: JobView) -> str | None:
        """The page with this job's details open."""
        token = token_of_job(job, shared=self.shared)
        return self.query(**{JOB: token}) if token else None

    def before(self, name: str) -> str:
        """What stands before the value of one choice in a link, where many links differ in that one only."""
        kept = self.query(**{name: None})
        return f"{kept}&{name}=" if kept != "?" else f"?{name}="

    def fields(self, *shown: str) -> tuple[tuple[str, str], ...]:
        """Hidden fields for a form that shows the fields `shown` itself."""
        left_out = {*shown, JOB, "after"}
        url = self.url(**dict.fromkeys(left_out))
        return tuple(parse_qsl(url.partition("?")[2], keep_blank_values=True))
