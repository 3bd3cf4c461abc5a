"""`crcr allowlist`: `check` and `diff` need no settings; `refresh` and `show` use the configured source."""

import json
from pathlib import Path

from typer.testing import CliRunner

from crcr.cli.main import app
from support.data.operator_database import ALLOWLIST, OperatorShell
from support.paths import ROOT

PUBLIC = ROOT / "tests" / "data" / "pytorch-allowlist.yml"
BAD = "L1:\n  - a/b\nL5:\n  - x\nL4:\n  - c/d\n"


def check(*words: str, given: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["allowlist", *words], input=given)
    return result.exit_code, result.output


def test_the_public_allowlist_is_valid() -> None:
    code, out = check("check", str(PUBLIC))
    assert (code, "is valid: 10 repositories" in out) == (0, True)


def test_all_problems_are_printed_with_line_and_hint() -> None:
    code, out = check("check", "-", given=BAD)
    assert code == 1
    assert "<stdin>:3: error unknown level 'L5'" in out
    assert "known: L1, L2, L3, L4" in out
    assert "<stdin>:6: error c/d is at L4 and has no on-calls" in out


def test_problems_are_printed_as_json() -> None:
    code, out = check("check", "-", "--json", given=BAD)
    report = json.loads(out)
    assert (code, report["ok"]) == (1, False)
    first = report["problems"][0]
    assert (first["line"], first["severity"]) == (3, "error")


def test_a_missing_file_is_a_usage_error() -> None:
    code, out = check("check", "no-such-file.yml")
    assert (code, "cannot be read" in out) == (2, True)


def test_text_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "latin1.yml"
    file.write_bytes("L1:\n  - org/a # für\n".encode("latin-1"))
    code, out = check("check", str(file))
    assert code == 1
    assert "latin1.yml:2: error not UTF-8 text: byte 0xfc at column 14" in out.replace("\n", "")
    assert "save the file as UTF-8" in out


def test_a_file_without_any_level_is_an_error(shell: OperatorShell) -> None:
    code, out = check("check", "-", given="# nobody yet\n")
    assert (code, "<stdin>:1: error the file has no level" in out, "`crcr pause`" in out) == (1, True, True)
    (shell.folder / "allowlist.yml").write_text("# nobody yet\n")
    result = shell.crcr("allowlist", "refresh")
    assert (result.exit_code, "version 1 stays in force" in result.stderr) == (1, True)


def test_a_hostile_name_is_printed_as_text() -> None:
    code, out = check("check", "-", given='L1:\n  - "[red]evil[/red]"\n  - "\\e[2J/x"\n')
    assert code == 1
    assert "[red]evil[/red]" in out
    assert "\x1b" not in out


def test_a_comparison_prints_the_changes(tmp_path: Path) -> None:
    new = tmp_path / "new.yml"
    new.write_text(PUBLIC.read_text().replace("L2:", "L2:\n  - new/comer"))
    code, out = check("diff", str(PUBLIC), str(new))
    assert (code, out.strip()) == (0, "new/comer: added at L2")
    _, as_json = check("diff", str(PUBLIC), str(new), "--json")
    assert json.loads(as_json) == [
        {"change": "added", "repository": "new/comer", "text": "new/comer: added at L2"}
    ]
    assert check("diff", str(PUBLIC), str(PUBLIC)) == (0, "no changes\n")


def test_an_invalid_file_is_not_compared(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text(BAD)
    code, out = check("diff", str(PUBLIC), str(bad))
    assert (code, "bad.yml:3: error" in out) == (1, True)


def test_the_allowlist_in_force_is_shown_with_hidden_backends(shell: OperatorShell) -> None:
    out = shell.ok("allowlist", "show")
    assert "version 1 from" in out
    assert "Org/Reporter" in out
    assert "org/secret" in out
    listed = shell.json("allowlist", "show")["backends"]
    assert [each["repository"] for each in listed] == ["org/refused", "Org/Reporter", "org/secret"]


def test_the_allowlist_in_force_is_not_truncated_in_a_pipe(shell: OperatorShell) -> None:
    oncalls, hardware = [f"somebody-{each}" for each in range(12)], "8 x Ascend 910B, 64 GB each; " * 8
    entry = f"  - new/comer: {{oncalls: [{', '.join(oncalls)}], hardware: '{hardware.strip()}'}}\n"
    (shell.folder / "allowlist.yml").write_text(ALLOWLIST + entry)
    shell.ok("allowlist", "refresh")
    [line] = [line for line in shell.ok("allowlist", "show").splitlines() if "new/comer" in line]
    assert ", ".join(oncalls) in line
    assert hardware.strip() in line
    assert line.rstrip().endswith("public")


def test_a_refresh_reads_the_source_now_and_is_audited(shell: OperatorShell) -> None:
    assert "unchanged" in shell.ok("allowlist", "refresh")
    (shell.folder / "allowlist.yml").write_text(ALLOWLIST + "  - new/comer\n")
    assert "version 2 is in force; 4 repositories" in shell.ok("allowlist", "refresh")
    assert "new/comer" in shell.ok("allowlist", "show")
    acts = [each["act"] for each in shell.json("audit", "list")]
    assert acts.count("refresh_allowlist") == 2


def test_an_invalid_source_leaves_the_allowlist_in_force_unchanged(shell: OperatorShell) -> None:
    (shell.folder / "allowlist.yml").write_text(BAD)
    for _ in range(2):
        result = shell.crcr("allowlist", "refresh")
        assert result.exit_code == 1
        assert "unknown level 'L5'" in result.stderr
        assert "version 1 stays in force" in result.stderr
    shown = shell.crcr("allowlist", "show")
    assert (shown.exit_code, "org/secret" in shown.stdout, "L5" in shown.stderr) == (0, True, True)
