"""The generated parts of docs/scale.md: the constants, the fleets, and the picture of the limits.

`python -m bench.model --docs` writes them from `constants.json`; a test compares.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path

from bench.model.capacity import Assumptions, Limit, Plan, Store, make_plan
from bench.model.constants import Constants, CpuCost, StoreCosts
from bench.model.report import heads_text, size
from bench.model.workload import Workload

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
PICTURE = PAGE.parent / "images" / "scale.svg"
_BEGIN, _END = "<!-- {}, generated -->", "<!-- end of {} -->"

LARGE = Workload()
FLEETS: dict[str, Workload] = {
    "1 upstream, 20 downstreams": LARGE,
    "1 upstream, 1,000 downstreams": replace(LARGE, downstreams=1_000),
    "100 upstreams, 1,000 each": replace(LARGE, upstreams=100, downstreams=1_000, followed=10),
    "100 small upstreams, 1,000 each": replace(
        LARGE, upstreams=100, downstreams=1_000, followed=10, prs_per_day=10.0
    ),
    "10,000 small upstreams, 20 each": replace(
        LARGE, upstreams=10_000, followed=10, prs_per_day=10.0, readers=1
    ),
    "10,000 small upstreams, 1,000 each": replace(
        LARGE, upstreams=10_000, downstreams=1_000, followed=100, prs_per_day=10.0, readers=1
    ),
    "10,000 upstreams, 1,000 each": replace(LARGE, upstreams=10_000, downstreams=1_000, followed=100),
}


def rendered_page(text: str, constants: Constants) -> str:
    """The page with its generated parts replaced."""
    for name, lines in (("constants", _constants(constants)), ("fleets", _fleets(constants))):
        begin, end = _BEGIN.format(name), _END.format(name)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no part between {begin} and {end}")
        text = "".join((before, begin, "\n", "\n".join(lines), "\n", end, after))
    return text


def _constants(constants: Constants) -> Iterator[str]:
    yield f"{constants.measured_at} UTC; {constants.machine}, Python {constants.python}. Times are processor time."
    yield ""
    yield "| what | SQLite | PostgreSQL: relay | PostgreSQL: server |"
    yield "| --- | --- | --- | --- |"
    sqlite, postgres = constants.sqlite, constants.postgres
    for name, one, other in (
        ("a webhook", sqlite.webhook, postgres.webhook),
        ("a dispatch: row, claim, call, outcome", sqlite.dispatch, postgres.dispatch),
        ("a check: commit judged, check published", sqlite.check_call, postgres.check_call),
        ("a callback", sqlite.callback, postgres.callback),
        ("a commit, shared by the callbacks of a group", sqlite.commit, postgres.commit),
    ):
        yield f"| {name} | {_ms(one.relay_s)} | {_ms(other.relay_s)} | {_ms(other.database_s)} |"
    yield (
        f"| a callback by itself | {_alone(sqlite)} |"[:-1]
        + f"| {_alone(postgres)} | {_alone(postgres, server=True)} |"
    )
    yield f"| answer to a webhook, elapsed | {_answer(sqlite)} | {_answer(postgres)} | |"
    yield f"| memory of `crcr serve`, intake and pages | {size(sqlite.idle_memory_bytes)} | {size(postgres.idle_memory_bytes)} | |"
    yield ""
    yield from _reader_lines(constants)
    yield ""
    yield from _row_lines(constants)


def _reader_lines(constants: Constants) -> Iterator[str]:
    yield "| page, 24 backends | after a change | kept | not modified (304) | bytes, compressed |"
    yield "| --- | --- | --- | --- | --- |"
    for name, page in constants.readers.pages.items():
        times = (page.after_change_s, page.unchanged_s, page.not_modified_s)
        yield f"| {name} | {' | '.join(map(_ms, times))} | {page.bytes:,} |"
    yield ""
    readers = constants.readers
    yield f"A live stream takes {size(readers.stream_bytes)} of memory; an event on it {_ms(readers.stream_event_s)}."


def _row_lines(constants: Constants) -> Iterator[str]:
    rows = constants.rows
    yield "| fact | bytes with its indexes | kept for | statements |"
    yield "| --- | --- | --- | --- |"
    statements = {name: f"{number:.0f}" for name, number in rows.statements.items()}
    for name, number, kept, count in (
        ("delivery", rows.delivery, "400 days", f"{statements['webhook']} for a webhook"),
        ("its trimmed body", rows.body, "30 days", ""),
        ("dispatch", rows.dispatch, "400 days", f"{statements['dispatch']}, with its effect"),
        ("effect", rows.effect, "7 days", ""),
        ("job, with its run and sums", rows.job, "400 days", f"{statements['callback']} for a callback"),
        ("change, for live pages", rows.change, "1 day", ""),
    ):
        yield f"| {name} | {number:,.0f} | {kept} | {count} |"


def _alone(costs: StoreCosts, *, server: bool = False) -> str:
    cost: CpuCost = costs.callback_cost(1)
    return _ms(cost.database_s if server else cost.relay_s)


def _answer(costs: StoreCosts) -> str:
    return f"{_ms(costs.webhook_answer_s)} and {_ms(costs.dispatch_answer_s)} for each target"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def _fleets(constants: Constants) -> Iterator[str]:
    yield "| fleet | heads/h each | dispatches/s | callbacks/s | first limit, met at heads/h | relay + page processes | databases | Apps | disk |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, workload in FLEETS.items():
        plan = make_plan(workload, constants, Assumptions())
        yield f"| {name} | {' | '.join(_cells(plan))} |"


def _cells(plan: Plan) -> Iterator[str]:
    yield _number(plan.workload.heads_per_hour)
    yield _number(plan.demand.dispatches)
    yield _number(plan.demand.callbacks)
    first = plan.limits[0]
    yield f"{first.name}, at {heads_text(first)}"
    yield f"{plan.relay_processes:,} + {plan.page_processes:,}"
    yield (
        "SQLite"
        if plan.store is Store.SQLITE
        else f"{plan.databases:,} with {plan.database_cores:,} cores in all"
    )
    yield f"{plan.apps:,}"
    yield size(plan.disk_bytes)


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.axis{stroke:#8c959f;stroke-width:1}.bar{fill:#0969da}"
    ".fixed{fill:#9a6700}.now{stroke:#cf222e;stroke-width:2;stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.bar{fill:#4493f8}.fixed{fill:#d29922}.now{stroke:#f85149}}"
)
_LEFT, _WIDTH, _ROW, _TOP = 320, 420, 26, 44
_DECADES = (0, 5)


def picture(constants: Constants) -> str:
    """Bars on a logarithmic axis: the heads an hour at which one of each is used up, with 1,000 downstreams."""
    plan = make_plan(FLEETS["1 upstream, 1,000 downstreams"], constants, Assumptions())
    height = _TOP + _ROW * len(plan.limits) + 40
    now = _x(plan.workload.heads_per_hour)
    title = "One upstream with 1,000 downstreams: heads an hour at which each limit is met"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 70} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="8" y="20" font-weight="600">{escape(title)}</text>',
        *(_bar(index, limit) for index, limit in enumerate(plan.limits)),
        f'<line class="now" x1="{now:.0f}" y1="{_TOP - 12}" x2="{now:.0f}" y2="{height - 34}"/>',
        f'<text x="{now + 4:.0f}" y="{height - 38}">100 pull requests a day</text>',
        *_axis(height),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _x(heads: float) -> float:
    low, high = _DECADES
    return _LEFT + _WIDTH * (min(max(math.log10(max(heads, 1.0)), low), high) - low) / (high - low)


def _bar(index: int, limit: Limit) -> str:
    top, end = _TOP + _ROW * index, _x(limit.heads_at_limit)
    return (
        f'<text x="{_LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(limit.name)}</text>'
        f'<rect class="{"bar" if limit.unit else "fixed"}" x="{_LEFT}" y="{top}" width="{end - _LEFT:.0f}" height="16"/>'
        f'<text x="{end + 6:.0f}" y="{top + 13}">{heads_text(limit)}</text>'
    )


def _axis(height: int) -> Iterator[str]:
    yield f'<line class="axis" x1="{_LEFT}" y1="{height - 30}" x2="{_LEFT + _WIDTH}" y2="{height - 30}"/>'
    for decade in range(_DECADES[0], _DECADES[1] + 1):
        yield f'<text x="{_x(10**decade):.0f}" y="{height - 12}" text-anchor="middle">{10**decade:,}</text>'


def write_scale_page(constants: Constants) -> None:
    PAGE.write_text(rendered_page(PAGE.read_text(), constants))
    PICTURE.write_text(picture(constants))
