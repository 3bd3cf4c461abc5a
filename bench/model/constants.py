"""The measured constants of the model, as `python -m bench.model --measure` writes them to `constants.json`.

Nothing here is typed in by hand: each value comes from a measurement on the machine that `Constants.machine` names.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

CONSTANTS_FILE = Path(__file__).with_name("constants.json")


class BadConstants(Exception):
    """The file of constants cannot be read."""


@dataclass(frozen=True, slots=True)
class CpuCost:
    """Processor seconds of the relay's processes, and of PostgreSQL's where it is the store."""

    relay_s: float
    database_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCosts:
    """What intake and worker cost on one kind of store."""

    webhook: CpuCost
    dispatch: CpuCost
    """From its row to its recorded outcome: insert, claim, call, finish."""
    check_call: CpuCost
    """A commit judged and one check published, with its share of look-ups."""
    callback: CpuCost
    commit: CpuCost
    """A transaction, shared by the callbacks of one group."""
    webhook_answer_s: float
    dispatch_answer_s: float
    """How much longer the answer to a webhook takes for each target."""
    callback_answer_s: float
    """With a single client."""
    idle_memory_bytes: int
    """Of `crcr serve`: one intake and one page process."""

    def callback_cost(self, in_a_group: float) -> CpuCost:
        """The cost of a callback whose commit is shared by so many."""
        return CpuCost(
            self.callback.relay_s + self.commit.relay_s / in_a_group,
            self.callback.database_s + self.commit.database_s / in_a_group,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCost:
    """Processor seconds of one request for a page."""

    after_change_s: float
    """The first request after a change of what the page shows."""
    unchanged_s: float
    not_modified_s: float
    """With the ETag of the current version."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderCosts:
    pages: dict[str, PageCost]
    stream_bytes: float
    stream_event_s: float
    """One event on one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """Bytes on disk for each row with its index entries, and how many statements a fact takes."""

    delivery: float
    body: float
    dispatch: float
    effect: float
    job: float
    change: float
    statements: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCalls:
    """Calls to GitHub for each head commit, counted with the simulated GitHub."""

    gate: float
    """On the upstream's installation, whatever the number of backends."""
    gate_writes: float
    backend: float
    """On the upstream's installation, for each backend with a visible check."""
    backend_writes: float
    failing_backend: float
    """More for a backend that fails."""
    failing_backend_writes: float
    group: float
    """More for a merge group than for a head: reads of its content."""
    command: float
    command_writes: float
    gating_downstream: float
    """On the installation of a downstream at L4 that sends webhooks about its runs."""
    reporting_downstream: float
    """On the installation of a downstream at L2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    measured_at: str
    machine: str
    python: str
    sqlite: StoreCosts
    postgres: StoreCosts
    readers: ReaderCosts
    rows: RowBytes
    calls: HeadCalls

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(_rounded(asdict(self)), indent=2) + "\n")


def load_constants(path: Path = CONSTANTS_FILE) -> Constants:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Constants)
    except OSError as error:
        raise BadConstants(f"{path} cannot be read ({error.strerror}); write it with --measure") from None
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BadConstants(
            f"{path} is not a file of constants: {error}; write it again with --measure"
        ) from None


def _rounded(value: object) -> object:
    """Four significant digits: more would claim more than a measurement gives."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
