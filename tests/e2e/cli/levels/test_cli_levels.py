"""`crcr levels` on a relay's database: what it prints, proposes and overrides."""

from support.data.operator_database import OperatorShell


def test_it_evaluates_and_prints_every_backend(shell: OperatorShell) -> None:
    assert "nothing was evaluated yet" in shell.ok("levels")
    printed = shell.ok("levels", "--evaluate")
    assert "Org/Reporter" in printed
    assert "org/secret" in printed
    assert "too few results to say" in printed
    [reporter] = [row for row in shell.json("levels") if row["name"] == "Org/Reporter"]
    assert (reporter["level"], reporter["standing"]) == ("L2", "fails")
    assert len(shell.rows("SELECT 1 FROM level_evaluations")) == 2


def test_it_proposes_a_patch_with_its_text_and_writes_the_file(shell: OperatorShell) -> None:
    assert shell.ok("levels", "propose") == "no backend should move\n"
    shell.make_eligible()
    printed = shell.ok("levels", "propose", "--device", "org/reporter=npu")
    assert "Levels by evidence: Org/Reporter from L2 to L3" in printed
    assert "jobs passed ≥ 90%: 96% of 400 jobs, met since 2026-03-01" in printed
    assert "+    Org/Reporter: {oncalls: [ada]}" in printed
    file = shell.folder / "proposed.yml"
    proposal = shell.json("levels", "propose", "--device", "org/reporter=npu", "--output", str(file))
    assert file.read_text() == proposal["text"]
    assert proposal["moves"][0]["after"] == "L3"
    assert shell.crcr("levels", "propose", "--device", "npu").exit_code == 2


def test_an_override_needs_a_reason_and_a_duration(shell: OperatorShell) -> None:
    wrong = (
        ("--for", "7d"),
        ("--because", "x"),
        ("--end", "--for", "7d"),
        (),
        ("--for", "91d", "--because", "x"),
    )
    for words in wrong:
        assert shell.crcr("levels", "override", "org/reporter", *words).exit_code == 2
    assert shell.crcr("levels", "override", "un/known", "--end").exit_code == 1
    shell.make_eligible()
    shell.ok("levels", "override", "org/reporter", "--for", "7d", "--because", "new machines")
    [row] = shell.rows("SELECT override_reason FROM level_standings")
    assert row["override_reason"] == "new machines"
    shell.ok("levels", "override", "org/reporter", "--end")
    acts = [row["act"] for row in shell.rows("SELECT act FROM audit ORDER BY audit_id")]
    assert acts[-2:] == ["level_override", "level_override_ended"]
