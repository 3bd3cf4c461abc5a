"""The failures of the demo's beginning: one of each kind that a verdict tells apart.

- `NEW`: one pull request breaks three backends with the same message; the base passed there.
- `BROKEN`: the base fails since a commit of its third push, so every change that is built on it fails alike.
- `FLAKY`: came and went twice on the base, and shows up on a pull request.
- `PAIRED`: one backend fails alone, and passes with a pull request of its own that the change depends on.
- `SICK`: the machines of one backend fail every commit of the first minute.
"""

from collections.abc import Mapping
from dataclasses import replace

from crcr.demo.world import RISCV_SICK_MESSAGE, XPU_MESSAGE
from github_sim.ci.autoplay import StagedFailure

Failures = Mapping[tuple[str, str], StagedFailure]

_PROMOTION = StagedFailure(
    "test_ops.TestCommon.test_out_addmm",
    "test/test_ops.py",
    "RuntimeError: expected scalar type Float but found Half in addmm_out",
)
_IMPORT = StagedFailure(
    "test_xpu.TestImport.test_runtime_loads", "test/test_xpu.py", XPU_MESSAGE, duration_s=(5.0, 9.0)
)
_RESET = StagedFailure(
    "test_distributed.TestAllReduce.test_bucketed",
    "test/test_distributed.py",
    "ConnectionResetError: peer closed during all_reduce",
)
_OUT_VARIANT = StagedFailure(
    "test_ops.TestCommon.test_out_variants",
    "test/test_ops.py",
    "NotImplementedError: could not run 'aten::addmm.out' on the backend nova",
)
_DISK = StagedFailure("setup.mount_rootfs", "ci/emulation.py", RISCV_SICK_MESSAGE, duration_s=(1.0, 4.0))

NEW: Failures = {
    ("novagpu/tensorium-nova", "test-ops"): _PROMOTION,
    ("accel-npu/tensorium-npu", "build (npu910, 3.11)"): _PROMOTION,
    ("accel-npu/tensorium-npu", "build (npu310, 3.12)"): _PROMOTION,
    ("quantix/tpu-bridge", "unit"): _PROMOTION,
}
BROKEN: Failures = {("lumen-hpc/xpu-ops", "test"): _IMPORT}
FLAKY: Failures = {("quantix/tpu-bridge", "integration"): _RESET}
PAIRED: Failures = {("novagpu/tensorium-nova", "test-ops"): _OUT_VARIANT}
SICK: Failures = {("riscv-ai/tensorium-riscv", "cross-build"): _DISK}

_BROKEN_BASE: Failures = {job: replace(failure, duration_s=(0.5, 1.5)) for job, failure in BROKEN.items()}
"""The base fails first, so that each pull request is judged with that known."""

CULPRIT = "Build with the new toolchain"
PUSHES: tuple[tuple[tuple[str, Failures], ...], ...] = (
    (("Document the layout of packed weights", {**SICK}),),
    (("Pin the linter", {**FLAKY}),),
    (
        ("Raise the minimum version of CMake", {**SICK}),
        ("Sort the imports of the code generator", {**SICK}),
        ("Let the profiler name its threads", {**SICK}),
        (CULPRIT, {**_BROKEN_BASE, **SICK}),
        ("Update a link in the installation guide", {**_BROKEN_BASE, **SICK}),
        ("Remove a kernel that was registered twice", {**_BROKEN_BASE, **SICK}),
    ),
    (("Remove an unused include", {**_BROKEN_BASE, **FLAKY, **SICK}),),
    (("Fix a typing stub", {**_BROKEN_BASE, **SICK}),),
)
"""The pushes to the base that the first pull requests are built on, oldest first: titles of commits, and what fails.

Backends test the last commit of a push: which one of the third broke the base is found by a bisection. The second one
passes where the fleet is sick, between others that fail: so it is no commit that broke the job.
"""
ON_PULLS: Failures = {**BROKEN, **SICK}
