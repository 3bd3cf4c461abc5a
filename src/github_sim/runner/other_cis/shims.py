"""Programs that CIs put on a job's path, in so far as reporters and generated files call them.

They are small Python scripts that ask the simulator, as the real ones ask their CI.
"""

BUILDKITE_AGENT = """
import json, os, pathlib, shutil, sys, urllib.request

def option(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default

def ask(path, body=None):
    request = urllib.request.Request(
        os.environ["BUILDKITE_AGENT_ENDPOINT"] + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": "Token " + os.environ["BUILDKITE_AGENT_ACCESS_TOKEN"]},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)

words = sys.argv[1:3]
job = os.environ["BUILDKITE_JOB_ID"]
if words == ["oidc", "request-token"]:
    claims = [each for each in option("--claim").split(",") if each]
    print(ask(f"/jobs/{job}/oidc/tokens", {"audience": option("--audience"), "claims": claims})["token"])
elif words == ["step", "get"]:
    print(ask(f"/jobs/{job}/steps/" + option("--step"))[sys.argv[3]])
elif words == ["artifact", "download"]:
    kept = pathlib.Path(ask(f"/jobs/{job}/steps/" + option("--step"))["artifacts"])
    found = [path for path in kept.glob(sys.argv[3]) if path.is_file()] if kept.is_dir() else []
    if not found:
        sys.exit("no artifacts found for downloading")
    for path in found:
        target = pathlib.Path(sys.argv[4]) / path.relative_to(kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
else:
    sys.exit("the simulated agent does not know " + " ".join(sys.argv[1:]))
"""

CIRCLECI = """
import json, os, sys, urllib.request

if sys.argv[1:5] != ["run", "oidc", "get", "--claims"]:
    sys.exit("the simulated circleci does not know " + " ".join(sys.argv[1:]))
request = urllib.request.Request(
    "%(address)s",
    data=json.dumps(json.loads(sys.argv[5])).encode(),
    headers={"Authorization": "Bearer " + os.environ["CIRCLE_SIMULATED_SECRET"]},
)
with urllib.request.urlopen(request, timeout=30) as answer:
    print(json.load(answer)["token"])
"""
