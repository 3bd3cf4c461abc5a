"""The operator's settings: `load_settings` reads environment and file into one frozen `Settings`.

Only `wiring`, `cli` and the documentation use these types; all other packages receive plain values.
"""

from crcr.settings.channels import ChannelSetting
from crcr.settings.load import load_settings
from crcr.settings.model import Settings
from crcr.settings.readers.locations import (
    AllowlistFile,
    AllowlistOnGitHub,
    AllowlistSource,
    IssuerSetting,
    PostgresSetting,
    SqliteSetting,
    TokenSetting,
)
from crcr.settings.setting import Setting, settings_of
from crcr.settings.upstreams import UpstreamSetting

__all__ = [
    "AllowlistFile",
    "AllowlistOnGitHub",
    "AllowlistSource",
    "ChannelSetting",
    "IssuerSetting",
    "PostgresSetting",
    "Setting",
    "Settings",
    "SqliteSetting",
    "TokenSetting",
    "UpstreamSetting",
    "load_settings",
    "settings_of",
]
