"""Who may do what in a repository: the roles that people are given, and what GitHub says of everybody else."""

from github_sim.world.records import Account, Repository

# Each role with the legacy permission that stands for it.
LEGACY = {
    "none": "none",
    "read": "read",
    "triage": "read",
    "write": "write",
    "maintain": "write",
    "admin": "admin",
}


def role_of(repository: Repository, account: Account) -> str:
    if account is repository.owner:
        return "admin"
    everybody = "none" if repository.private else "read"
    return repository.roles.get(account.login.lower(), everybody)


def association_of(repository: Repository, account: Account) -> str:
    """The `author_association` that goes with a role."""
    if account is repository.owner:
        return "OWNER"
    given = repository.roles.get(account.login.lower(), "none")
    return {"none": "NONE", "read": "COLLABORATOR", "triage": "COLLABORATOR"}.get(given, "MEMBER")
