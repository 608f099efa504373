"""`cosyd update`, `backup` and `restore` on a booted appliance: real environments, pip and systemd, and a
service that speaks meanwhile. What the environments need is linked from the installed one, not fetched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from daemon.update import build
from daemon.update.layout import Layout
from pipeline.codes import CosydError
from tests.engines.numbers import decode
from tests.system.booted import VENV, Machine, booted, free_port
from tests.system.roots import CHECKOUT, wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]
SENTENCES = 12
NUMBERS = list(range(1, SENTENCES + 1))
TEXT = [f"[slow 0.3] This is the calm sentence number {n} of it." for n in NUMBERS]
HOME = "opt/app"
CONFIG = """
keep_alive = "10 min"
[web]
port = {port}
[engines.extra]
numbers = "tests.engines.numbers:NumbersEngine"
"""
DROP_IN = f"""
[Service]
ExecStart=
ExecStart=/{HOME}/venv/bin/cosyd run
Environment=PYTHONPATH=/opt/deps
"""
# What an environment needs beside cosyd, as links, so that pip finds all of it there and fetches nothing.
FARM = f"""
set -e
mkdir -p /opt/deps /{HOME}/venvs
for entry in /{VENV}/lib/python3*/site-packages/*; do
    case ${{entry##*/}} in
    cosyd* | __editable__* | daemon | ui | pipeline | pip | pip-* | setuptools* | _distutils_hack | *.pth) ;;
    *) ln -s "$entry" /opt/deps/ ;;
    esac
