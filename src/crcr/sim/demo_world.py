"""The demo's world: an invented deep-learning framework upstream and its accelerator backends.

Each backend has a character, so the pages show more than green: steady, matrix, flaky, broken, slow,
silent, cancelling, and one that only listens.
"""

from crcr.sim.act_repositories import RepositoryActs
from crcr.sim.actions import Behaviour, JobSpec, Workflow

UPSTREAM = "tensorium/tensorium"
SLOW_S = (18.0, 35.0)


def _workflow(behaviour: Behaviour, *jobs: JobSpec, name: str = "Upstream CI") -> Workflow:
    return Workflow(
        name=name,
        path=".github/workflows/upstream-ci.yml",
        jobs=jobs,
        automatic=True,
        behaviour=behaviour,
    )


BACKENDS: dict[str, tuple[str, str, Workflow]] = {
    "novagpu/tensorium-nova": (
        "L2",
        "Nova GPU backend",
        _workflow(Behaviour(), JobSpec("build", tests=64), JobSpec("test-ops", tests=812)),
    ),
    "accel-npu/tensorium-npu": (
        "L2",
        "NPU backend, tested on two toolkits and two Pythons",
        _workflow(
            Behaviour(queue_s=(1.0, 6.0)),
            JobSpec(
                "build", matrix=("npu910, 3.11", "npu910, 3.12", "npu310, 3.11", "npu310, 3.12"), tests=430
            ),
        ),
    ),
    "quantix/tpu-bridge": (
        "L2",
        "TPU bridge with a flaky network test",
        _workflow(
            Behaviour(fail_rate=0.35, failure="ConnectionResetError: peer closed during all_reduce"),
            JobSpec("unit", tests=240),
            JobSpec("integration", tests=58),
        ),
    ),
    "lumen-hpc/xpu-ops": (
        "L2",
        "XPU operators, broken since a toolchain update",
        _workflow(
            Behaviour(
                broken_after_runs=5, failure="ImportError: libxpu_rt.so.3: cannot open shared object file"
            ),
            JobSpec("build-and-test", tests=367),
        ),
    ),
    "riscv-ai/tensorium-riscv": (
        "L2",
        "RISC-V build under emulation: slow",
        _workflow(Behaviour(queue_s=(4.0, 12.0)), JobSpec("cross-build", duration_s=SLOW_S, tests=96)),
    ),
    "serveflow/serveflow": (
        "L2",
        "Inference server; cancels older runs on a new push",
        _workflow(Behaviour(cancel_on_push=True), JobSpec("smoke", tests=41), JobSpec("latency", tests=12)),
    ),
    "edge-labs/edge-runtime": (
        "L2",
        "Edge runtime whose workflow never reports",
        _workflow(Behaviour(silent=True), JobSpec("build")),
    ),
    "fpga-club/tensorium-fpga": (
        "L1",
        "FPGA experiments; only listens",
        _workflow(Behaviour(), JobSpec("build")),
    ),
}


def demo_world(github: RepositoryActs) -> str:
    """Create the upstream and its backends; returns the allowlist, which also stands in the upstream."""
    text = _allowlist()
    files = {".github/crcr-allowlist.yml": text}
    github.create_repository(UPSTREAM, files=files, description="Tensors and gradients, on any accelerator")
    for name, (_, description, workflow) in BACKENDS.items():
        github.create_repository(name, workflows=[workflow], description=description)
    return text


def _allowlist() -> str:
    lines = ["# Who is told about changes of the upstream, and what their results mean."]
    for level in ("L1", "L2"):
        lines.append(f"{level}:")
        lines += [f"  - {name}" for name, (own, _, _) in BACKENDS.items() if own == level]
    return "\n".join(lines) + "\n"
