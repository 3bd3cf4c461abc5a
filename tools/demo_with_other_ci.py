"""`crcr demo` with a simulated Buildkite, GitLab or CircleCI beside it, to rehearse how a repository there joins.

Only from a checkout, because the simulated CIs are part of the tests: `make demo-ci CI=gitlab`. The relay knows one project
at that CI for one repository, as an operator would have registered it; `crcr demo-join` connects the repository's files.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from crcr.cli.run import process  # noqa: E402
from crcr.cli.run.demo import SEED  # noqa: E402
from crcr.decide.model import RepoName  # noqa: E402
from crcr.demo.run import DemoOptions, GeneratedHistory, OtherCi, run_demo  # noqa: E402
from crcr.demo.traffic import UPSTREAM  # noqa: E402
from crcr.join.request import Ci  # noqa: E402
from github_sim.runner.joined_repository import JoinedRepository  # noqa: E402
from github_sim.runner.runner import Runner  # noqa: E402
from support.downstream.joined_downstream import (  # noqa: E402
    CI_PROJECTS,
    ci_project,
    downstream_request,
    registration_setting,
)
from support.other_cis.projects import OtherCis  # noqa: E402

REPOSITORY = "me/my-backend"


@dataclass
class SimulatedCi:
    """The projects of one CI; its API is added to the simulated GitHub when the first repository joins."""

    ci: Ci
    _projects: dict[Runner, OtherCis] = field(default_factory=dict)

    def connect(self, runner: Runner, joined: JoinedRepository) -> None:
        if runner not in self._projects:
            self._projects[runner] = OtherCis(runner)
        self._projects[runner].connect(self.ci.value, joined, CI_PROJECTS[self.ci])

    def registrations(self, address: str) -> str:
        wish = downstream_request(self.ci, repository=RepoName(REPOSITORY), upstream=RepoName(UPSTREAM))
        return registration_setting(wish, address)


def init_command(ci: Ci, port: int) -> str:
    places = " ".join(f"--place {name}={value}" for name, value in ci_project(ci).items())
    return f"crcr init --relay http://127.0.0.1:{port} --repo {REPOSITORY} --ci {ci.value} {places} --branch main --yes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ci", choices=[ci.value for ci in Ci if ci is not Ci.GITHUB])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--github-port", type=int)
    parser.add_argument("--speed", type=float, default=1.0)
    options = parser.parse_args()
    simulated = SimulatedCi(Ci(options.ci))
    demo = DemoOptions(
        seed=SEED,
        speed=options.speed,
        github_port=options.github_port,
        length=None,
        data=None,
        history=GeneratedHistory(),
        verbose=False,
        other_ci=OtherCi(simulated.connect, simulated.registrations),
    )
    with process.listen("127.0.0.1", options.port) as listener:
        port = listener.getsockname()[1]
        print(
            f"in the repository's folder:\n  {init_command(simulated.ci, port)}\n  crcr demo-join {REPOSITORY}"
        )
        process.run_event_loop(run_demo(demo, listener))


if __name__ == "__main__":
    main()