done
systemctl set-environment PYTHONPATH=/opt/deps
python3 -m venv /{HOME}/venvs/first
PYTHONPATH=/opt/deps /{HOME}/venvs/first/bin/python -m pip install -q /root/first/*.whl
ln -s /{HOME}/venvs/first /{HOME}/venv
systemctl daemon-reload
"""


Change = Callable[[dict[str, str]], None]


def wheel(folder: Path) -> Path:
    """The package of this checkout."""
    sources = folder / "src"
    sources.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, sources)
    for name in ("daemon", "ui", "pipeline"):
        shutil.copytree(CHECKOUT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*pip, str(sources)], check=True, timeout=300)
    shutil.rmtree(sources)
    (made,) = folder.glob("*.whl")
    return made


def another(first: Path, name: str, change: Change) -> Path:
    """The same with other sources. pip does not look at the checksums in a wheel."""
    folder = first.parent.parent / name
    folder.mkdir()
    with zipfile.ZipFile(first) as old, zipfile.ZipFile(folder / first.name, "w") as new:
        texts = {n: old.read(n).decode("utf-8") for n in old.namelist() if n.endswith(".py")}
        change(texts)
        for member in old.namelist():
            new.writestr(member, texts.get(member) or old.read(member))
    return folder / first.name


def changed(texts: dict[str, str]) -> None:
    """Another version, as good as the first."""
    texts["ui/quiet.py"] += "\n# another version\n"


def does_not_import(texts: dict[str, str]) -> None:
    """Its trial finds out."""
    texts["ui/server.py"] += "\nraise ImportError('broken')\n"


def dies_after_a_migration(texts: dict[str, str]) -> None:
    """Another schema, and a supervisor that does not come up: its trial cannot see that."""
    doors = "    doors = open_doors(config, options.lan)\n"
    for name, old, new in (
        ("pipeline/store/schema.py", "= (_V1,)", '= (_V1, ("ALTER TABLE people ADD COLUMN colour TEXT",))'),
        ("daemon/startup.py", doors, '    raise CosydError("internal")\n'),
    ):
        assert old in texts[name]
        texts[name] = texts[name].replace(old, new)


class Appliance:
    """A booted machine with the layout of an installation, and its page."""

    def __init__(self, machine: Machine, port: int) -> None:
        self.machine, self.port = machine, port
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)

    def cosyd(self, *words: str, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
        """`cosyd WORDS` as root, as the wrapper in /usr/local/bin calls it."""
        environ = ("env", "PYTHONPATH=/opt/deps", "COSYD_STATE_DIR=/var/lib/cosyd")
        return self.machine.run(*environ, f"/{HOME}/venv/bin/cosyd", *words, timeout_s=timeout_s)

    def update(self, wheel: Path) -> subprocess.CompletedProcess[str]:
        """`cosyd update` with a wheel of the host."""
        place = self.machine.path / "root" / wheel.parent.name
        place.mkdir(exist_ok=True)
        shutil.copy(wheel, place)
        return self.cosyd("update", f"/root/{wheel.parent.name}/{wheel.name}")

    def healthy(self) -> bool:
        """Does the page answer?"""
        try:
            return self.http.get("/healthz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def current(self) -> str:
        """The environment in use."""
        return (self.machine.path / HOME / "venv").readlink().name

    def submit(self, sentences: int = SENTENCES) -> str:
        """A text of several pieces; once the first is done."""
        text = " ".join(TEXT[:sentences])
        reply = self.http.post("/api/jobs", json={"v": 1, "text": text, "voice": "numbers"})
        assert reply.status_code in (200, 201, 202), reply.text
        job = str(reply.json()["id"])
        query = f"SELECT 1 FROM segments WHERE job_id = '{job}' AND state = 'done'"
        wait_for(lambda: self.machine.rows(query), 60, "the first piece")
        return job

    def heard(self, job: str) -> list[int]:
        """The numbers of its sound, once it is over."""

        def over() -> bool:
            state = self.machine.rows(f"SELECT state FROM jobs WHERE id = '{job}'")[0]["state"]
            assert state in ("queued", "running", "done"), state
            return bool(state == "done")

        wait_for(over, 180, "the end of the job")
        wait_for(self.healthy, 60, "the page")
        reply = self.http.get(f"/api/jobs/{job}/audio", params={"format": "pcm"})
        assert reply.status_code == 200, reply.text
        return decode(reply.content)

    def schema(self) -> int:
        """Of the database."""
        return int(self.machine.rows("PRAGMA user_version")[0][0])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The version that is installed, and others."""
    first = wheel(tmp_path_factory.mktemp("wheels") / "first")
    return {
        "first": first,
        "good": another(first, "good", changed),
        "mute": another(first, "mute", does_not_import),
        "dies": another(first, "dies", dies_after_a_migration),
    }


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Iterator[Appliance]:
    """Booted once; the tests go on from each other's state, in this order."""
    port = free_port()
    with booted(tmp_path_factory.mktemp("booted"), CONFIG.format(port=port)) as machine:
        drop_in = machine.path / "etc/systemd/system/cosyd.service.d/app.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(DROP_IN, encoding="utf-8")
        (machine.path / "root/first").mkdir()
        shutil.copy(wheels["first"], machine.path / "root/first")
        machine.run("bash", "-c", FARM, timeout_s=300, check=True)
        made = Appliance(machine, port)
        machine.run("systemctl", "start", "cosyd", timeout_s=120, check=True)
        wait_for(made.healthy, 120, "the page")
        yield made
        made.http.close()


@pytest.mark.slow
def test_a_package_comes_from_a_checkout_a_folder_of_wheels_and_an_index(
    wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, python = Layout(tmp_path), Path(sys.executable)
    layout.venvs.mkdir()
    with build.package(layout, python, str(wheels["first"])) as made:
        name = build.package_name(made)
    with build.package(layout, python, str(CHECKOUT)) as made:
        assert build.package_name(made) == name, "the same sources are the same version, whoever packed them"
    assert not (CHECKOUT / "build").exists()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with build.package(layout, python, str(wheels["first"].parent)) as made:
        assert build.package_name(made) == name
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels["first"].parent))  # stands for the index
    for wanted in ("cosyd", "cosyd==0.1.0"):
        with build.package(layout, python, wanted) as made:
            assert build.package_name(made) == name
    with pytest.raises(CosydError) as caught, build.package(layout, python, "cosyd==9999"):
        pass
    assert caught.value.params["reason"] == "update_pip" and "9999" in caught.value.params["detail"]
    assert list(layout.venvs.iterdir()) == []


@pytest.mark.slow
def test_an_update_that_fails_its_trial_changes_nothing_and_nobody_notices(
    house: Appliance, wheels: dict[str, Path]
) -> None:
    pid = house.machine.show("MainPID")["MainPID"]
    done = house.update(wheels["mute"])
    assert done.returncode == 70, done.stdout + done.stderr
    assert "imports" in done.stderr and "broken" in done.stderr
    assert house.current() == "first"
    assert house.machine.show("MainPID")["MainPID"] == pid, "the service was left alone"
    venvs = house.machine.path / HOME / "venvs"
    assert [path.name for path in venvs.iterdir() if path.is_dir()] == ["first"]


def test_one_that_does_not_become_ready_is_taken_back_with_its_database_and_the_job_goes_on(
    house: Appliance, wheels: dict[str, Path]
) -> None:
    schema, job, began = house.schema(), house.submit(), time.monotonic()
    done = house.update(wheels["dies"])
    assert done.returncode == 70, done.stdout + done.stderr
    assert "did not become ready" in done.stderr
    assert house.current() == "first" and house.schema() == schema
    assert house.heard(job) == NUMBERS
    aside = list((house.machine.path / "var/lib/cosyd").glob("restored-*/cosyd.db"))
    assert len(aside) == 1, "what the new version had made of it is kept"
    assert list((house.machine.path / "var/lib/cosyd/backups").glob("before-update-*.db"))
    assert not (house.machine.path / HOME / "venvs/update.json").exists()
    print(f"\ntried and taken back in {time.monotonic() - began:.0f} s")


