"""The JSON API's answers about refused reports and the sandbox, made from the views."""

from datetime import datetime

from pydantic import ConfigDict, Field, computed_field

from crcr.decide.model import Conclusion, JobState
from crcr.show.api.models import examples
from crcr.show.api.models.core import FailedTest, Model, Name, Next
from crcr.show.render.status import refusal_meaning


class Refusal(Model):
    """A report that was not taken. What it named (`delivery`, `run_id`, …) is its own word, and null where its body was not read."""

    refusal_id: int
    at: datetime
    code: str = Field(description="As it was answered; the protocol's table of errors has all of them.")
    detail: str
    hint: str | None = Field(description="What to do about it.")
    delivery: str | None
    delivery_known: bool = Field(description="Whether there is such a delivery.")
    run_id: str | None
    workflow_name: str | None
    job_name: str | None
    settled: bool = Field(description="Whether the same job's result was taken since: nothing is left to do.")

    @computed_field(description="The code in words.")  # type: ignore[prop-decorator]
    @property
    def meaning(self) -> str:
        return refusal_meaning(self.code)


class Refusals(Model):
    """A backend's refused reports of the last 14 days, newest first, 50 at most."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.REFUSALS]})

    upstream: Name
    backend: Name
    refusals: list[Refusal]


class SandboxJob(Model):
    repository_id: int
    repository: str | None = Field(description="Null where the repository is private; administrators see it.")
    private: bool
    event_type: str
    workflow_name: str | None = Field(description="Null as `repository` is.")
    run_id: str
    attempt: int
    job_name: str | None = Field(description="Null as `repository` is.")
    state: JobState
    conclusion: Conclusion | None
    late: bool
    started_at: datetime
    completed_at: datetime | None
    reported_at: datetime
    tests_passed: int | None
    tests_failed: int | None
    tests_skipped: int | None
    tests_total: int | None
    failed_tests: list[FailedTest]
    failed_tests_more: int = Field(description="Failed tests beyond the ones listed.")


class Sandbox(Model):
    """Reports of repositories that are on no allowlist. Nobody has checked them, they decide nothing, and they go after 48 hours."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.SANDBOX]})

    jobs: list[SandboxJob]
    next: Next
