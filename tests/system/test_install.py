"""The appliance on bare Debian servers: to a service that speaks behind its login, again without a change,
over a reboot, and away again. On Debian 12 by install.sh, on Debian 13 from another machine by SSH.

Needs root, the package registries, and minutes: the tests of a class go on from each other's state, in order.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.speech import transcribe_file, word_error_rate
from tests.system.appliance import INSTALL_S, KEPT, LEFT, UNITS, Server, recap, server, server_root, unwrapped
from tests.system.booted import free_port
from tests.system.roots import CHECKOUT, registry_environment, wait_for
from tests.system.standins import lay
from tests.unit.hardwarekit import Machine
from tests.unit.rolekit import Simulated, tool, wheel

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(10_800)]

SENTENCE = "The kettle is boiling, and somebody has to take it from the stove."
TEXT = "This sentence stays in the history over a restart of the machine."


def lan_address() -> str:
    """The address of this machine, whose network the servers share."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))
        return str(sock.getsockname()[0])


def speaks(there: Server) -> None:
    """What was said can be understood."""
    done = there.shell(f"cosyd say {shlex.quote(SENTENCE)} >/root/said.wav")
    assert done.returncode == 0, done.stderr
    sound = (there.machine.path / "root/said.wav").read_bytes()
    assert word_error_rate(SENTENCE, transcribe_file(sound)) <= 0.1


def behind_its_login(there: Server) -> None:
    """Nobody gets in without the link, and it works once."""
    address = lan_address()
    assert there.get("/", address).status_code == 401
    assert there.get("/v1/models", address, headers={"Authorization": "Bearer any"}).status_code == 401
    link = there.cosyd("login-link")["url"]
    assert link.startswith(f"http://{address}:{there.port}/login?token=")
    path = link.removeprefix(f"http://{address}:{there.port}")
    assert there.get(path, address, follow_redirects=True).status_code == 200
    assert there.get(path, address, follow_redirects=True).status_code == 401


def nothing_left(there: Server, before: set[str], *, kept: bool) -> None:
    """Nothing but what was promised."""
    machine = there.machine
    assert there.packages() == before
    assert sorted(machine.run(*LEFT).stdout.split()) == (KEPT if kept else [])
    assert machine.run("getent", "passwd", "cosyd").returncode == 2
    assert machine.run("getent", "group", "cosyd").returncode == 2
    for unit in UNITS:
        assert machine.show("LoadState", unit=unit)["LoadState"] == "not-found"
    if kept:
        owner = (machine.path / "var/lib/cosyd/cosyd.db").stat()
        assert (owner.st_uid, owner.st_gid) == (0, 0)


