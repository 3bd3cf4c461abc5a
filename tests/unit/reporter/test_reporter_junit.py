"""Test counts from JUnit XML, valid or hostile."""

import io
import os
import time
from pathlib import Path
from typing import Any

import pytest

from support.downstream.reporter import GITHUB, ScriptedNetwork, reporter, run_reporter


def read_results(folder: Path, *patterns: str, **more: int) -> tuple[Any, str]:
    """Return the tally (None when nothing could be read) and the output."""
    out = io.StringIO()
    machine = reporter.Machine(clock=time.monotonic)
    paths = [str(folder / pattern) for pattern in patterns or ("**/*.xml",)]
    return reporter.read_junit(paths, reporter.JobOutput(out), machine, **more), out.getvalue()


def counts(folder: Path, *patterns: str) -> tuple[int, int, int]:
    tally, output = read_results(folder, *patterns)
    assert tally is not None, output
    return tally.passed, tally.failed, tally.skipped


def write(folder: Path, content: str | bytes, name: str = "junit.xml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def suite(inner: str, attributes: str = "") -> str:
    return f"<testsuites><testsuite {attributes}>{inner}</testsuite></testsuites>"


PASSED = '<testcase classname="T" name="a"/>'
FAILED = '<testcase classname="T" name="b"><failure message="no">trace</failure></testcase>'


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (PASSED, (1, 0, 0)),
        (FAILED, (0, 1, 0)),
        ('<testcase name="x"><error message="boom"/></testcase>', (0, 1, 0)),
        ('<testcase name="x"><failure/><error/><failure/></testcase>', (0, 1, 0)),
        ('<testcase name="x"><skipped/></testcase>', (0, 0, 1)),
        ('<testcase name="x"><failure/><skipped/></testcase>', (0, 1, 0)),
        ('<testcase name="x" status="notrun"/><testcase name="y" result="suppressed"/>', (0, 0, 2)),
        ('<testcase name="x" status="run" result="completed"/>', (1, 0, 0)),
        (
            '<testcase name="x"><flakyFailure message="once"/><system-out>no</system-out></testcase>',
            (1, 0, 0),
        ),
        ('<testcase name="x"><failure/><rerunFailure/><rerunFailure/></testcase>', (0, 1, 0)),
        ('<testcase name="x"><rerun message="again"/></testcase>', (1, 0, 0)),
        (f"<testsuite>{PASSED}<testsuite>{FAILED}</testsuite></testsuite>{PASSED}", (2, 1, 0)),
        ("<failure>outside of any test</failure>", (0, 0, 0)),
        ("", (0, 0, 0)),
    ],
)
def test_test_cases_are_counted_and_suite_totals_are_ignored(
    tmp_path: Path, inner: str, expected: tuple[int, int, int]
) -> None:
    write(tmp_path, suite(inner, 'tests="900" failures="900" errors="-1" skipped="x"'))
    assert counts(tmp_path) == expected


def test_a_failed_test_has_its_name_file_and_message(tmp_path: Path) -> None:
    inner = (
        '<testcase classname="pkg.T" name="a"><failure message=" wrong ">trace</failure></testcase>'
        '<testcase classname="pkg.T" name="pkg.T.b" file="own.py"><error>only\n a trace</error></testcase>'
        "<testcase><failure/></testcase>"
    )
    write(tmp_path, suite(inner, 'file="suite.py"'))
    tally, _ = read_results(tmp_path)
    assert tally.failures == [
        {"name": "pkg.T.a", "file": "suite.py", "message": "wrong"},
        {"name": "pkg.T.b", "file": "own.py", "message": "only\n a trace"},
        {"name": "(no name)", "file": "suite.py"},
    ]


def test_namespaces_and_encodings_are_supported(tmp_path: Path) -> None:
    write(tmp_path, '<j:testsuite xmlns:j="urn:x"><j:testcase name="a"/></j:testsuite>', "a.xml")
    latin = '<?xml version="1.0" encoding="iso-8859-1"?><testsuite><testcase name="é"><failure message="ü"/></testcase></testsuite>'
    write(tmp_path, latin.encode("latin-1"), "b.xml")
    write(
        tmp_path,
        f'<?xml version="1.0" encoding="utf-16"?><testsuite>{PASSED}</testsuite>'.encode("utf-16"),
        "c.xml",
    )
    assert counts(tmp_path) == (2, 1, 0)
    assert read_results(tmp_path)[0].failures == [{"name": "é", "message": "ü"}]


def test_1000_failed_tests_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    long_case = '<testcase name="b"><failure message="' + "é" * 5_000 + '"/></testcase>'
    for name in "abc":
        write(tmp_path, suite(long_case * 500), f"{name}.xml")
    tally, _ = read_results(tmp_path)
    assert (tally.failed, len(tally.failures)) == (1_500, 1_000)
    assert {len(failure["message"].encode()) for failure in tally.failures} == {1_024}


