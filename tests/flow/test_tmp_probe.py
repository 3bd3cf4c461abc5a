from pathlib import Path
from gating import *
from gating import INFORMING, LABEL, GATE
from stage import UPSTREAM

async def test_probe(tmp_path: Path) -> None:
    async with gated(tmp_path) as it:
        pull = await open_pull(it, labels=[LABEL])
        def show():
            for c in it.github.checks(UPSTREAM, pull.head_sha):
                print(c.id, c.name, c.status, c.conclusion, c.output["title"])
            print("--", [ (c.method, c.path.split("/")[-1], c.status) for c in it.github.calls if "check-runs" in c.path][-12:])
        show()
        run = newest_run(it, INFORMING)
        await start(it, run)
        show()
        await finish(it, run, build="failure", test="success")
        show()
        for n in range(12):
            await look(it, 60)
        show()
        print(it.rows("select * from dispatches"))
        assert 0