@pytest.fixture(scope="class")
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that can be switched off and on again."""
    folder = tmp_path_factory.mktemp("here")
    with server_root(folder) as root, ExitStack() as running:
        request.cls.root, request.cls.folder, request.cls.running = root, folder, running
        yield running.enter_context(server(root, folder, free_port()))


class Switched:
    """A server of the fixture `here`, which makes it, and which these tests switch off and on."""

    root: Path
    folder: Path
    running: ExitStack
    before: set[str]

    def reboot(self, here: Server, *, cut: bool = False) -> None:
        """Power off, or the power cut, and on again."""
        if cut:
            os.kill(here.machine.leader, signal.SIGKILL)
        cls = type(self)
        cls.running.close()
        here.machine = cls.running.enter_context(server(cls.root, cls.folder, here.port)).machine


class TestHere(Switched):
    """Debian 12, `./install.sh install` on the machine itself."""

    def test_a_dry_run_says_all_and_changes_nothing(self, here: Server) -> None:
        type(self).before = here.packages()
        stamp = here.shell("touch /tmp/stamp")
        assert stamp.returncode == 0
        done = here.shell(f"./install.sh install --dry-run --no-gpu --port {here.port}")
        assert done.returncode == 0, done.stderr
        for said in ("Debian GNU/Linux 12", "espeak-ng", "/var/lib/cosyd", "on disk", "--cosyvoice"):
            assert said in done.stdout
        changed = here.shell(
            "find /etc /usr /opt /var/lib/dpkg /var/lib/apt /root -newer /tmp/stamp -type f"
        ).stdout
        assert changed == ""
        assert here.packages() == type(self).before

    def test_nobody_asked_and_nobody_there_changes_nothing(self, here: Server) -> None:
        done = here.shell(f"./install.sh install --no-gpu --port {here.port}")
        assert done.returncode == 2
        assert "--unattended" in done.stderr
        assert here.packages() == type(self).before

    def test_without_a_network_it_says_so_and_leaves_nothing_half_made(self, here: Server) -> None:
        nowhere = "http://127.0.0.1:9"
        dead = {
            "PIP_INDEX_URL": f"{nowhere}/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": "/dev/null",
            "PIP_CACHE_DIR": "/tmp/empty", "PIP_FIND_LINKS": "", "http_proxy": nowhere,
            "https_proxy": nowhere,
        }  # fmt: skip
        done = here.install(env=dead)
        assert done.returncode in (11, 12), done.stdout + done.stderr
        assert "network" in done.stderr or "apt-get could not" in done.stderr
        assert not (here.machine.path / "opt/cosyd/venv").is_symlink()
        assert here.packages() == type(self).before

    @pytest.mark.parametrize(
        ("name", "reached"),
        [
            ("dpkg", "var/lib/dpkg/info/espeak-ng*.list"),
            ("pip", "opt/cosyd/venvs/*/lib/python3*/site-packages/gradio"),
        ],
    )
    def test_the_power_is_cut_half_way(self, here: Server, name: str, reached: str) -> None:
        """While Debian packages are unpacked, and while pip does. The next run goes on."""
        root = here.machine.path
        words = f"./install.sh install --unattended --no-gpu --port {here.port} >/root/{name}.log 2>&1"
        here.shell(f"setsid bash -c {shlex.quote(words)} </dev/null >/dev/null 2>&1 &")
        wait_for(lambda: next(root.glob(reached), None), INSTALL_S, name)
        self.reboot(here, cut=True)
        assert not (root / "opt/cosyd/venv").is_symlink()
        assert "PLAY RECAP" not in (root / f"root/{name}.log").read_text("utf-8")

    def test_it_installs_and_speaks_and_shows_the_way_in(self, here: Server) -> None:
        began = time.monotonic()
        done = here.install()
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        print(f"\ninstalled in {time.monotonic() - began:.0f} s")
        assert re.search(r"It spoke a sentence: [1-9]\.\d s", done.stdout), done.stdout[-2000:]
        assert "/login?token=" in done.stdout
        assert f":{here.port}/v1" in done.stdout
        here.wait_for_page()
        behind_its_login(here)
        speaks(here)
        assert "It spoke" not in here.machine.journal() and "Hello" not in here.machine.journal()

    def test_a_second_run_changes_nothing(self, here: Server) -> None:
        pid = here.machine.show("MainPID")["MainPID"]
        done = here.install()
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        assert recap(done.stdout)["changed"] == 0, done.stdout
        assert "nothing had to be changed" in done.stdout
        assert here.machine.show("MainPID")["MainPID"] == pid

    def test_what_belongs_to_whom(self, here: Server) -> None:
        listed = here.shell(
            "stat -Lc '%U %a %n' /opt/cosyd/venv /etc/cosyd/cosyd.toml /var/lib/cosyd /var/lib/cosyd/cosyd.db"
        )
        assert listed.stdout.splitlines() == [
            "root 755 /opt/cosyd/venv", "root 644 /etc/cosyd/cosyd.toml", "cosyd 700 /var/lib/cosyd",
            "cosyd 600 /var/lib/cosyd/cosyd.db",
        ]  # fmt: skip
        assert here.shell("find /var/lib/cosyd -not -user cosyd").stdout == ""

    def test_after_a_reboot_the_service_is_back_and_the_history_is_there(self, here: Server) -> None:
        assert here.shell(f"cosyd say {shlex.quote(TEXT)} >/dev/null").returncode == 0
        self.reboot(here)
        here.wait_for_page()
        assert [row["text"] for row in here.cosyd("history", "history")] == [TEXT]
        speaks(here)

    def test_another_version_is_put_beside_and_the_old_is_the_way_back(self, here: Server) -> None:
        old = os.readlink(here.machine.path / "opt/cosyd/venv")
        version = here.shell("sed -i 's/^version = .*/version = \"0.1.1\"/' pyproject.toml")
        assert version.returncode == 0
        done = here.install()
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        new = os.readlink(here.machine.path / "opt/cosyd/venv")
        assert new != old and "/0.1.1-" in new
        assert (here.machine.path / old.lstrip("/") / ".cosyd-complete").exists()
        here.wait_for_page()
        assert "0.1.1" in here.shell("cosyd --version").stdout
        assert here.shell("sed -i 's/^version = .*/version = \"0.1.0\"/' pyproject.toml").returncode == 0
        back = here.install()
        assert back.returncode == 24 and "0.1.1 is in use, which is newer" in unwrapped(back.stdout)
        assert os.readlink(here.machine.path / "opt/cosyd/venv") == new
        assert here.shell("sed -i 's/^version = .*/version = \"0.1.1\"/' pyproject.toml").returncode == 0

    def test_h07_a_held_package_lock_is_waited_for(self, here: Server) -> None:
        here.shell("apt-get -q -y purge pkg-config pkgconf", timeout_s=300)
        held = (
            "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'a'); "
            "fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(40)"
        )
        here.shell(f"python3 -c {shlex.quote(held)} </dev/null >/dev/null 2>&1 &")
        done = here.install()
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        assert "Waiting for it" in unwrapped(done.stdout)

    def test_uninstall_leaves_recordings_settings_and_nothing_else(self, here: Server) -> None:
        done = here.shell("./install.sh uninstall", timeout_s=INSTALL_S)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        assert "/var/lib/cosyd" in done.stdout
        nothing_left(here, type(self).before, kept=True)
        assert not (here.machine.path / "var/lib/cosyd-swap").exists()

    def test_a_later_installation_takes_them_up_again(self, here: Server) -> None:
        done = here.install()
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        here.wait_for_page()
        assert [row["text"] for row in here.cosyd("history", "history")] == [TEXT]
        assert here.shell("find /var/lib/cosyd -not -user cosyd").stdout == ""

    def test_purge_wants_the_word_and_then_nothing_is_left(self, here: Server) -> None:
        refused = here.shell("./install.sh uninstall --purge", stdin="no\n", timeout_s=INSTALL_S)
        assert refused.returncode == 18
        assert here.answers()
        done = here.shell("./install.sh uninstall --purge", stdin="delete\n", timeout_s=INSTALL_S)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        nothing_left(here, type(self).before, kept=False)


class TestKilledTenTimes(Switched):
    """Debian 12, `./install.sh install`, killed at ten moments one after the other: its processes at the odd
    ones, the power cut at the even. A cut here loses no writes, as the disk cache is the host's. Each run
    goes on from what the one before left."""

    @pytest.mark.parametrize(
        ("number", "name", "reached"),
        [
            (1, "lists of packages are fetched", "opt/cosyd/packages.before"),
            (2, "python3-venv is unpacked", "var/lib/dpkg/info/python3*-venv.list"),
            (3, "Ansible is installed", "opt/cosyd/provision/venv/lib/python3*/site-packages/ansible"),
            (4, "espeak-ng is unpacked", "var/lib/dpkg/info/espeak-ng*.list"),
            (5, "the user is described", "usr/lib/tmpfiles.d/cosyd.conf"),
            (6, "the programs' folder is made", "opt/cosyd/venvs/*/bin/python"),
            (7, "pip unpacks", "opt/cosyd/venvs/*/lib/python3*/site-packages/gradio"),
            (8, "the programs are whole", "opt/cosyd/venvs/*/.cosyd-complete"),
            (9, "the configuration is written", "etc/cosyd/cosyd.toml"),
            (10, "the service starts", "var/lib/cosyd/cosyd.db"),
        ],
    )
    def test_it_is_killed_while(self, here: Server, number: int, name: str, reached: str) -> None:
        root, unit = here.machine.path, f"install-{number}"
        if number == 1:
            type(self).before = here.packages()
        assert not list(root.glob(reached)), "the runs before did not get as far as this"

        def there() -> bool:
            found = any(root.glob(reached))
            assert found or here.runs(unit), (root / f"root/{unit}.log").read_text("utf-8")[-4000:]
            return found

        began = time.monotonic()
        here.begin(unit)
        wait_for(there, INSTALL_S, name)
        if number % 2:
            here.kill(unit)
        else:
            self.reboot(here, cut=True)
        print(f"\n{number}: {name} after {time.monotonic() - began:.0f} s")
        assert "PLAY RECAP" not in (root / f"root/{unit}.log").read_text("utf-8")

    def test_the_next_run_goes_on_to_a_service_that_speaks(self, here: Server) -> None:
        done = here.install()
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        here.wait_for_page()
        behind_its_login(here)
        speaks(here)
        assert here.machine.run("dpkg", "--audit").stdout == ""
        assert len(list((here.machine.path / "opt/cosyd/venvs").iterdir())) == 1

    def test_and_the_one_after_changes_nothing(self, here: Server) -> None:
        done = here.install()
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        assert recap(done.stdout)["changed"] == 0, done.stdout

    def test_the_removal_knows_all_that_came_in_eleven_runs(self, here: Server) -> None:
        done = here.shell("./install.sh uninstall", timeout_s=INSTALL_S)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        nothing_left(here, type(self).before, kept=True)


@contextmanager
def over_ssh(folder: Path, suite: str) -> Iterator[tuple[Server, Path]]:
    """A server that ada reaches by SSH and where she may become root; and an inventory that has it."""
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with server_root(folder, suite) as root:
        authorized = root / "home/ada/.ssh/authorized_keys"
        authorized.parent.mkdir(mode=0o700)
        authorized.write_text((folder / "key.pub").read_text("utf-8"), encoding="utf-8")
        subprocess.run(["chown", "-R", "1000:1000", str(root / "home/ada")], check=True)
        with (root / "etc/shadow").open("a", encoding="utf-8") as shadow:
            shadow.write("ada:*:20000:0:99999:7:::\n")
        (root / "etc/sudoers.d/ada").write_text("ada ALL=(ALL) NOPASSWD: ALL\n", encoding="utf-8")
        with server(root, folder, free_port()) as there:
            ssh = free_port()
            there.shell("mkdir -p /run/sshd && ssh-keygen -A")
            there.machine.run("/usr/sbin/sshd", "-p", str(ssh), "-o", "UsePAM=no", check=True)
            inventory = folder / "inventory.yml"
            closet = {
                "ansible_host": "127.0.0.1",
                "ansible_port": ssh,
                "ansible_user": "ada",
                "ansible_ssh_private_key_file": str(key),
                "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
                "cosyd_port": there.port,
                "cosyd_api_keys": ["Open WebUI"],
                "cosyd_environment": {**registry_environment(), "PIP_CACHE_DIR": "/var/cache/pip"},
            }
            inventory.write_text(json.dumps({"cosyd": {"hosts": {"closet": closet}}}), encoding="utf-8")
            yield there, inventory


def ansible(inventory: Path, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`ansible-playbook` on this machine. JSON is YAML, so the inventory may be that."""
    return subprocess.run(
        [tool("ansible-playbook"), "-i", str(inventory), playbook, *arguments],
        cwd=CHECKOUT / "ansible",
        env={
            **os.environ, "LC_ALL": "C.UTF-8", "XDG_CACHE_HOME": str(inventory.parent),
            "ANSIBLE_HOME": str(inventory.parent / "ansible"), "ANSIBLE_CONFIG": "ansible.cfg",
        },
        capture_output=True, text=True, timeout=INSTALL_S,
    )  # fmt: skip