def test_a_report_stays_below_the_size_limit_of_the_relay(tmp_path: Path) -> None:
    name = "&#9;" * 1_024
    inner = f'<testcase name="{name}" file="{name}"><failure message="{name}"/></testcase>'
    write(tmp_path, suite(inner * 1_000))
    network = ScriptedNetwork()
    words = ["--strict", "--status", "completed", "--conclusion", "failure", "--junit", str(tmp_path)]
    code, output = run_reporter(*words, network=network)
    assert code == 0, output
    assert len(network.sent[0].data) < 2 * 1024 * 1024
    own = network.bodies[0]["workflow"]
    assert own["test_results"] == {"passed": 0, "failed": 1_000, "skipped": 0, "total": 1_000}
    assert 100 < len(own["failed_tests"]) < 1_000


def test_counts_given_by_flag_override_the_files(tmp_path: Path) -> None:
    write(tmp_path, suite(FAILED))
    network = ScriptedNetwork()
    words = ["--status", "completed", "--conclusion", "failure", "--junit", str(tmp_path / "*.xml")]
    run_reporter(*words, "--test-results", '{"failed": 9}', network=network)
    own = network.bodies[0]["workflow"]
    assert own["test_results"] == {"failed": 9}
    assert own["failed_tests"] == [{"name": "T.b", "message": "no"}]


# ---- which files


FILES = (
    "a.xml",
    "b.XML",
    "sub/c.xml",
    "sub/deep/d.xml",
    "sub/e1.xml",
    "sub/e2.xml",
    ".hidden/f.xml",
    "note.txt",
)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.xml", {"a.xml"}),
        ("**/*.xml", {"a.xml", "sub/c.xml", "sub/deep/d.xml", "sub/e1.xml", "sub/e2.xml", ".hidden/f.xml"}),
        ("sub/**", {"sub/c.xml", "sub/deep/d.xml", "sub/e1.xml", "sub/e2.xml"}),
        ("sub/*.xml", {"sub/c.xml", "sub/e1.xml", "sub/e2.xml"}),
        ("sub/e?.xml", {"sub/e1.xml", "sub/e2.xml"}),
        ("sub/e[1-1].xml", {"sub/e1.xml"}),
        ("sub/e[!1].xml", {"sub/e2.xml"}),
        ("*/deep/*.xml", {"sub/deep/d.xml"}),
        ("sub/../a.xml", {"a.xml"}),
        ("sub", {"sub/c.xml", "sub/deep/d.xml", "sub/e1.xml", "sub/e2.xml"}),
        ("nothing/**/*.xml", set()),
        ("a.xm", set()),
        ("[", set()),
    ],
)
def test_patterns_find_files(
    tmp_path: Path, pattern: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FILES:
        write(tmp_path, suite(PASSED), name)
    job_output = reporter.JobOutput(io.StringIO())
    absolute = [
        str(Path(path).relative_to(tmp_path))
        for path in reporter.find_files([f"{tmp_path}/{pattern}"], job_output)
    ]
    assert (set(absolute), len(absolute)) == (expected, len(expected))
    monkeypatch.chdir(tmp_path)
    assert set(reporter.find_files([pattern, f"./{pattern}"], job_output)) == expected


def test_symlinks_pipes_and_cycles_are_skipped(tmp_path: Path) -> None:
    outside = write(tmp_path, suite(PASSED * 50), "outside/secret.xml")
    write(tmp_path, suite(PASSED), "in/a.xml")
    (tmp_path / "in" / "link.xml").symlink_to(outside)
    (tmp_path / "in" / "folder").symlink_to(outside.parent)
    (tmp_path / "in" / "round").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in")
    os.mkfifo(tmp_path / "in" / "pipe.xml")
    (tmp_path / "in" / "device.xml").symlink_to("/dev/zero")
    tally, output = read_results(tmp_path, "in/**/*.xml")
    assert (tally.passed, output) == (1, "")


@pytest.mark.parametrize("name", ["link.xml", "pipe.xml"])
def test_a_file_replaced_by_a_link_or_pipe_is_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "link.xml").symlink_to(write(tmp_path, suite(PASSED)))
    os.mkfifo(tmp_path / "pipe.xml")
    with pytest.raises((OSError, reporter.Unreadable)):
        reporter.read_file(str(tmp_path / name), 1_000_000)


def test_a_pattern_without_matches_is_reported_and_the_result_is_sent(tmp_path: Path) -> None:
    network = ScriptedNetwork()
    words = ["--strict", "--status", "completed", "--conclusion", "success", "--junit", f"{tmp_path}/*.xml"]
    code, output = run_reporter(*words, network=network)
    assert (code, "test_results" in network.bodies[0]["workflow"]) == (0, False)
    assert "no test file matches" in output


def test_patterns_are_separated_by_lines(tmp_path: Path) -> None:
    write(tmp_path, suite(PASSED), "one/a b.xml")
    write(tmp_path, suite(FAILED), "two/c.xml")
    network = ScriptedNetwork()
    env = {**GITHUB, "CRCR_JUNIT": f"{tmp_path}/one/*.xml\n\n  {tmp_path}/two/*.xml \n"}
    run_reporter("--status", "completed", "--conclusion", "failure", env=env, network=network)
    assert network.bodies[0]["workflow"]["test_results"]["total"] == 2


