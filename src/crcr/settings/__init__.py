"""What the operator decides: `load_settings` reads environment and file into one frozen `Settings`.

Only `wiring`, `cli` and the documentation know these types; everything below them is given plain values.
"""

from crcr.settings.load import load_settings
from crcr.settings.model import Settings
from crcr.settings.readers.locations import (
    AllowlistSource,
    FileSource,
    GitHubSource,
    IssuerSetting,
    Postgres,
    Sqlite,
    TokenSetting,
)
from crcr.settings.setting import Setting, rows
from crcr.settings.upstreams import UpstreamSetting

__all__ = [
    "AllowlistSource",
    "FileSource",
    "GitHubSource",
    "IssuerSetting",
    "Postgres",
    "Setting",
    "Settings",
    "Sqlite",
    "TokenSetting",
    "UpstreamSetting",
    "load_settings",
    "rows",
]
