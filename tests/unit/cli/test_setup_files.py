"""The files of `crcr setup`: complete, private, never overwriting; and the manifest and URLs that it uses."""

import json
import os
from pathlib import Path

import pytest

from crcr.cli.setup.files import (
    SettingsContent,
    SetupFiles,
    keep_app,
    keep_code,
    open_secrets,
    read_unfinished,
    set_aside,
    write_allowlist,
    write_new,
    write_settings,
)
from crcr.cli.setup.new_app import GitHubAddresses, NewApp, install_url
from crcr.decide.github.repository_setup import app_manifest
from crcr.errors import NotPossible
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.settings import load_settings
from github_sim.oidc.signing import private_pem
from support.paths import ROOT

APP = NewApp(
    app_id="123", page="https://github.com/apps/x", private_key=private_pem("cli"), webhook_secret="s" * 40
)


@pytest.fixture
def files(tmp_path: Path) -> SetupFiles:
    setup_files = SetupFiles(tmp_path / "relay" / "crcr.toml")
    open_secrets(setup_files)
    return setup_files


def make_content(github: str = "https://github.com") -> SettingsContent:
    return SettingsContent(
        upstream="org/up",
        public_url="https://relay.example.org",
        allowlist="allowlist.yml",
        audience='a "quoted" audience',
        host="127.0.0.1",
        port=8123,
        github=GitHubAddresses.from_web_url(github),
    )


def file_mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_written_settings_have_the_requested_values(files: SetupFiles) -> None:
    write_allowlist(files, "allowlist.yml", "org/up")
    write_settings(files, APP, make_content("https://ghe.example.org"))
    settings = load_settings(config=files.config, environ={}, cwd=Path("/"))
    assert (settings.github_app_id, settings.port, settings.oidc_audiences) == (
        "123",
        8123,
        ('a "quoted" audience',),
    )
    assert settings.github_webhook_secret.get_secret_value() == APP.webhook_secret
    assert settings.github_api_url == "https://ghe.example.org/api/v3"
    assert [issuer.issuer for issuer in settings.oidc_issuers] == ["https://ghe.example.org/_services/token"]
    assert [str(upstream.name) for upstream in settings.upstreams] == ["org/up"]


def test_secrets_are_readable_by_their_owner_only_under_any_umask(files: SetupFiles) -> None:
    files.secrets.chmod(0o755)
    umask = os.umask(0)
    try:
        open_secrets(files)
        keep_app(files, APP)
        assert file_mode(files.unfinished) == 0o600
        write_settings(files, APP, make_content())
    finally:
        os.umask(umask)
    assert file_mode(files.secrets) == 0o700
    assert {file_mode(path) for path in files.existing()} == {0o600}
    assert [path.name for path in files.secrets.iterdir() if path.name.endswith(".part")] == []


def test_an_existing_file_is_never_overwritten(files: SetupFiles) -> None:
    files.config.write_text("mine")
    with pytest.raises(NotPossible, match="exists already"):
        write_new(files.config, "theirs")
    assert files.config.read_text() == "mine"
    assert not list(files.folder.glob(".*part"))


def test_replaced_files_are_kept_with_numbered_suffixes(files: SetupFiles) -> None:
    for _ in range(2):
        write_settings(files, APP, make_content())
        set_aside(files)
    kept = sorted(path.name for path in files.folder.rglob("*.old*"))
    assert kept == [
        f"{name}.old{number}" for name in ("app.pem", "crcr.toml", "webhook") for number in (1, 2)
    ]
    assert files.existing() == []


def test_an_interruption_between_the_files_loses_nothing(files: SetupFiles) -> None:
    keep_app(files, APP)
    write_new(files.private_key, APP.private_key)  # and then the power failed
    assert read_unfinished(files).app == APP
    assert [path.name for path in write_settings(files, APP, make_content())] == ["webhook", "crcr.toml"]
    assert not files.unfinished.exists()


def test_a_code_is_kept_for_an_hour(files: SetupFiles) -> None:
    keep_code(files, "the-code")
    assert read_unfinished(files).code == "the-code"
    keep_code(files, "the-code", now=1.0)
    assert read_unfinished(files).code is None
    files.unfinished.write_text("[]")
    assert read_unfinished(files).code is None


def test_secrets_are_not_in_the_repr() -> None:
    assert APP.webhook_secret not in repr(APP)
    assert "PRIVATE" not in repr(APP)


def test_the_first_allowlist_is_valid_and_an_existing_one_is_left_alone(files: SetupFiles) -> None:
    written = write_allowlist(files, "lists/allowlist.yml", "org/up")
    assert written is not None
    checked = read_allowlist(written.read_text())
    assert (checked.allowlist is not None, checked.allowlist and checked.allowlist.entries) == (True, ())
    assert write_allowlist(files, "lists/allowlist.yml", "org/up") is None
    assert write_allowlist(files, "https://github.com/org/up/blob/main/a.yml", "org/up") is None


def test_the_published_manifest_equals_the_generated_one() -> None:
    example = json.loads((ROOT / "docs/examples/app-manifest.json").read_text())
    assert example == app_manifest(
        name="my-project-ci-relay",
        public_url="https://relay.example.org/",
        redirect_url="https://relay.example.org/crcr",
    )


@pytest.mark.parametrize(
    ("web", "api", "issuer"),
    [
        ("https://github.com", "https://api.github.com", None),
        ("https://www.github.com", "https://api.github.com", None),
        ("https://acme.ghe.com", "https://api.acme.ghe.com", "https://token.actions.acme.ghe.com"),
        (
            "https://GHE.example.org:8443",
            "https://ghe.example.org:8443/api/v3",
            "https://ghe.example.org:8443/_services/token",
        ),
    ],
)
def test_urls_are_derived_for_each_kind_of_github(web: str, api: str, issuer: str | None) -> None:
    github = GitHubAddresses.from_web_url(web)
    assert (github.api, github.issuer) == (api, issuer)
    assert github.form(None) == f"{github.web}/settings/apps/new"
    assert github.form("a/b") == f"{github.web}/organizations/a%2Fb/settings/apps/new"


def test_the_installation_page_preselects_the_upstream() -> None:
    assert install_url("https://g/apps/x", None) == "https://g/apps/x/installations/new"
    preselected = install_url("https://g/apps/x", (7, 9))
    assert (
        preselected
        == "https://g/apps/x/installations/new/permissions?suggested_target_id=7&repository_ids%5B%5D=9"
    )
