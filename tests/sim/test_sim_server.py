import httpx
import pytest

from github_sim.github import GitHub, Match
from github_sim.rest.server import serve


async def test_the_simulator_serves_real_http_and_uses_its_own_url() -> None:
    async with GitHub() as github, serve(github) as server, httpx.AsyncClient(base_url=server.url) as api:
        github.create_repository("org/upstream")
        assert (await api.get("/repos/org/upstream")).json()["url"].startswith(server.url)
        configuration = (await api.get("/_services/token/.well-known/openid-configuration")).json()
        assert configuration["issuer"] == f"{server.url}/_services/token"
        assert (await api.get(configuration["jwks_uri"])).json()["keys"]
        github.finish()


async def test_over_http_a_lost_response_is_a_broken_connection() -> None:
    async with GitHub() as github, serve(github) as server, httpx.AsyncClient(base_url=server.url) as api:
        github.create_repository("org/upstream")
        github.faults.lose_answer(on=Match(path="/repos/*"), times=1)
        with pytest.raises(httpx.TransportError):
            await api.get("/repos/org/upstream")
        assert (await api.get("/repos/org/upstream")).status_code == 200
