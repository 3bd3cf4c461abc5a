"""Every image in `deploy/` is pinned by tag and digest: the reviewed image is the one that runs."""

import re
from pathlib import Path

from support.deploy.deploy_files import CONTAINER, DEPLOY

OURS = "crcr:${IMAGE_TAG:-"
IN_KUSTOMIZATION = "crcr"
"""Our own image, whose URL and tag are set by `kustomization.yaml`."""
PIN = re.compile(r"(?P<name>[a-z0-9./-]+):(?P<tag>v?\d+\.\d+[-.\w]*)@sha256:[0-9a-f]{64}")


def images() -> dict[str, list[str]]:
    """All images by the file that names them, except our own."""
    images_by_file: dict[str, list[str]] = {}
    for path in sorted(each for each in DEPLOY.rglob("*") if each.is_file()):
        named = _images_in(path)
        if named:
            images_by_file[str(path.relative_to(DEPLOY))] = named
    return images_by_file


def _images_in(path: Path) -> list[str]:
    text = path.read_text()
    if path == CONTAINER:
        stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
        arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
        bases = {re.sub(r"^\$\{(\w+)\}$", lambda match: arguments[match[1]], base) for base, _ in stages}
        copied = set(re.findall(r"^COPY --from=(\S+)", text, re.MULTILINE))
        return sorted((bases | copied) - {name for _, name in stages})
    if path.suffix not in {".yaml", ".yml"}:
        return []
    named = re.findall(r"^\s*(?:-\s+)?image:\s*[\"']?([^\s\"']+)", text, re.MULTILINE)
    return [image for image in named if image != IN_KUSTOMIZATION and not image.startswith(OURS)]


def test_every_image_is_pinned_by_tag_and_digest() -> None:
    images_by_file = images()
    assert len(images_by_file["compose/compose.yaml"]) == 6
    assert len(images_by_file["container/Containerfile"]) == 1
    assert {
        name: loose
        for name, named in images_by_file.items()
        if (loose := [image for image in named if not PIN.fullmatch(image)])
    } == {}


def test_no_two_images_share_a_digest() -> None:
    every = {image for named in images().values() for image in named}
    digests = [image.rpartition("@")[2] for image in every]
    assert len(set(digests)) == len(digests)


def test_postgresql_keeps_its_major_version_so_that_a_volume_stays_readable() -> None:
    [postgres] = [each for each in images()["compose/compose.yaml"] if each.startswith("postgres:")]
    compose = (DEPLOY / "compose" / "compose.yaml").read_text()
    assert postgres.startswith("postgres:17.")
    assert "postgres:/var/lib/postgresql/data" in compose  # from 18 on the image uses another folder
