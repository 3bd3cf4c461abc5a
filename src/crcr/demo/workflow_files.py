"""The workflow files that the demo's backends have on their default branch, so that whoever looks there finds what they do.

The simulator does not run them: a backend acts as its `Workflow` says, and its file says the same.
"""

from github_sim.world.actions import JobSpec, Workflow

_HEAD = """\
on:
  repository_dispatch:
    types: [pull_request, push, merge_group, crcr_test]
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
    """The file of a workflow that is started by dispatches; one that never reports may ask for no token either.

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
