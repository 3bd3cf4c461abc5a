"""Every image that `deploy/` names is pinned by tag and digest: what was looked at is what is run."""

import re
from pathlib import Path

from support.deploy.deploy_files import CONTAINER, DEPLOY

OURS = "crcr:${IMAGE_TAG:-"
IN_KUSTOMIZATION = "crcr"
"""Our own image, whose address and tag `kustomization.yaml` sets."""
PIN = re.compile(r"(?P<name>[a-z0-9./-]+):(?P<tag>v?\d+\.\d+[-.\w]*)@sha256:[0-9a-f]{64}")


def images() -> dict[str, list[str]]:
    """All images by the file that names them, our own left out."""
    found: dict[str, list[str]] = {}
    for path in sorted(each for each in DEPLOY.rglob("*") if each.is_file()):
        named = _images_in(path)
        if named:
            found[str(path.relative_to(DEPLOY))] = named
    return found


def _images_in(path: Path) -> list[str]:
    text = path.read_text()
    if path == CONTAINER:
        stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
        arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
        bases = {re.sub(r"^\$\{(\w+)\}$", lambda found: arguments[found[1]], base) for base, _ in stages}
        copied = set(re.findall(r"^COPY --from=(\S+)", text, re.MULTILINE))
        return sorted((bases | copied) - {name for _, name in stages})
    if path.suffix not in {".yaml", ".yml"}:
        return []
    named = re.findall(r"^\s*(?:-\s+)?image:\s*[\"']?([^\s\"']+)", text, re.MULTILINE)
    return [image for image in named if image != IN_KUSTOMIZATION and not image.startswith(OURS)]


def test_every_image_is_pinned_by_tag_and_digest() -> None:
    found = images()
    assert len(found["compose/compose.yaml"]) == 6
    assert len(found["container/Containerfile"]) == 1
    assert {
        name: loose
        for name, named in found.items()
        if (loose := [image for image in named if not PIN.fullmatch(image)])
    } == {}


def test_no_two_images_share_a_digest() -> None:
    every = {image for named in images().values() for image in named}
    digests = [image.rpartition("@")[2] for image in every]
    assert len(set(digests)) == len(digests)


def test_postgresql_keeps_its_first_number_so_that_a_volume_can_be_read() -> None:
    [postgres] = [each for each in images()["compose/compose.yaml"] if each.startswith("postgres:")]
    compose = (DEPLOY / "compose" / "compose.yaml").read_text()
    assert postgres.startswith("postgres:17.")
    assert "postgres:/var/lib/postgresql/data" in compose  # from 18 on the image has it elsewhere