@pytest.fixture(scope="class")
def closet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Debian 13."""
    with over_ssh(tmp_path_factory.mktemp("ssh"), "trixie") as (there, inventory):
        request.cls.inventory = inventory
        yield there


class TestOverSsh:
    """Debian 13, from this machine, as a user who becomes root."""

    def play(self, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`ansible-playbook PLAYBOOK ARGUMENTS` here."""
        return ansible(type(self).inventory, playbook, "-e", "hardware_profile_gpu=none", *arguments)

    def test_h13_a_check_on_a_bare_server_ends_well_and_changes_nothing(self, closet: Server) -> None:
        type(self).before = closet.packages()
        closet.shell("touch /tmp/stamp")
        done = self.play("site.yml", "--check", "--diff")
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        assert "espeak-ng" in done.stdout and "+profile" in done.stdout
        changed = closet.shell(
            "find /etc /usr /opt /var/lib/dpkg /var/lib/apt -newer /tmp/stamp -type f"
        ).stdout
        assert changed == ""
        assert closet.packages() == type(self).before

    def test_it_installs_and_speaks(self, closet: Server) -> None:
        done = self.play("site.yml")
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        assert "API key for Open WebUI" in unwrapped(done.stdout)
        closet.wait_for_page()
        behind_its_login(closet)
        speaks(closet)
        assert [key["name"] for key in closet.cosyd("key", "list")] == ["Open WebUI"]

    def test_h11_a_second_run_changes_nothing_and_starts_nothing_anew(self, closet: Server) -> None:
        pid = closet.machine.show("MainPID")["MainPID"]
        done = self.play("site.yml")
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        assert recap(done.stdout)["changed"] == 0, done.stdout
        assert closet.machine.show("MainPID")["MainPID"] == pid

    def test_a_full_disk_is_named_and_nothing_half_made_stays(self, closet: Server) -> None:
        """The next programs do not fit; those in use go on."""
        closet.shell(
            "mkdir -p /tmp/small && mount -t tmpfs -o size=60M tmpfs /tmp/small &&"
            " mv /opt/cosyd/venvs /opt/cosyd/kept"
        )
        closet.shell(
            "mkdir /opt/cosyd/venvs && mount --bind /tmp/small /opt/cosyd/venvs &&"
            " ln -s /opt/cosyd/kept/* /opt/cosyd/venvs/"
        )
        done = self.play("site.yml", "-e", '{"cosyd_extras": ["ja"]}')
        closet.shell(
            "umount /opt/cosyd/venvs && rmdir /opt/cosyd/venvs && mv /opt/cosyd/kept /opt/cosyd/venvs"
        )
        assert done.returncode != 0
        assert "The disk is full" in unwrapped(done.stdout), done.stdout[-3000:]
        assert len(list((closet.machine.path / "opt/cosyd/venvs").iterdir())) == 1
        assert closet.answers()

    def test_the_removal_leaves_nothing_else(self, closet: Server) -> None:
        done = self.play("uninstall.yml")
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        nothing_left(closet, type(self).before, kept=True)


