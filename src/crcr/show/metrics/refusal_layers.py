"""Which layer of the relay refused a request: error codes sorted into a closed set, for counting.

Codes answer the sender; layers tell an operator where to look. Every code of the app stands here; a test compares.
"""

LAYERS: dict[str, tuple[str, ...]] = {
    "body": (
        *("bad_request", "bad_report", "too_large", "method_not_allowed", "wrong_content_type"),
        # Answered before there is a request, so never counted at a door.
        *("head_too_slow", "head_too_large", "target_too_long"),
    ),
    "signature": ("bad_signature",),
    "identity": ("not_authentic", "not_registered", "identity_changed", "claim_mismatch"),
    "keys": ("keys_unavailable",),
    "allowlist": ("not_allowlisted", "suspended", "no_allowlist", "default_branch_unknown"),
    "limiter": ("rate_limited", "limiter_unavailable"),
    "lifecycle": ("unknown_delivery", "no_in_progress", "conflicting_result", "wrong_event", "wrong_ref"),
    "separation": ("run_bound_elsewhere", "ambiguous_job"),
    "access": ("not_signed_in", "not_admin", "cross_origin", "stale_form"),
    "store": ("store_unavailable", "unavailable"),
    "relay": ("internal", "outside_fault", "stopping", "not_found", "not_possible"),
}

_LAYER_OF = {code: layer for layer, codes in LAYERS.items() for code in codes}


def layer_of(outcome: str) -> str | None:
    """The layer that this code is of; None for what is no refusal."""
    return _LAYER_OF.get(outcome)
