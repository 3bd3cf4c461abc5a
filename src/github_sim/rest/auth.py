"""Authentication of API calls: App JWTs and installation tokens, checked as GitHub checks them.

Tokens are opaque, about 520 characters long and valid for one hour. They carry the repositories and permissions that
they were created for; both are enforced on every call.
"""

import string
from collections.abc import Mapping
from datetime import timedelta

import jwt

from github_sim.oidc.signing import private_pem, rsa_key
from github_sim.rest.exchange import ApiError, Caller, validation_error
from github_sim.world.records import Installation, InstallationToken, Json, Repository
from github_sim.world.world import World

TOKEN_LIFE = timedelta(hours=1)
TOKEN_CHARACTERS = 520
MOST_REPOSITORIES = 500
_LEVELS = ("read", "write", "admin")
_KEY_SLOT = "app"


class Authenticator:
    def __init__(self, world: World, app_id: int, client_id: str) -> None:
        self._world = world
        self.app_id = app_id
        self.client_id = client_id
        self.use_key(_KEY_SLOT)

    def use_key(self, slot: str) -> None:
        """Make this the App's only key: tokens that another one signed are refused."""
        self.private_key_pem = private_pem(slot)
        self._public_key = rsa_key(slot).public_key()

    def app(self, header: str) -> Caller:
        """The App behind a JWT, or 401 with GitHub's words."""
        claims = self._decode(_bearer(header))
        now = self._world.now().timestamp()
        issued, expires = claims.get("iat"), claims.get("exp")
        if not isinstance(issued, int | float) or issued > now + 60:
            raise ApiError(401, "'Issued at' claim ('iat') must be an Integer representing the time of issue")
        if not isinstance(expires, int | float) or expires <= now:
            raise ApiError(401, "'Expiration time' claim ('exp') must be a numeric value in the future")
        if expires > now + 600:
            raise ApiError(401, "'Expiration time' claim ('exp') is too far in the future")
        if str(claims.get("iss")) not in {str(self.app_id), self.client_id}:
            raise ApiError(401, "Integration must exist")
        return Caller(self.app_id)

    def _decode(self, token: str) -> Json:
        options: jwt.types.Options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
        try:
            claims = jwt.decode(token, self._public_key, algorithms=["RS256"], options=options)
        except jwt.PyJWTError:
            raise ApiError(401, "A JSON web token could not be decoded") from None
        return dict(claims)

    def installation(self, header: str) -> Caller:
        token = self._world.tokens.get(_bearer(header))
        if token is None or token.expires_at <= self._world.now():
            raise ApiError(401, "Bad credentials")
        installation = self._world.installations.get(token.installation_id)
        if installation is None:
            raise ApiError(401, "Bad credentials")
        if installation.suspended_at is not None:
            raise ApiError(403, "This installation has been suspended")
        return Caller(self.app_id, token)

    def mint(self, installation: Installation, requested: Json) -> InstallationToken:
        """A new token, narrowed to the repositories and permissions that were requested."""
        token = InstallationToken(
            token=self._token_text(),
            installation_id=installation.id,
            expires_at=self._world.now() + TOKEN_LIFE,
            repository_ids=self._repositories(installation, requested),
            permissions=_permissions(installation, requested.get("permissions")),
        )
        self._world.tokens[token.token] = token
        return token

    def _repositories(self, installation: Installation, requested: Json) -> frozenset[int] | None:
        ids, names = requested.get("repository_ids"), requested.get("repositories")
        if ids is None and names is None:
            return None
        by_name = {self._world.repositories[id].name: id for id in installation.repository_ids}
        repository_ids = [*(ids or []), *(by_name.get(name, -1) for name in names or [])]
        if len(repository_ids) > MOST_REPOSITORIES:
            raise validation_error("Token", "repository_ids", "No more than 500 repositories can be listed")
        if not set(repository_ids) <= installation.repository_ids:
            raise ApiError(
                422,
                "There is at least one repository that does not exist or is not accessible "
                "to the parent installation.",
                errors=[],
            )
        return frozenset(repository_ids)

    def _token_text(self) -> str:
        start = f"ghs_{self.app_id}_"
        letters = string.ascii_letters + string.digits + "-_"
        text = "".join(self._world.rng.choices(letters, k=TOKEN_CHARACTERS - len(start)))
        return f"{start}{text[:36]}.{text[37:160]}.{text[161:]}"


def check_permission(
    world: World, caller: Caller | None, repository: Repository, permission: tuple[str, str]
) -> None:
    """Refuse with GitHub's 404 (cannot see it) or 403 (may not do it). `a|b` requires one of the two."""
    name, level = permission
    if level == "read" and not repository.private:
        return
    token = caller.token if caller else None
    if token is None or not _covers(world, token, repository):
        raise ApiError(404, "Not Found")
    granted = [token.permissions[part] for part in name.split("|") if part in token.permissions]
    if not any(_LEVELS.index(right) >= _LEVELS.index(level) for right in granted):
        raise ApiError(403, "Resource not accessible by integration")


def _covers(world: World, token: InstallationToken, repository: Repository) -> bool:
    installation = world.installations[token.installation_id]
    if repository.id not in installation.repository_ids:
        return False
    return token.repository_ids is None or repository.id in token.repository_ids


def _permissions(installation: Installation, requested: object) -> Mapping[str, str]:
    if requested is None:
        return dict(installation.permissions)
    if not isinstance(requested, dict):
        raise validation_error("Token", "permissions", "permissions is not an object")
    for name, level in requested.items():
        granted = installation.permissions.get(name)
        if level not in _LEVELS or granted is None or _LEVELS.index(granted) < _LEVELS.index(level):
            raise ApiError(422, "The permissions requested are not granted to this installation.", errors=[])
    return {"metadata": "read", **requested}


def _bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    if scheme.lower() not in {"bearer", "token"} or not token:
        raise ApiError(401, "Bad credentials")
    return token.strip()