# ---- hostile files


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
HOSTILE: dict[str, bytes] = {
    "billion laughs": f'<!DOCTYPE t [<!ENTITY l0 "lol">{LAUGHS}]><testsuite><testcase name="&l9;"/></testsuite>'.encode(),
    "quadratic blow-up": f'<!DOCTYPE t [<!ENTITY a "{"a" * 50_000}">]><testsuite>{"&a;" * 50_000}</testsuite>'.encode(),
    "external entity": b'<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&x;"/></testsuite>',
    "parameter entity": b'<!DOCTYPE t [<!ENTITY % x SYSTEM "http://127.0.0.1:9/">%x;]><testsuite/>',
    "external dtd": b'<!DOCTYPE t SYSTEM "http://127.0.0.1:9/"><testsuite/>',
    "plain doctype": b"<!DOCTYPE html><testsuite/>",
    "undeclared entity": b'<testsuite><testcase name="&boom;"/></testsuite>',
    "deep": b"<testsuite>" * 200_000 + PASSED.encode() + b"</testsuite>" * 200_000,
    "broken": b"<testsuite><testcase></testsuite>",
    "cut off": suite(FAILED).encode()[:-20],
    "empty": b"",
    "not xml": b"ok 1 - passed\nnot ok 2\n",
    "nulls": b"\0" * 5_000,
    "null inside": b'<testsuite><testcase name="a\0b"/></testsuite>',
    "broken encoding": b'<testsuite><testcase name="\xff\xfe\xfa"/></testsuite>',
    "unknown encoding": b'<?xml version="1.0" encoding="klingon"?><testsuite/>',
    "codec that is none": b'<?xml version="1.0" encoding="zlib"?><testsuite/>',
    "multibyte encoding": '<?xml version="1.0" encoding="shift_jis"?><testsuite name="テスト"/>'.encode(
        "shift_jis"
    ),
    "huge attribute": b'<testsuite><testcase name="' + b"a" * (20 << 20) + b'"/></testsuite>',
    "huge comment": b"<testsuite><!--" + b"a" * (20 << 20),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_skipped_quickly_with_a_message(tmp_path: Path, kind: str) -> None:
    write(tmp_path, HOSTILE[kind], "bad.xml")
    write(tmp_path, suite(PASSED), "good.xml")
    began = time.process_time()
    tally, output = read_results(tmp_path)
    assert time.process_time() - began < 5
    assert (tally.passed, tally.failed, tally.skipped, tally.failures) == (1, 0, 0, [])
    assert "bad.xml was left out: it " in output or "bad.xml was left out: a single piece" in output
    assert "1 of 2 test files were left out; their tests are not counted" in output
    assert "root:" not in output


def test_a_file_of_100_megabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse.xml").open("wb") as file:
        file.truncate(100 << 20)
    tally, output = read_results(tmp_path)
    assert tally is None
    assert "larger than 64 MiB" in output


def test_the_total_size_of_all_files_is_limited(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path, suite(PASSED + " " * 90_000), f"{name}.xml")
    tally, output = read_results(tmp_path, bytes_left=200_000)
    assert tally.passed == 2
    assert "1 of 3 test files were left out" in output


def test_files_beyond_the_first_1000_are_skipped_with_a_message(tmp_path: Path) -> None:
    for number in range(1_010):
        write(tmp_path, suite(PASSED), f"{number}.xml")
    tally, output = read_results(tmp_path)
    assert tally.passed == 1_000
    assert "only the first 1000 were read" in output


def test_reading_stops_after_a_time_limit(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path, suite(PASSED), f"{name}.xml")
    clock = iter(range(0, 1_000, 30))
    out = io.StringIO()
    machine = reporter.Machine(clock=lambda: float(next(clock)))
    tally = reporter.read_junit([str(tmp_path)], reporter.JobOutput(out), machine)
    assert tally.passed == 2
    assert "take too long" in out.getvalue()


def test_the_search_in_a_huge_folder_stops_with_a_message(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path, suite(PASSED), f"{number}/a.xml")
    out = io.StringIO()
    assert list(reporter.walk_files(str(tmp_path), reporter.JobOutput(out), 5)) == []
    assert "name a smaller folder" in out.getvalue()
    assert len(list(reporter.walk_files(str(tmp_path), reporter.JobOutput(out), 12))) == 6


def test_large_valid_files_are_read(tmp_path: Path) -> None:
    case = (
        '<testcase classname="T" name="a" time="0.1"><system-out>'
        + "x" * 2_000
        + "</system-out></testcase>\n"
    )
    write(
        tmp_path,
        suite(case * 10_000 + FAILED + "<system-err><![CDATA[" + "y" * (12 << 20) + "]]></system-err>"),
    )
    assert counts(tmp_path) == (10_000, 1, 0)


def test_a_file_name_cannot_become_a_workflow_command(tmp_path: Path) -> None:
    write(tmp_path, "nonsense", "x\n::error::y.xml")
    _, output = read_results(tmp_path)
    assert not [line for line in output.splitlines() if line.startswith("::")]
