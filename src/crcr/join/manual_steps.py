"""Manual steps per CI: secrets and settings that no file can create; and how safe a build is there.

`crcr init` and the onboarding page list them: what, where, and what for.
"""

from dataclasses import dataclass

from crcr.join.ci_kinds import Ci
from crcr.join.request import JoinRequest

_ENVIRONMENT = "GitHub, this repository: Settings, Environments"


@dataclass(frozen=True, slots=True)
class ManualStep:
    name: str
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} ({self.where}): {self.why}"


def describe_effort(ci: Ci) -> str:
    """Return what joining needs, in two sentences."""
    if ci is Ci.GITHUB:
        return "You need the App, one allowlist entry and one workflow; no secret is shared."
    return (
        f"You need the App, one allowlist entry, a bridge (a small GitHub workflow that starts your builds at"
        f" {ci.title} with a token of yours, stored as a secret of your repository), and a registration by this relay's"
        " operator. The relay itself gets no secret of yours."
    )


def describe_safety(ci: Ci) -> str:
    """Return where code of a pull request runs, and what prevents it from reporting."""
    match ci:
        case Ci.GITHUB:
            return (
                "Safe by default: code of a pull request runs without secrets and without a token, and only jobs that"
                " do not run it report. Use no cache in the job that builds: your other workflows would restore it."
            )
        case Ci.BUILDKITE:
            return (
                "Code of a pull request runs only in the step crcr-build. But at Buildkite every step can request a token,"
                " and a running step can upload others under the names of those that report: such code can misreport its"
                " own result, though never another's. So receive only trusted pull requests, or build in a"
                " second pipeline that is not registered; and let no merge gate (L4) rest on it alone."
            )
        case Ci.GITLAB:
            return (
                "Code of a pull request runs only in the job crcr-build, which has no token for the relay. But it sees"
                " the variables of the project: use a project without any, and runners that start each job afresh."
            )
        case Ci.CIRCLECI:
            return (
                "Code of a pull request runs only in the job crcr-build. At CircleCI every job can request a token; the"
                " registration accepts only those of jobs with the context crcr, which no running job can give itself. So"
                " give that context to the reporting jobs alone."
            )


def manual_steps(request: JoinRequest) -> tuple[ManualStep, ...]:
    """Return the steps in order; none for GitHub Actions. The operator's registration is separate."""
    if request.ci is Ci.GITHUB:
        return ()
    environment = ManualStep(
        "environment crcr",
        _ENVIRONMENT,
        f"holds the secret; restrict it to the branch {request.branch}",
    )
    return (environment, *_OWN[request.ci](request))


def _buildkite(request: JoinRequest) -> tuple[ManualStep, ...]:
    pipeline = f"Buildkite, pipeline {request.where('organization')}/{request.where('pipeline')}: Settings"
    return (
        ManualStep(
            "secret BUILDKITE_API_TOKEN",
            "in that environment",
            "an API access token with the scopes read_builds and write_builds, for this one organisation; the bridge starts"
            " builds with it",
        ),
        ManualStep(
            "one step",
            f"{pipeline}, Steps",
            "buildkite-agent pipeline upload .buildkite/crcr.yml; use a pipeline of its own",
        ),
        ManualStep(
            "no builds of pull requests",
            f"{pipeline}, GitHub",
            "otherwise a fork could start a build that the bridge did not request",
        ),
        ManualStep(
            "a queue of its own for crcr-build",
            "Buildkite, Agents",
            "code of a pull request could leave files for the reporting step on the same machine",
        ),
    )


def _gitlab(request: JoinRequest) -> tuple[ManualStep, ...]:
    project = f"GitLab, project {request.where('project_id')}"
    return (
        ManualStep(
            "secret GITLAB_TRIGGER_TOKEN",
            "in that environment",
            "a pipeline trigger token of the project, made by an account with no further rights; the bridge starts"
            " pipelines with it",
        ),
        ManualStep(
            "include: {local: .gitlab/crcr.yml}",
            f"{project}: .gitlab-ci.yml",
            "runs these jobs; keep your other jobs out of such pipelines with `if: $CI_PIPELINE_SOURCE != 'trigger'`",
        ),
        ManualStep(
            f"protected branch {request.branch}",
            f"{project}: Settings, Repository",
            "otherwise everyone who may push there could report in your name",
        ),
        ManualStep(
            "pipeline variables for trigger tokens",
            f"{project}: Settings, CI/CD, Variables",
            "the bridge passes them to the pipeline: what to test",
        ),
    )


def _circleci(request: JoinRequest) -> tuple[ManualStep, ...]:
    project = f"CircleCI, project {request.where('project')}: Project Settings"
    return (
        ManualStep(
            "secret CIRCLECI_API_TOKEN",
            "in that environment",
            "an API token of an account with no further rights; the bridge starts pipelines with it",
        ),
        ManualStep(
            "a pipeline for .circleci/crcr.yml",
            project,
            "makes CircleCI read that file; or merge it into .circleci/config.yml",
        ),
        ManualStep(
            "context crcr",
            "CircleCI: Organization Settings, Contexts",
            "without variables, for this project only; the registration accepts only jobs with it",
        ),
        ManualStep(
            "Pass secrets to builds from forked pull requests: off",
            project,
            "otherwise a fork could use the context",
        ),
        ManualStep(
            "a deploy key for checkout, and no user key",
            project,
            "a running job can use it; a deploy key only reads",
        ),
    )


_OWN = {Ci.BUILDKITE: _buildkite, Ci.GITLAB: _gitlab, Ci.CIRCLECI: _circleci}
