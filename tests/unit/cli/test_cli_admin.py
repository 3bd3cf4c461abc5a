"""`crcr admin token`: a token that is shown once, and a line that the settings accept."""

import re
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from crcr.cli.main import app
from crcr.settings.readers.locations import tokens
from crcr.settings.setting import RawValue


def run_admin_token(*words: str) -> Result:
    return CliRunner().invoke(app, ["admin", "token", *words])


@pytest.mark.parametrize(
    ("words", "variable"),
    [(("ann",), "ADMIN_TOKENS"), (("ci.bot@org", "--reader"), "HUD_TOKENS")],
)
def test_the_printed_line_is_a_valid_setting(tmp_path: Path, words: tuple[str, ...], variable: str) -> None:
    printed = run_admin_token(*words).stdout
    token = re.findall(r"^  (crcr_\S+)$", printed, re.MULTILINE)[0]
    line = re.findall(rf"^  CRCR_{variable}=(\S+)$", printed, re.MULTILINE)[0]
    (setting,) = tokens("")(RawValue(line, variable, tmp_path))
    assert (setting.name, setting.digest) == (words[0], sha256(token.encode()).hexdigest())
    assert printed.count(token) == 1


def test_two_tokens_differ() -> None:
    assert run_admin_token("ann").stdout != run_admin_token("ann").stdout


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a,b", "x" * 65, "é"])
def test_a_name_that_settings_cannot_hold_is_refused(name: str) -> None:
    result = run_admin_token(name)
    assert result.exit_code == 2
    assert "crcr_" not in result.output
