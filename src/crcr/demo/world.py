"""The demo's world: an invented deep-learning framework upstream and its accelerator backends.

Each backend has a character, so the pages show more than green: steady, matrix, flaky, broken, slow,
silent, cancelling, one that only listens, and one that probes the relay. Two of them gate merging, and one speaks when it is asked by label.
"""

from crcr.demo.people import ROLES
from crcr.demo.workflow_files import workflow_file
from github_sim.github import GitHub
from github_sim.world.actions import Behaviour, JobSpec, Workflow

UPSTREAM = "tensorium/tensorium"
GATE = "crcr/gate"
NPU_LABEL = "ciflow/crcr/npu"
GATING = ("novagpu/tensorium-nova", "serveflow/serveflow")
COMPILER_FILE = "torch/_inductor/lowering.py"
ALLOWLIST = """\
# Who is told about changes of the upstream, and what their results mean.
L1:  # are told
  - fpga-club/tensorium-fpga
L2:  # and are shown on the dashboard
  - quantix/tpu-bridge
  - lumen-hpc/xpu-ops
  - riscv-ai/tensorium-riscv
  - edge-labs/edge-runtime
  - relay-watch/probe: {expect: {"xfail*": failure}}  # tries the relay itself
L3:  # and on pull requests with the label ciflow/crcr/<device>
  npu:
    accel-npu/tensorium-npu: [npu-oncall]
L4:  # and decide whether a pull request may merge
  novagpu/tensorium-nova:
    oncalls: [nova-ci, anja-weiss]
    jobs: [build, test-ops]
    drafts: false
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
        "XPU operators, broken since a toolchain update",
        _workflow(
            Behaviour(
                broken_after_runs=5, failure="ImportError: libxpu_rt.so.3: cannot open shared object file"
            ),
            JobSpec("build-and-test", tests=367),
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
    """Create the upstream, with its allowlist, ruleset and roles, and its backends, whose files pin that relay."""
    files = {".github/crcr-allowlist.yml": ALLOWLIST}
    github.create_repository(UPSTREAM, files=files, description="Tensors and gradients, on any accelerator")
    github.require_checks(UPSTREAM, [GATE])
    for login, role in ROLES.items():
        github.set_permission(UPSTREAM, login, role)
    for name, (description, workflow) in BACKENDS.items():
        # GitHub tells an App what runs do where it gates.
        github.create_repository(
            name,
            files={workflow.path: workflow_file(workflow, pin)},
            workflows=[workflow],
            description=description,
            sends_run_webhooks=name in GATING,
        )
