"""`[[channel]]` tables: required keys of each kind, secrets from files, and problems that quote no secret."""

import json
from datetime import time
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.notices.notice import ChannelKind, QuietHours
from crcr.settings import ChannelSetting, load_settings
from crcr.settings.channels import read_channels
from crcr.settings.setting import InvalidValue, RawValue
from github_sim.oidc.signing import private_pem

SECRET = "https://hooks.example/T000/very-secret"
HOOK = {"name": "hook", "kind": "webhook", "url": SECRET, "secret": "very-secret-key"}
MAIL = {
    "name": "mail",
    "kind": "email",
    "smtp": "smtps://user:very-secret@mail.example",
    "sender": "crcr@a.example",
    "to": "ann@a.example, bob@a.example",
}


def read(tmp_path: Path, *tables: dict[str, Any]) -> tuple[ChannelSetting, ...]:
    return read_channels(RawValue(list(tables), "channel", tmp_path))


def test_channels_are_read_with_secrets_from_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{SECRET}\n")
    chat = {"name": "chat", "kind": "slack", "url_file": "url", "quiet": "22:00-07:30", "digest": "09:00"}
    channels = read(
        tmp_path, chat, HOOK, MAIL, {"name": "issues", "kind": "issue", "time_zone": "Asia/Tokyo"}
    )
    assert [channel.kind for channel in channels] == [
        ChannelKind.SLACK,
        ChannelKind.WEBHOOK,
        ChannelKind.EMAIL,
        ChannelKind.ISSUE,
    ]
    assert channels[0].url is not None
    assert channels[0].url.get_secret_value() == SECRET
    assert (channels[0].quiet, channels[0].digest) == (QuietHours(time(22), time(7, 30)), time(9))
    assert channels[2].to == ("ann@a.example", "bob@a.example")
    assert [channel.masked_address for channel in channels] == [
        "https://hooks.example/…",
        "https://hooks.example/…",
        "a…@a.example, b…@a.example",
        "",
    ]
    assert "very-secret" not in repr(channels)
    assert {text for channel in channels for text in channel.secrets()} == {
        SECRET,
        "very-secret-key",
        "very-secret",
    }


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"kind": "slack", "url": SECRET}, "must have a name"),
        ({"name": "a b", "kind": "issue"}, "name must have 1 to 40 letters"),
        ({"name": "a", "kind": "pigeon"}, "kind must be issue or comment"),
        ({"name": "a", "kind": "slack"}, "must have url"),
        ({"name": "a", "kind": "webhook", "url": SECRET}, "must have secret"),
        ({**MAIL, "to": "nobody"}, "to must be up to 50 e-mail addresses"),
        ({**MAIL, "sender": "a@b.example\r\nBcc: x@y.example"}, "sender must be an e-mail address"),
        ({**MAIL, "smtp": "http://very-secret@mail.example"}, "smtp must be an address such as smtp://"),
        ({"name": "a", "kind": "issue", "url": SECRET}, "which has no url"),
        ({**HOOK, "url": SECRET.replace("https", "http")}, "url must be https://"),
        ({**HOOK, "url": "http://127.0.0.1:1/very-secret"}, "url must be https://"),
        ({**HOOK, "url": "http://hooks.corp/very-secret", "private_hosts": ["hooks.corp"]}, "must be https"),
        ({**HOOK, "url": "https://user:very-secret@hooks.example/"}, "without user, password"),
        ({**HOOK, "url": "file:///very-secret"}, "url must be an https:// address"),
        ({**HOOK, "url_file": "x"}, "url and url_file are both given"),
        ({"name": "a", "kind": "slack", "url_file": "missing"}, "url_file names a file that cannot be read"),
        ({**HOOK, "quiet": "22:00"}, "two different times"),
        ({**HOOK, "quiet": "25:00-07:00"}, "must have times such as 07:30"),
        ({**HOOK, "digest": "9"}, "must have times such as 07:30"),
        ({**HOOK, "time_zone": "../etc/passwd"}, "must be a time zone"),
        ({**HOOK, "uri": "x"}, "uri is not a key"),
    ],
)
def test_a_problem_names_the_key_and_no_secret(tmp_path: Path, table: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        read(tmp_path, table)
    assert problem in str(raised.value)
    assert "very-secret" not in str(raised.value)


def test_two_channels_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="two channels of one name"):
        read(tmp_path, HOOK, HOOK)


def test_an_upstream_names_channels_and_an_unknown_one_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "allowlist.yml").write_text("L1: []\n")
    upstream = '[[upstream]]\nname = "org/core"\nallowlist = "allowlist.yml"\nchannels = ["hook", "other"]\n'
    channel = f'[[channel]]\nname = "hook"\nkind = "slack"\nurl = "{SECRET}"\n'
    (tmp_path / "crcr.toml").write_text(upstream + channel)
    environ = {
        "CRCR_GITHUB_APP_ID": "1",
        "CRCR_GITHUB_APP_PRIVATE_KEY": private_pem("app"),
        "CRCR_GITHUB_WEBHOOK_SECRET": "s" * 32,
        "CRCR_PUBLIC_URL": "https://relay.example",
        "CRCR_OIDC_AUDIENCE": "crcr",
    }
    unknown = load_settings(config=None, environ=environ, cwd=tmp_path)
    warning = "channels of org/core names other, and no [[channel]] has that name: its notices go nowhere."
    assert unknown.warnings() == (warning,)
    (tmp_path / "crcr.toml").write_text(upstream.replace(', "other"', "") + channel)
    settings = load_settings(config=None, environ=environ, cwd=tmp_path)
    assert (settings.upstreams[0].channels, settings.warnings()) == (("hook",), ())
    assert SECRET in settings.secrets()
    in_json = load_settings(
        config=None, environ={**environ, "CRCR_CHANNELS": json.dumps([HOOK])}, cwd=tmp_path
    )
    assert in_json.channels[0].kind is ChannelKind.WEBHOOK