def test_a_good_one_is_in_use_afterwards_and_the_job_goes_on(
    house: Appliance, wheels: dict[str, Path]
) -> None:
    job, began = house.submit(), time.monotonic()
    done = house.update(wheels["good"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert house.current() != "first"
    assert house.heard(job) == NUMBERS
    running = house.machine.run("cat", f"/proc/{house.machine.show('MainPID')['MainPID']}/cmdline").stdout
    assert house.current() in running
    again = house.update(wheels["good"])
    assert again.returncode == 0 and "nothing was changed" in again.stderr
    names = {path.name for path in (house.machine.path / HOME / "venvs").iterdir() if path.is_dir()}
    assert names == {"first", house.current()}
    doctor = json.loads(house.cosyd("doctor", "--json").stdout)
    assert "update" not in {check["name"] for check in doctor}
    print(f"\nupdated in {time.monotonic() - began:.0f} s")


@pytest.mark.slow
def test_killed_while_it_changes_over_it_is_put_in_order_by_itself(
    house: Appliance, wheels: dict[str, Path]
) -> None:
    """kill -9 of the unit that changes over, once the service was stopped."""
    before, job = house.current(), house.submit()
    enter = ("nsenter", "-t", str(house.machine.leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w")
    updating = subprocess.Popen(
        [
            *(*enter, "env", "-i"),
            *("PATH=/usr/bin:/bin", "PYTHONPATH=/opt/deps", "COSYD_STATE_DIR=/var/lib/cosyd"),
            *(f"/{HOME}/venv/bin/cosyd", "update", f"/root/first/{wheels['first'].name}"),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    stopped = ("deactivating", "inactive")
    wait_for(lambda: house.machine.show("ActiveState")["ActiveState"] in stopped, 200, "the change-over")
    kill = ("systemctl", "kill", "--signal=KILL", "--kill-who=main", "cosyd-update.service")
    house.machine.run(*kill, check=True)
    said, _ = updating.communicate(timeout=300)
    wait_for(house.healthy, 120, f"the page\n{said}")
    assert house.current() in (before, "first", *said.split())
    assert not (house.machine.path / HOME / "venvs/update.json").exists()
    assert house.heard(job) == NUMBERS


def test_a_backup_is_made_while_it_speaks_and_a_restore_goes_through_the_service(house: Appliance) -> None:
    job = house.submit(5)
    made = house.cosyd("backup", "/root/all.zip", "--outputs", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["outputs"] >= 1
    assert house.heard(job) == NUMBERS[:5]
    rows = {row["id"] for row in house.machine.rows("SELECT id FROM generations")}
    done = house.cosyd("restore", "/root/all.zip", "--yes")
    assert done.returncode == 0, done.stderr
    wait_for(house.healthy, 60, "the page")
    assert house.heard(job) == NUMBERS[:5]  # it was being spoken at that moment, and is spoken on
    assert {row["id"] for row in house.machine.rows("SELECT id FROM generations")} == rows
    strange = house.machine.run("find", "/var/lib/cosyd", "!", "-user", "cosyd").stdout
    assert strange == "", "the service owns all of it"
    open_files = house.machine.run("find", "/var/lib/cosyd", "-type", "f", "-perm", "/077").stdout
    assert open_files == ""


@pytest.mark.slow
def test_a_restored_state_that_does_not_become_ready_is_taken_back(house: Appliance) -> None:
    """The configuration of the backup wants a port that is taken."""
    config = house.machine.path / "etc/cosyd/cosyd.toml"
    good = config.read_text("utf-8")
    count = len(house.machine.rows("SELECT id FROM generations"))
    config.write_text(good.replace(f"port = {house.port}", "port = 1"), encoding="utf-8")
    assert house.cosyd("backup", "/root/bad.zip").returncode == 0
    config.write_text(good, encoding="utf-8")
    job = house.submit()
    house.heard(job)
    done = house.cosyd("restore", "/root/bad.zip", "--yes")
    assert done.returncode == 70, done.stdout + done.stderr
    assert "is back" in done.stderr
    wait_for(house.healthy, 60, "the page")
    assert config.read_text("utf-8") == good
    assert len(house.machine.rows("SELECT id FROM generations")) == count + 1
