"""Fingerprints: the same failure has the same one in every run and on every backend, another failure has another."""

import pytest

from crcr.decide.failures.fingerprint import MOST_FINGERPRINTS, fingerprint_failure, sample_messages
from crcr.decide.jobs.report import FailedTest


def fingerprint(message: str | None, name: str = "test_a") -> str | None:
    return fingerprint_failure([FailedTest(name, None, message)]).fingerprint


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("RuntimeError: no kernel at 0x7f12 on NPU:3", "RuntimeError: no kernel at 0xdead on XPU:0"),
        ("lowering graph 1b4e28ba-2fa1-11d2-883f-0016d3cca427 failed", "lowering graph 6fa459ea-ee8a-3ca4-894e-db77e160355e failed"),
        ("cannot open /home/ci/_work/a1/kernel.py line 7", "cannot open /tmp/runner/b2/kernel.py line 12"),
        ("took 1.25 s of 3e-5 at 10:00:01", "took 99 s of 1.5e+7 at 23:59:59"),
        ("\n\n  checksum deadbeef01 differs", "checksum 0123abcd99 differs"),
        ("see https://ci.test/1 for the log", "see http://other.test/x?y for the log"),
    ],
)  # fmt: skip
def test_differences_between_runs_and_devices_do_not_change_the_fingerprint(one: str, two: str) -> None:
    assert fingerprint(one) == fingerprint(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("NotImplementedError: aten::foo", "NotImplementedError: aten::bar"),
        ("KeyError: 'weight'", "KeyError: 'bias'"),
    ],
)
def test_another_message_has_another_fingerprint(one: str, two: str) -> None:
    assert fingerprint(one) != fingerprint(two)


def test_a_generic_message_is_fingerprinted_together_with_its_test() -> None:
    close = "AssertionError: Tensor-likes are not close!\n\nMismatched elements: 3 / 4"
    assert fingerprint(close, "test_add") != fingerprint(close, "test_mul")
    assert fingerprint(close, "test_add[float32]") == fingerprint(close, "test_add[int8]")
    assert fingerprint("NotImplementedError: aten::foo", "test_add") == fingerprint(
        "NotImplementedError: aten::foo", "test_mul"
    )


def test_without_a_message_the_test_is_fingerprinted_and_without_a_test_there_is_none() -> None:
    assert fingerprint(None, "test_add") == fingerprint("", "test_add[3]") != fingerprint(None, "test_mul")
    assert fingerprint_failure([]).fingerprint is None


def test_a_job_has_the_fingerprints_of_its_tests_the_most_frequent_first() -> None:
    tests = [
        FailedTest(f"test_{n}", None, "kernel is missing" if n % 3 else f"reason {'x' * n}")
        for n in range(90)
    ]
    fingerprints = fingerprint_failure(tests)
    assert fingerprints.fingerprint == fingerprint("kernel is missing")
    assert fingerprints.sample == "kernel is missing"
    assert len(fingerprints.distinct) == MOST_FINGERPRINTS
    assert sample_messages(tests)[fingerprints.fingerprint or ""] == "kernel is missing"
