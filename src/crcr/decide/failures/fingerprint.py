"""Fingerprints: two failures with the same fingerprint are the same failure.

A fingerprint is a hash over the kind of failure and the first line of its message without the parts that differ from run to
run (numbers, addresses, folders, links) or from backend to backend (names of devices). A message that says nothing by itself
("Tensor-likes are not close!") counts together with the name of its test. A failure without any details has no fingerprint.

The rules have a version. A change of them needs a new version: recorded failures are then computed again in the background
(`record.failures.recompute`), and until that is done old and new ones do not match.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from crcr.decide.jobs.report import FailedTest

RULES = 1
"""The version of these rules."""
MOST_FINGERPRINTS = 20
"""How many different fingerprints of one job are recorded."""
_MOST_TESTS = 1_000
"""No report has more: one that is left out here could be the one that is new."""
_LONGEST_LINE = 700
_MOST_LINE = 300
"""Without the parts that differ between runs: a line that is cut before has another end in each run."""
_MOST_SAMPLE = 300
MOST_NAMED_TESTS = 50
"""How many failed tests of one job can be searched for by their names."""
_MOST_NAME = 300
_SHORTEST = 8
"""A message with fewer letters says nothing."""
_DIGITS = 16
_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"https?://\S+"), "<link>"),
    (re.compile(r"[\\/][\w.@+~-]+(?:[\\/][\w.@+~-]+)+[\\/]?"), "<path>"),
    (re.compile(r"\b[A-Za-z]:(?=<path>)"), ""),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,64}\b"), "<hex>"),
    (re.compile(r"\d+(?:[.:,]\d+)*(?:e[+-]?\d+)?"), "<n>"),
    (
        re.compile(
            r"(?<![a-z])(?:cuda|rocm|hip|xpu|npu|hpu|mps|mtia|tpu|xla|musa|mlu|ipu|vpu|gcu|vulkan|privateuseone)(?![a-z])",
            re.IGNORECASE,
        ),
        "<device>",
    ),
    (re.compile(r"\s+"), " "),
)
_MASKED = re.compile(r"<\w+>|\W")
_WORD = re.compile(r"[a-z]+")
_GENERIC_WORDS = frozenset(
    [
        "assert",
        "assertion",
        "assertionerror",
        "error",
        "exception",
        "fail",
        "failed",
        "failure",
        "timeout",
        "timeouterror",
        "runtimeerror",
        "valueerror",
        "typeerror",
        "keyerror",
        "indexerror",
        "tensor",
        "tensors",
        "torch",
        "likes",
        "scalars",
        "elements",
        "mismatched",
        "are",
        "is",
        "not",
        "in",
        "to",
        "be",
        "of",
        "the",
        "a",
        "and",
        "but",
        "got",
        "expected",
        "actual",
        "close",
        "equal",
        "true",
        "false",
        "none",
        "n",
        "hex",
        "path",
        "link",
        "allclose",
        "greater",
        "less",
        "than",
        "absolute",
        "relative",
        "difference",
    ]
)
"""A line of nothing but these words: every failed comparison of numbers says the same."""
_SAYS_NOTHING = _GENERIC_WORDS | {
    *(
        "process",
        "completed",
        "with",
        "exit",
        "exited",
        "code",
        "status",
        "command",
        "returned",
        "build",
        "job",
        "make",
    ),
    *(
        "stopped",
        "subcommand",
        "ninja",
        "all",
        "one",
        "or",
        "more",
        "step",
        "task",
        "script",
        "bash",
        "sh",
        "device",
        "id",
    ),
}
"""An error line of nothing but these words says that something failed, and not what."""


@dataclass(frozen=True, slots=True)
class TestFingerprint:
    """A failed test: the hash of its name, and its fingerprint."""

    __test__ = False  # not a pytest class

    test: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LogFingerprint:
    """Of a failure that reported no failed test: by the first error line of its log. It makes groups, and no verdict reads it."""

    fingerprint: str
    sample: str


@dataclass(frozen=True, slots=True)
class FailureFingerprint:
    fingerprint: str | None
    """The most frequent fingerprint of its tests; None when nothing is known about the failure."""
    sample: str | None
    """The first line of a message with that fingerprint, unescaped."""
    tests: tuple[TestFingerprint, ...] = ()

    @property
    def distinct(self) -> tuple[str, ...]:
        """The different fingerprints, the most frequent first, at most `MOST_FINGERPRINTS`."""
        counts = Counter(test.fingerprint for test in self.tests)
        return tuple(fingerprint for fingerprint, _ in counts.most_common(MOST_FINGERPRINTS))


def fingerprint_failure(tests: Sequence[FailedTest]) -> FailureFingerprint:
    found = tuple((_fingerprint_test(test), test) for test in tests[:_MOST_TESTS])
    if not found:
        return FailureFingerprint(None, None)
    marks = tuple(mark for mark, _ in found)
    whole = FailureFingerprint(None, None, marks)
    primary = whole.distinct[0]
    return FailureFingerprint(primary, _sample_of(primary, found), marks)


def fingerprint_log(first_error: str | None) -> LogFingerprint | None:
    """Return the fingerprint of an error line; None for one that says nothing, such as that a command failed."""
    line, shown = normal_line(first_error), first_line(first_error)
    if line is None or shown is None or _SAYS_NOTHING.issuperset(_WORD.findall(line)):
        return None
    return LogFingerprint(_hash("log", line), shown[:_MOST_SAMPLE])


def sample_messages(tests: Sequence[FailedTest], marks: FailureFingerprint | None = None) -> dict[str, str]:
    """Return a readable line for each fingerprint of the tests: its message, or else the test's name.

    `marks` are those of these tests, where they are known.
    """
    samples: dict[str, str] = {}
    for mark, test in zip((marks or fingerprint_failure(tests)).tests, tests, strict=False):
        if mark.fingerprint not in samples:
            samples[mark.fingerprint] = _shown_line(test)
    return samples


def name_tests(tests: Sequence[FailedTest], marks: FailureFingerprint) -> tuple[tuple[str, str], ...]:
    """Return the fingerprints and names of the first tests, each pair once; tests of fingerprints without a group are left out."""
    recorded = frozenset(marks.distinct)
    pairs = (
        (mark.fingerprint, test.name.strip()[:_MOST_NAME])
        for mark, test in zip(marks.tests, tests, strict=False)
        if mark.fingerprint in recorded
    )
    return tuple(islice(dict.fromkeys(pair for pair in pairs if pair[1]), MOST_NAMED_TESTS))


def hash_test_name(name: str) -> str:
    return _hash("name", name.strip())


def normal_line(text: str | None) -> str | None:
    """Return the first non-empty line without the parts that differ between runs; None when too little is left."""
    shown = first_line(text)
    if shown is None:
        return None
    for pattern, replacement in _STEPS:
        shown = pattern.sub(replacement, shown)
    shown = shown.strip().lower()[:_MOST_LINE]
    return shown if len(_MASKED.sub("", shown)) >= _SHORTEST else None


def first_line(text: str | None) -> str | None:
    for line in (text or "")[: 2 * _LONGEST_LINE].splitlines():
        if shown := line.strip()[:_LONGEST_LINE]:
            return shown
    return None


def name_without_parameters(name: str) -> str:
    """Return `test_add` for `test_add[float32]`; only the last brackets are removed, and only at the end."""
    if not name.endswith("]"):
        return name
    start = name.find("[", name.rfind("]", 0, -1) + 1)
    return name if start < 0 else name[:start]


def _fingerprint_test(test: FailedTest) -> TestFingerprint:
    line = normal_line(test.message)
    name = name_without_parameters(test.name.strip())
    if line is None:
        fingerprint = _hash("test", name)
    elif _GENERIC_WORDS.issuperset(_WORD.findall(line)):
        fingerprint = _hash("test and message", name, line)
    else:
        fingerprint = _hash("message", line)
    return TestFingerprint(hash_test_name(test.name), fingerprint)


def _sample_of(fingerprint: str, found: Sequence[tuple[TestFingerprint, FailedTest]]) -> str:
    return next(_shown_line(test) for mark, test in found if mark.fingerprint == fingerprint)


def _shown_line(test: FailedTest) -> str:
    return (first_line(test.message) or test.name.strip())[:_MOST_SAMPLE]


def _hash(*parts: str) -> str:
    text = "\0".join((str(RULES), *parts))
    return hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=_DIGITS // 2).hexdigest()
