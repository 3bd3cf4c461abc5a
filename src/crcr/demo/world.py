"""The demo's world: an invented deep-learning framework upstream and its accelerator backends.

Each backend behaves differently, so that the pages show more than green: steady, matrix, flaky, broken, slow, silent,
cancelling, one that only receives dispatches, and one that probes the relay. Two of them gate merging, and one publishes
checks when a label requests it.

The module also has the people of the demo, and the workflow files on the backends' default branches. The simulator does
not execute those files: a backend acts as its `Workflow` says, and its file says the same.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from github_sim.github import GitHub
from github_sim.world.actions import Behaviour, JobSpec, Workflow

UPSTREAM = "tensorium/tensorium"
GATE = "crcr/gate"
NPU_LABEL = "ciflow/crcr/npu"
BREAKING_LABEL = "crcr/breaking"
ONCALL = "anja-weiss"
GATING = ("novagpu/tensorium-nova", "serveflow/serveflow")
COMPILER_FILE = "torch/_inductor/lowering.py"
XPU_MESSAGE = "ImportError: libxpu_rt.so.3: cannot open shared object file"
RISCV_SICK_MESSAGE = "OSError: [Errno 28] No space left on device: '/mnt/emulator/rootfs'"
ALLOWLIST = """\
# The backends that receive the upstream's changes, by level.
L1:  # receive dispatches
  - fpga-club/tensorium-fpga
L2:  # and are shown on the dashboard
  - lumen-hpc/xpu-ops: {bisect: auto, channels: [issues]}  # the relay finds the commits that break it, and writes an issue
  - riscv-ai/tensorium-riscv  # meets the criteria of L3
  - edge-labs/edge-runtime
  - relay-watch/probe: {expect: {"xfail*": failure}}  # tests the relay itself
L3:  # and on pull requests with the label ciflow/crcr/<device>
  npu:
    accel-npu/tensorium-npu: [npu-oncall]
  tpu:
    quantix/tpu-bridge: [tpu-oncall]  # fails too often: in silent mode
L4:  # and decide whether a pull request may merge
  novagpu/tensorium-nova:
    oncalls: [nova-ci, anja-weiss]
    jobs: [build, test-ops]
    drafts: false
    channels: [comments]
  serveflow/serveflow:  # names no jobs: it has passed when GitHub says that its runs are over
    oncalls: [serveflow/ci]
    paths: ["torch/_inductor/**"]
"""
_SLOW_S = (18.0, 35.0)
_BRISK_S = (2.0, 5.0)


def _workflow(behaviour: Behaviour, *jobs: JobSpec, run_name: str | None = None) -> Workflow:
    return Workflow(
        name="Upstream CI",
        path=".github/workflows/upstream-ci.yml",
        jobs=jobs,
        automatic=True,
        behaviour=behaviour,
        run_name=run_name,
    )


BACKENDS: dict[str, tuple[str, Workflow]] = {
    "novagpu/tensorium-nova": (
        "Nova GPU backend",
        _workflow(
            Behaviour(queue_s=(0.5, 2.0), fail_rate=0.05),
            JobSpec("build", tests=64, duration_s=_BRISK_S),
            JobSpec("test-ops", tests=812, duration_s=_BRISK_S),
        ),
    ),
    "accel-npu/tensorium-npu": (
        "NPU backend, tested on two toolkits and two Pythons",
        _workflow(
            Behaviour(queue_s=(1.0, 6.0)),
            JobSpec("build", matrix=("npu910, 3.11", "npu310, 3.12"), tests=430),
        ),
    ),
    "quantix/tpu-bridge": (
        "TPU bridge with a flaky network test",
        _workflow(
            Behaviour(fail_rate=0.35, failure="ConnectionResetError: peer closed during all_reduce"),
            JobSpec("unit", tests=240),
            JobSpec("integration", tests=58),
        ),
    ),
    "lumen-hpc/xpu-ops": (
        "XPU operators; the tests are broken since a toolchain update",
        _workflow(
            Behaviour(queue_s=(0.5, 1.5), broken_after_runs=2, failure=XPU_MESSAGE),
            JobSpec("build", tests=12, fails=False),
            JobSpec("test", tests=367),
        ),
    ),
    "riscv-ai/tensorium-riscv": (
        "RISC-V build under emulation: slow",
        _workflow(Behaviour(queue_s=(4.0, 12.0)), JobSpec("cross-build", duration_s=_SLOW_S, tests=96)),
    ),
    "serveflow/serveflow": (
        "Inference server; cancels older runs on a new push",
        _workflow(
            Behaviour(cancel_on_push=True),
            JobSpec("serve", tests=53),
            run_name="tensorium {delivery_id}",
        ),
    ),
    "edge-labs/edge-runtime": (
        "Edge runtime whose workflow never reports",
        _workflow(Behaviour(silent=True), JobSpec("build")),
    ),
    "relay-watch/probe": (
        "Probe of the relay: one job that must pass, one that must fail",
        _workflow(
            Behaviour(queue_s=(0.2, 0.5), failure="AssertionError: fails on purpose"),
            JobSpec("xpass", tests=1, duration_s=(0.5, 1.0), fails=False),
            JobSpec("xfail", tests=1, duration_s=(0.5, 1.0), fails=True),
        ),
    ),
    "fpga-club/tensorium-fpga": (
        "FPGA experiments; only listens",
        _workflow(Behaviour(), JobSpec("build")),
    ),
}


def demo_world(github: GitHub, pin: str = "http://127.0.0.1:8000/github/callback crcr-demo") -> None:
    """Create the upstream with its allowlist, ruleset and roles, and the backends, whose files pin that relay."""
    files = {".github/crcr-allowlist.yml": ALLOWLIST}
    github.create_repository(UPSTREAM, files=files, description="Tensors and gradients, on any accelerator")
    github.require_checks(UPSTREAM, [GATE])
    for login, role in ROLES.items():
        github.set_permission(UPSTREAM, login, role)
    for name, (description, workflow) in BACKENDS.items():
        # The App gets webhooks about the runs of gating backends.
        github.create_repository(
            name,
            files={workflow.path: workflow_file(workflow, pin)},
            workflows=[workflow],
            description=description,
            sends_run_webhooks=name in GATING,
        )


_HEAD = """\
on:
  repository_dispatch:
    types: [pull_request, push, merge_group, crcr_pair, crcr_test]