class TestConfined:
    """A container whose services may not have mounts of their own."""

    def test_exactly_what_fails_is_left_out_and_it_speaks(self, tmp_path: Path) -> None:
        with (
            server_root(tmp_path) as root,
            server(root, tmp_path, free_port(), "--private-users=identity") as there,
        ):
            there.forbid_mounts()
            done = there.install()
            assert done.returncode == 0, done.stdout[-6000:] + done.stderr
            text = (root / "etc/systemd/system/cosyd.service.d/container.conf").read_text("utf-8")
            print(text)
            left_out = set(re.findall(r"^(\w+)=", text, flags=re.MULTILINE))
            assert {"ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateMounts"} <= left_out
            # What needs no mount stays.
            kept = {"NoNewPrivileges", "CapabilityBoundingSet", "SystemCallFilter", "RestrictSUIDSGID"}
            assert not left_out & (kept | {"RestrictNamespaces", "LockPersonality"})
            there.wait_for_page()
            behind_its_login(there)
            speaks(there)
            again = there.install()
            assert recap(again.stdout)["changed"] == 0, again.stdout


DRIVER_PLAY = """
- name: The driver alone
  hosts: cosyd
  become: true
  gather_facts: false
  roles: [hardware_profile, nvidia_driver]
"""


@pytest.fixture(scope="class")
def driven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Debian 12 with a card, a driver's stand-in packages, and nouveau loaded."""
    folder = tmp_path_factory.mktemp("driver")
    with over_ssh(folder, "bookworm") as (there, inventory):
        lay(there.machine.path)
        (folder / "fake").mkdir()
        simulated = Simulated(Machine(folder / "fake", "rtx3060", nouveau=True))
        simulated.commands(folder / "commands")
        for command in (folder / "commands").iterdir():
            shutil.copy(command, there.machine.path / "usr/local/bin" / command.name)
        shutil.copytree(folder / "fake", there.machine.path / "srv/fake", symlinks=True)
        (folder / "play.yml").write_text(DRIVER_PLAY, encoding="utf-8")
        kernel = os.uname().release
        (there.machine.path / "boot").mkdir(exist_ok=True)
        (there.machine.path / f"boot/initrd.img-{kernel}").write_text("old\n", encoding="utf-8")
        request.cls.inventory, request.cls.folder = inventory, folder
        yield there


