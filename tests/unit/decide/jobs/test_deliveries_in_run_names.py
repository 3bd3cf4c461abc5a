"""The delivery that a run's name contains instead of the claimed one (fault 67)."""

import pytest

from crcr.decide.github.workflow_runs import other_delivery_named

CLAIMED = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
THIRD = "33333333-3333-4333-8333-333333333333"
SENT = (CLAIMED, OTHER, THIRD)
MANY = " ".join(f"{number:08x}-0000-4000-8000-000000000000" for number in range(30))


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        (f"CI {OTHER}", OTHER),
        (f"CI {OTHER.upper()} and {OTHER}", OTHER),
        (f"CI {OTHER}, not sent: {OTHER.replace('2', '4')}", OTHER),
        ("pull_request", None),
        ("", None),
        (f"CI {CLAIMED}", None),
        (f"{OTHER} CI {CLAIMED}", None),
        (f"{OTHER} CI {CLAIMED.upper()}", None),
        (f"{OTHER} {THIRD}", None),
        (f"{OTHER} {MANY} {CLAIMED}", None),
        (OTHER.replace("2", "4"), None),
    ],
)
def test_fault_67_only_a_run_name_with_exactly_one_other_delivery_counts(
    title: str, expected: str | None
) -> None:
    assert other_delivery_named(title, CLAIMED, SENT) == expected


def test_a_delivery_that_was_not_sent_to_the_repository_is_ignored() -> None:
    assert other_delivery_named(f"CI {OTHER}", CLAIMED, (CLAIMED, THIRD)) is None
