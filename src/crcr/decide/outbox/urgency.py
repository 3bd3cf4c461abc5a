"""How urgent a call to GitHub is: which calls go on while GitHub's limits leave too few for all of them.

The class belongs to what waits for the answer, not to the endpoint: the same endpoint publishes a gate that holds up
a merge and a job check that somebody may look at later.
"""

from enum import IntEnum


class Urgency(IntEnum):
    """Classes of calls in the order in which they go out; the lowest number first."""

    FIRST = 0
    """A merge, a backend or a person waits: gates, dispatches, file questions, merge groups, answers to commands."""
    CHECKS = 1
    """The checks of backends."""
    DETAILS = 2
    """Job checks, look-ups that no gate waits for, inspections."""
