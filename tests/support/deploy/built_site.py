"""`built_site`: the documentation site, built once for all test processes; `site_builder` is the program that builds it."""

import fcntl
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT


def load_builder() -> Any:
    """The program as a module: it is no part of a package."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "tools" / "build_site.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site_builder = load_builder()


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent
    site = shared / "docs-site"
    with (shared / "docs-site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.exists():
            site_builder.build_site(site)
    return site