class TestDriver:
    """Debian 12 with an RTX 3060 and packages that stand in for NVIDIA's: what is installed, in which order,
    and what is not done twice. No module is loaded; the real packages were not run."""

    def play(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The roles, told that a driver may be installed."""
        variables = {
            "hardware_profile_wheel": str(wheel(type(self).folder)),
            "hardware_profile_root": "/srv/fake",
            "nvidia_driver_policy": "install",
            "nvidia_driver_kernel": os.uname().release,
        }
        pairs = [word for key, value in variables.items() for word in ("-e", f"{key}={value}")]
        play = str(type(self).folder / "play.yml")
        return ansible(type(self).inventory, play, *pairs, *arguments)

    def test_h03_a_module_that_was_not_built_for_the_running_kernel_is_named(self, driven: Server) -> None:
        (driven.machine.path / "srv/no-headers").touch()
        done = self.play("-e", "nvidia_driver_kernel=6.1.0-99-gone")
        assert done.returncode != 0
        said = unwrapped(done.stdout)
        assert "was not built for the running kernel 6.1.0-99-gone" in said, done.stdout[-3000:]
        assert "linux-headers-amd64" in said
        (driven.machine.path / "srv/no-headers").unlink()

    def test_h01_nouveau_is_shut_out_of_the_initramfs_too_and_a_restart_is_asked_for(
        self, driven: Server
    ) -> None:
        done = self.play()
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        assert "Restart the machine" in unwrapped(done.stdout)
        image = driven.machine.path / f"boot/initrd.img-{os.uname().release}"
        assert "cosyd-nouveau.conf" in image.read_text("utf-8")
        assert (
            "nvidia-kernel-dkms" in driven.packages() and "nvidia-open-kernel-dkms" not in driven.packages()
        )
        held = driven.machine.run("apt-mark", "showhold").stdout.split()
        assert "nvidia-kernel-dkms" in held and "linux-headers-amd64" not in held
        assert (driven.machine.path / "opt/cosyd/restart-needed").exists()

    def test_h11_until_then_a_second_run_does_nothing_again(self, driven: Server) -> None:
        built = (driven.machine.path / "srv/initramfs.log").read_text("utf-8")
        done = self.play()
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        assert recap(done.stdout)["changed"] == 0, done.stdout
        assert (driven.machine.path / "srv/initramfs.log").read_text("utf-8") == built
        assert "Restart the machine" in unwrapped(done.stdout)

    def test_h01_a_blacklist_without_its_initramfs_is_made_good(self, driven: Server) -> None:
        image = driven.machine.path / f"boot/initrd.img-{os.uname().release}"
        image.write_text("old\n", encoding="utf-8")
        assert self.play().returncode == 0
        assert "cosyd-nouveau.conf" in image.read_text("utf-8")

    def test_the_removal_leaves_the_driver_and_lets_it_be_updated(self, driven: Server) -> None:
        done = ansible(type(self).inventory, "uninstall.yml")
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        assert "nvidia-kernel-dkms" in driven.packages()
        assert driven.machine.run("apt-mark", "showhold").stdout == ""