permissions: {}
jobs:
"""
_BUILD = """\
  %(id)s:
    name: %(name)s
    runs-on: ubuntu-latest
    permissions: {contents: read}
%(matrix)s    steps:
      - uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2
        with: {persist-credentials: false}
      - run: ./ci/%(id)s
"""
_REPORT = """\
  report:
    needs: [%(ids)s]
    if: always()
    runs-on: ubuntu-latest
    permissions: {contents: read, id-token: write}
    steps:
      - uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2
        with: {persist-credentials: false, sparse-checkout: .crcr}
      - run: python3 .crcr/report.py
        env: {CRCR_STATUS: completed, CRCR_RELAYS: "%(pin)s"}
"""


def workflow_file(workflow: Workflow, pin: str) -> str:
    """Return the file of a workflow that dispatches start; a silent one may not request a token either.

    `pin` is the relay that it reports to: callback address, a space, audience.
    """
    run_name = (workflow.run_name or "").replace(
        "{delivery_id}", "${{ github.event.client_payload.delivery_id }}"
    )
    parts = [f"name: {workflow.name}\n", f"run-name: {run_name}\n" if run_name else "", _HEAD]
    parts += [_build(job) for job in workflow.jobs]
    if not workflow.behaviour.silent:
        parts.append(_REPORT % {"ids": ", ".join(job.name for job in workflow.jobs), "pin": pin})
    return "".join(parts)


def _build(job: JobSpec) -> str:
    legs = ", ".join(f'"{leg}"' for leg in job.matrix)
    matrix = f"    strategy: {{matrix: {{leg: [{legs}]}}}}\n" if legs else ""
    name = f"{job.name} (${{{{ matrix.leg }}}})" if legs else job.name
    return _BUILD % {"id": job.name, "name": name, "matrix": matrix}


# Logins with the association that their pull requests show.
AUTHORS = (
    ("mira-holt", "MEMBER"), ("jkoski", "MEMBER"), ("tamsin-ray", "COLLABORATOR"), ("d-okafor", "CONTRIBUTOR"),
    ("lin-sato", "CONTRIBUTOR"), ("pbraun", "MEMBER"), ("new-here-42", "FIRST_TIME_CONTRIBUTOR"),
)  # fmt: skip
ROLES = {"mira-holt": "admin", "jkoski": "maintain", "pbraun": "maintain", "tamsin-ray": "write"}
MAINTAINERS = tuple(login for login, role in ROLES.items() if role in {"maintain", "admin"})
OUTSIDERS = ("drive-by-dev", "impatient-user", "star-gazer")
MOST_COMMANDS_AN_HOUR = 8


class CommandLimits:
    """Keeps each person below the relay's hourly limit of commands, so that a long or fast demo has no refusals."""

    def __init__(self) -> None:
        self._spoke_at: dict[str, list[datetime]] = {}

    def first_free(self, logins: Sequence[str], now: datetime) -> str | None:
        """Return the first of them below the limit, and count one command."""
        for login in logins:
            lately = [at for at in self._spoke_at.get(login, []) if now - at < timedelta(hours=1)]
            if len(lately) < MOST_COMMANDS_AN_HOUR:
                self._spoke_at[login] = [*lately, now]
                return login
        return None
