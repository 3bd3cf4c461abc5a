"""Excerpts of logs: their masking, equal in the relay and the reporter, and their truncation."""

import ast
import inspect
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crcr.decide.jobs import log_excerpt
from crcr.decide.jobs.log_excerpt import LogExcerpt, make_excerpt, mask_secrets
from support.downstream.reporter import FILE

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"
RANDOM = "q8Zr2LmT7vXc4NbY1KpW9dHs"
MASKED = [
    ("fetch ghp_abcdefghijklmnopqrstuvwxyz0123456789 now", "fetch *** now"),
    ("github_pat_11ABCDEFG0abcdefghijklmnop", "***"),
    ("glpat-abcdefghij0123456789", "***"),
    ("AKIAIOSFODNN7EXAMPLE", "***"),
    ("xoxb-123456789012-abcdefgh", "***"),
    ("a eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln b", "a *** b"),
    ("password=hunter2 rest", "password=*** rest"),
    ("DB_PASSWORD: 'a b c' rest", "DB_PASSWORD: *** rest"),
    ('{"token": "abc", "x": 1}', '{"token": ***, "x": 1}'),
    (r"{\"token\":\"abc\",\"y\":1}", r"{\"token\":***,\"y\":1}"),
    ('secret="never closed', "secret=***"),
    ("run --api-key s3cr3t --fast", "run --api-key *** --fast"),
    ("Authorization: Bearer abc", "Authorization: ***"),
    ("cookie: a=b; c=d", "cookie: ***"),
    ("curl -u me:pw https://x.example", "curl -u *** https://x.example"),
    ("https://me:pw@host.example/x", "https://***@host.example/x"),
    ("https://me:p/w@host.example/x", "https://***@host.example/x"),
    ("GET /blob?sv=1&sig=abc%2F&x=1", "GET /blob?sv=1&sig=***&x=1"),
    (f"key\n{KEY}\nafter", "key\n***\nafter"),
    ("MIIEow\n-----END RSA PRIVATE KEY-----\nafter", "***\nafter"),
    ("-----BEGIN EC PRIVATE KEY-----\nnever ended", "***"),
    (f"value {RANDOM} end", "value *** end"),
    (
        f"/some/long/path/of/words/and/names/that/nobody/chose/{RANDOM}/x",
        "/some/long/path/of/words/and/names/that/nobody/chose/***/x",
    ),
]
KEPT = [
    "commit 0123456789abcdef0123456789abcdef01234567",
    "id 0190c2a1-0b9a-7c4e-8f21-9a2b3c4d5e6f",
    "undefined reference to `_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE'",
    "TestConv2dBackwardNumericsFloat32BatchNorm3d failed",
    "test_conv2d_3x3_fp16_bf16_cuda_sm80_bs32_h16",
    "/home/runner/work/pytorch/pytorch/build/CMakeFiles/torch_cpu.dir/x.cpp.o",
    "torch-2.6.0.dev20241112+cu121-cp312-cp312-linux_x86_64.whl and glibc-2.31-0ubuntu9.12_amd64",
    "foo.cpp:3:5: error: expected ';' before ')' token",
    "http://localhost:8080/x@y https://registry.npmjs.org/@types/node",
    "E   RuntimeError: CUDA error: no kernel image is available, basic functionality",
]


@pytest.mark.parametrize(("text", "masked"), MASKED)
def test_text_that_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize("text", KEPT)
def test_ordinary_text_is_not_masked(text: str) -> None:
    assert mask_secrets(text) == text


def test_given_values_are_masked_the_longest_first() -> None:
    assert mask_secrets("a hunter22 b hunter2 c", ["hunter2", "hunter22"]) == "a *** b *** c"


def test_the_reporter_has_the_same_masking_code_as_the_relay() -> None:
    ours, theirs = (_definitions(text) for text in (inspect.getsource(log_excerpt), FILE.read_text()))
    shared = [name for name in ours if name in theirs]
    assert {"mask_secrets", "MASKED_FORMS", "looks_random", "cut_tail", "clean_line", "LONG_RUN"} <= set(
        shared
    )
    assert [name for name in shared if ours[name] != theirs[name]] == []


def _definitions(source: str) -> dict[str, str]:
    """Return functions and constants by name, without layout."""
    definitions = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            definitions[node.name] = ast.dump(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            definitions[node.targets[0].id] = ast.dump(node.value)
    return definitions


def test_an_excerpt_is_one_error_line_and_whole_last_lines() -> None:
    tail = "\n".join(f"{number} {'x' * 300}" for number in range(100))
    excerpt = make_excerpt("\n\x1b[31mboom\x1b[0m\nmore", tail)
    assert excerpt is not None
    assert excerpt.first_error == "boom"
    lines = (excerpt.tail or "").split("\n")
    assert (lines[-1], {len(line) for line in lines}) == (f"99 {'x' * 300}", {303})
    assert len(lines) == 7 * 1024 // 304


@pytest.mark.parametrize(
    ("first", "tail"), [(None, None), ("", ""), (7, ["x"]), ({"a": 1}, True), (" \t\r", "\n\x00\n\x1b[0m")]
)
def test_input_without_readable_text_gives_no_excerpt(first: object, tail: object) -> None:
    assert make_excerpt(first, tail) is None


def test_invisible_characters_and_overwritten_text_are_removed() -> None:
    assert make_excerpt("1%\r50%\rdone\r", "a\u202eb\u200bc\td\x07") == LogExcerpt("done", "abc    d")


SECRET = "ghp_" + string.ascii_letters[:36]


@settings(deadline=None, max_examples=60)
@given(
    before=st.integers(0, 40_000),
    after=st.integers(0, 20_000),
    filler=st.sampled_from(["x", "é", "word ", "a\n", "\r", "password=", "\x1b[", "://"]),
)
def test_truncation_never_reveals_a_masked_secret(before: int, after: int, filler: str) -> None:
    def fill(size: int) -> str:
        return (filler * (size // len(filler) + 1))[:size]

    text = f"{fill(before)} {SECRET} {fill(after)}"
    excerpt = make_excerpt(text, text)
    shown = "" if excerpt is None else f"{excerpt.first_error} {excerpt.tail}"
    assert SECRET[:12] not in shown
    assert SECRET[-12:] not in shown
    assert len(shown.encode()) <= 8 * 1024 + 1


@settings(deadline=None)
@given(st.text(max_size=3_000), st.text(max_size=3_000))
def test_any_text_becomes_a_short_printable_excerpt(first: str, tail: str) -> None:
    excerpt = make_excerpt(first, tail)
    if excerpt is None:
        return
    assert "\n" not in (excerpt.first_error or "")
    assert all(line.isprintable() for line in (excerpt.tail or "").split("\n"))
    assert len((excerpt.first_error or "").encode()) <= 1024
    assert len((excerpt.tail or "").encode()) <= 7 * 1024
