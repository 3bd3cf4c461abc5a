"""What each reason for refusing a report means, said to the maintainers of the repository that sent it."""

MEANINGS = {
    "ambiguous_job": "Two jobs could be meant",
    "bad_report": "The report could not be understood",
    "bad_request": "The request could not be understood",
    "claim_mismatch": "The token belongs to another run than the report",
    "conflicting_result": "The job had ended with another result",
    "identity_changed": "Another repository of this name reported",
    "no_in_progress": "The job's start was never reported",
    "not_allowlisted": "The delivery's upstream does not list this repository",
    "not_authentic": "The token was not accepted",
    "not_registered": "The pipeline is not registered",
    "rate_limited": "Too many reports in a minute",
    "run_bound_elsewhere": "The run answers another delivery",
    "suspended": "This backend is suspended",
    "too_large": "The report is too large",
    "unknown_delivery": "No such delivery was dispatched to it",
    "wrong_event": "The run was started by an event that does not count",
    "wrong_ref": "The run is on a branch or tag that does not count",
}


SETTLED = "settled: the result was accepted"
"""Of a refusal whose job was reported rightly afterwards."""


def meaning(code: str) -> str:
    return MEANINGS.get(code, "The report was refused")
