"""The check-up's verdicts, and that each has its words in both languages; the card: test_hardware_matrix."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from daemon.cli import checkup
from daemon.cli.checkup import GIB, MIB, Check, worst
from daemon.cli.main import main
from pipeline.messages import catalogue
from pipeline.store.place import Mount
from tests.unit.hardwarekit import Machine, look
from tests.unit.storekit import new_state

DAY = 86400.0


@pytest.mark.parametrize(
    ("check", "verdict", "text"),
    [
        (checkup.check_python((3, 11, 0)), "ok", "version"),
        (checkup.check_python((3, 10, 12)), "fail", "version"),
        (checkup.check_program("ffmpeg", None, ""), "warn", "missing_ffmpeg"),
        (checkup.check_program("espeak-ng", None, ""), "warn", "missing_espeak_ng"),
        (checkup.check_program("espeak-ng", "/usr/bin/espeak-ng", "1.51"), "ok", "version"),
        (checkup.check_disk(100 * MIB, 256 * MIB), "fail", "free"),
        (checkup.check_disk(GIB, 256 * MIB), "warn", "free"),
        (checkup.check_disk(50 * GIB, 256 * MIB), "ok", "free"),
        (checkup.check_memory(16 * GIB, GIB, 2 * GIB), "warn", "free_of"),
        (checkup.check_memory(GIB, GIB, 0), "warn", "free_of"),
        (checkup.check_memory(16 * GIB, 8 * GIB, GIB), "ok", "free_of"),
        (checkup.check_swap(0, 0, 8 * GIB, 8 * GIB, 16 * GIB), "warn", "swap_none"),
        (checkup.check_swap(0, 0, 32 * GIB, 8 * GIB, 16 * GIB), "ok", "swap_none"),
        (checkup.check_swap(8 * GIB, 0, 8 * GIB, 8 * GIB, 16 * GIB), "ok", "used_of"),
        (checkup.check_port(7860, free=True, ours=False, holder=""), "ok", "port_free"),
        (checkup.check_port(7860, free=False, ours=True, holder=""), "ok", "port_ours"),
        (checkup.check_port(7860, free=False, ours=False, holder="nginx (7)"), "fail", "port_taken"),
        (checkup.check_wyoming(10200, free=True, holder=""), "ok", "port_free"),
        (checkup.check_wyoming(10200, free=False, holder="x (7)"), "warn", "wyoming_taken"),
        (checkup.check_update("0.2.0-1a2b3c4d"), "warn", "update_left"),
        (checkup.check_database("ok"), "ok", "database_ok"),
        (checkup.check_database("absent"), "ok", "database_absent"),
        (checkup.check_database("damaged", "x"), "fail", "database_damaged"),
        (checkup.check_database("other_version", "9"), "fail", "database_other_version"),
        (checkup.check_database("unreadable", "x"), "fail", "database_unreadable"),
        (checkup.check_place("/s", None), "ok", "place_unknown"),
        (checkup.check_place("/s", Mount("/", "ext4", "/dev/vda")), "ok", "place_local"),
        (checkup.check_place("/s", Mount("/s", "nfs4", "nas:/s")), "fail", "place_network"),
        (checkup.check_service(None, False), "warn", "service_absent"),
        (checkup.check_service({"pid": 7}, True), "ok", "service_running"),
        (checkup.check_service({"pid": 7}, False), "fail", "service_unable"),
        (checkup.check_outputs(10, 100), "ok", "used_of"),
        (checkup.check_outputs(110, 100), "warn", "used_of"),
        (checkup.check_backup(None, database=False, database_age_s=0), "ok", "backup_none"),
        (checkup.check_backup(None, database=True, database_age_s=DAY), "ok", "backup_none"),
        (checkup.check_backup(None, database=True, database_age_s=9 * DAY), "warn", "backup_none"),
        (checkup.check_backup(DAY, database=True, database_age_s=9 * DAY), "ok", "backup_age"),
        (checkup.check_backup(4 * DAY, database=True, database_age_s=9 * DAY), "warn", "backup_age"),
        (checkup.check_config([]), "ok", "config_ok"),
        (checkup.check_config(["a: b"]), "fail", "config_wrong"),
    ],
)  # fmt: skip
def test_each_reading_gets_its_verdict_and_trouble_comes_with_a_cure(
    check: Check, verdict: str, text: str
) -> None:
    assert (check.verdict, check.text) == (verdict, text)
    assert bool(check.cure) == (verdict != "ok")
    for lang in ("en", "zh"):
        words = catalogue(lang)  # type: ignore[arg-type]
        assert f"doctor.name_{check.name}" in words
        for key in filter(None, (check.text, check.cure)):
            assert f"doctor.{key}" in words


def test_every_check_is_in_the_table_above() -> None:
    here = Path(__file__).read_text("utf-8")
    for name, function in inspect.getmembers(checkup, inspect.isfunction):
        if name.startswith("check_"):
            assert f"checkup.{function.__name__}(" in here


def test_worst_verdict_decides() -> None:
    ok, warn, fail = Check("a", "ok", "x"), Check("a", "warn", "x"), Check("a", "fail", "x")
    assert [worst([ok]), worst([ok, warn]), worst([warn, fail, ok])] == ["ok", "warn", "fail"]


def test_doctor_of_a_damaged_database_fails_and_changes_nothing(tmp_path: Path) -> None:
    paths = new_state(tmp_path / "state")
    content = bytearray(paths.database.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    paths.database.write_bytes(content)
    result = CliRunner().invoke(
        main, ["doctor", "--json", "--state", str(paths.root)], env={"COSYD_LANG": "en"}
    )
    assert result.exit_code == 1, result.output
    found = {check["name"]: check for check in json.loads(result.stdout)}
    assert found["database"]["verdict"] == "fail"
    assert "backups" in found["database"]["cure"]
    assert paths.database.read_bytes() == bytes(content)


def test_doctor_reads_a_healthy_folder_without_failures(tmp_path: Path) -> None:
    paths = new_state(tmp_path / "state")
    env = {"COSYD_LANG": "zh", "COSYD_WEB__PORT": "0"}
    result = CliRunner().invoke(main, ["doctor", "--state", str(paths.root)], env=env)
    assert result.exit_code == 0, result.output
    assert "数据库：正常" in result.stdout


def test_doctor_names_a_driver_that_was_updated_and_its_cure_in_both_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it looks at is a simulated machine; every line says where its values come from."""
    machine = Machine(tmp_path / "machine", "rtx3060", 535, library=580, secure_boot="on")
    monkeypatch.setattr("daemon.cli.doctor.machine", lambda _: look(machine).facts)
    state = ["--state", str(new_state(tmp_path / "state").root)]
    env = {"COSYD_WEB__PORT": "0"}
    told = CliRunner().invoke(main, ["doctor", "--json", *state], env={**env, "COSYD_LANG": "zh"})
    assert told.exit_code == 1, told.output
    found = {check["name"]: check for check in json.loads(told.stdout)}
    assert found["card"]["verdict"] == "fail"
    assert "重启机器" in found["card"]["cure"]
    assert found["secure_boot"]["source"] == "mokutil --sb-state"
    assert all(check["source"] for name, check in found.items() if name != "class")
    shown = CliRunner().invoke(main, ["doctor", *state], env={**env, "COSYD_LANG": "en"})
    assert shown.exit_code == 1
    assert "✗ Graphics card: the driver was updated (module 535.247.01 still runs)" in shown.stdout


def test_the_supervisor_side_of_the_cli_stays_light() -> None:
    """`cosyd run` must not load what the supervisor may not hold, nor wait for numpy."""
    tree = ast.parse(Path(checkup.__file__).with_name("run.py").read_text("utf-8"))
    names = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not [n for n in names if n.startswith(("rich", "pipeline.audio", "pipeline.engines"))]
