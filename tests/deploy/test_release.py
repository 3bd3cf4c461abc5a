"""A release: one version, reproducible files, and a README that a package index can show; nothing else in the files."""

import re
import tarfile
from pathlib import Path

import pytest
from hatch_build import published_readme
from tools import release

from support.paths import ROOT
from test_requirements import PROJECT

REPOSITORY = PROJECT["urls"]["Repository"]
VERSION = release.read_version()


def test_the_published_readme_has_only_absolute_links_to_existing_files() -> None:
    text = published_readme((ROOT / "README.md").read_text(), repository=REPOSITORY, version=VERSION)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith(("http://127.0.0.1:", "https://"))] == []
    assert "mermaid" not in text
    for pattern, kind in ((r"/blob/v[^/]+/([^#]+)", "links"), (r"/raw/v[^/]+/(.+)", "pictures")):
        named = [match[1] for target in targets if (match := re.search(pattern, target))]
        assert named, kind
        assert [name for name in named if not (ROOT / name).exists()] == [], kind


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[a](docs/a.md#b)", "[a](https://h/o/n/blob/v2/docs/a.md#b)"),
        ("![a](p.png)", "![a](https://h/o/n/raw/v2/p.png)"),
        ("[a](https://x/y) [b](#c) [d](mailto:e@f)", "[a](https://x/y) [b](#c) [d](mailto:e@f)"),
        ('<img src="p.png">', '<img src="https://h/o/n/raw/v2/p.png">'),
        ("```mermaid\na\n```\n\nb", "b"),
    ],
)
def test_relative_links_become_absolute_and_others_stay(before: str, after: str) -> None:
    assert published_readme(before, repository="https://h/o/n", version="2") == after


def test_a_release_needs_a_changelog_section_its_tag_and_its_repository() -> None:
    release.check_names(VERSION, tag=f"v{VERSION}", repository=REPOSITORY)
    for version, tag, repository, reason in (
        ("99.0", None, None, "CHANGELOG.md has no section for 99.0"),
        (VERSION, "v99.0", None, "the tag is v99.0"),
        (VERSION, None, "https://github.com/someone/fork", "this is https://github.com/someone/fork"),
    ):
        with pytest.raises(release.NotReleasable, match=reason):
            release.check_names(version, tag=tag, repository=repository)


def test_the_declared_python_versions_are_those_that_a_release_is_tested_on() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert tuple(named) == release.PYTHONS
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert set(re.findall(r"^ +(3\.\d+)$", workflow, re.MULTILINE)) == set(release.PYTHONS)


@pytest.mark.slow
def test_wheel_and_sdist_are_reproducible_and_contain_only_shipped_files(tmp_path: Path) -> None:
    wheel = release.build_package(tmp_path / "dist", tmp_path, "1700000000")
    assert wheel.name == f"crcr-{VERSION}-py3-none-any.whl"
    [sdist] = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {member.name.split("/", 1)[1] for member in packed}
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders == {"action", "src"}
    release.write_checksums(tmp_path / "dist")
    assert (tmp_path / "dist" / "SHA256SUMS").read_text().count("\n") == 2
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(release.NotReleasable, match=re.escape(wheel.name)):
        release.require_same({wheel.name: wheel}, {wheel.name: tmp_path / "other"})
