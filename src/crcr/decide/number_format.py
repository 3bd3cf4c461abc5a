"""Counts and rates as people read them, the same on pages, in checks and in the terminal: `3,999` and `92.7%`.

Ids, pull requests, ports and years are names, not counts, and are printed as they are.
"""

_NOISE = 1e-9
"""Compensates for the rounding error of binary fractions."""


def format_count(number: int) -> str:
    """Format a count with thousands separators: `3,999`."""
    return f"{number:,}"


def format_percent(rate: float | None) -> str:
    """Rounded down, so that one failure in a thousand is never shown as 100.0%; a dash where there is no rate."""
    return "—" if rate is None else f"{int(rate * 1000 + _NOISE) / 10:.1f}%"


def count_things(number: int, thing: str) -> str:
    """Return the number with its noun, whose plural ends in `s`: `1 job`, `3,999 jobs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
