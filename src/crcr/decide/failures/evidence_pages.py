"""The pages of the HUD that show the evidence of a verdict."""

from crcr.decide.failures.verdict import Evidence
from crcr.decide.model import RepoName


def evidence_url(upstream: RepoName, evidence: Evidence) -> str:
    """Return the address of the page that shows the evidence; the upstream is named, since a relay may have several."""
    if evidence.number is not None:
        path = f"/crcr/pr/{evidence.number}"
    elif evidence.sha is not None and evidence.sha.isalnum():
        path = f"/crcr/commit/{evidence.sha}"
    else:
        path = "/crcr"
    return f"{path}?upstream={upstream}"
