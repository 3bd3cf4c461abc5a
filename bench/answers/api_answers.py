"""The relay's answers about a pull request, read from its JSON API."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = Mapping[str, Any]
NO_VERDICT = "none"


@dataclass(frozen=True, slots=True)
class Answer:
    kind: str = NO_VERDICT
    confidence: str = ""
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Failures that the relay calls alike."""

    fingerprint: str
    members: frozenset[tuple[str, str]]
    """Backends and jobs."""


@dataclass(slots=True)
class PullAnswers:
    jobs: dict[tuple[str, str], Answer] = field(default_factory=dict)
    failed: set[tuple[str, str, int]] = field(default_factory=set)
    """Backend, job and attempt of the jobs that count as failed."""
    tests: dict[tuple[str, str, str], Answer] = field(default_factory=dict)
    backends: dict[str, Answer] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)

    def shows(self, backend: str, job: str, attempt: int) -> bool:
        return (backend, job, attempt) in self.failed

    def about(self, backend: str, job: str | None) -> Answer:
        """The answer about a job, or about a backend or a job that did not answer."""
        found = self.jobs.get((backend, job)) if job is not None else None
        return found or self.backends.get(backend, Answer())


async def read_answers(http: httpx.AsyncClient, number: int) -> PullAnswers:
    response = await http.get(f"/api/v1/pulls/{number}")
    response.raise_for_status()
    return parse_pull(response.json())


def parse_pull(body: Json) -> PullAnswers:
    answers = PullAnswers()
    for backend in body["backends"]:
        name = str(backend["name"]).lower()
        if verdict := backend.get("verdict"):
            answers.backends[name] = _answer(verdict)
        for job in _jobs(backend):
            key = name, str(job["job_name"])
            answers.jobs[key] = _answer(job.get("verdict"))
            if job.get("conclusion") not in {None, "success"} or job.get("state") == "timed_out":
                answers.failed.add((*key, int(job.get("attempt", 1))))
            for test in job.get("failed_tests") or ():
                answers.tests[*key, str(test["name"])] = _answer(test.get("verdict"))
    answers.groups = [_group(group) for group in body.get("groups", ()) if "fingerprint" in group]
    return answers


def _jobs(backend: Json) -> Iterator[Json]:
    """Reported jobs, and expected ones that did not report."""
    yield from backend.get("jobs", ())
    yield from backend.get("missing", ())


def _answer(verdict: Json | None) -> Answer:
    if not verdict:
        return Answer()
    return Answer(str(verdict["kind"]), str(verdict.get("confidence", "")), str(verdict.get("sentence", "")))


def _group(group: Json) -> Group:
    members = frozenset(_member(job) for job in group["jobs"])
    return Group(str(group["fingerprint"]), members)


def _member(job: Json | str) -> tuple[str, str]:
    if isinstance(job, str):
        backend, _, name = job.partition(":")
        return backend.lower(), name
    backend = job.get("downstream") or job.get("backend") or ""
    return str(backend).lower(), str(job.get("job_name") or job.get("job") or "")
