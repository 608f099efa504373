"""A whole machine: QEMU without KVM, a kernel of its own with cgroup v2 and swap, cosyd in the image or not.

A scenario is a Python program that runs inside as root once the system is up; what it writes to
/root/result.json comes out of the image after the power is off. Python runs at a tenth of its speed in there.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.appliance import bare_root, put_clone
from tests.system.booted import VENV, installed_root, put_in
from tests.system.roots import CACHE, Root, made_once, wait_for

PACKAGES = "linux-image-cloud-amd64 initramfs-tools zstd e2fsprogs".split()
DISK_BYTES = 4 * 1024**3
UNIT = """
[Unit]
Wants=network-online.target
After=multi-user.target network-online.target cosyd-swap.socket
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /root/scenario.py
ExecStopPost=/usr/bin/systemctl --no-block poweroff
# Not the console: a login there hangs it up.
StandardOutput=append:/root/scenario.log
StandardError=inherit
[Install]
WantedBy=multi-user.target
"""
NETWORK = """
[Match]
Name=en*
[Network]
DHCP=yes
[DHCPv4]
UseDNS=no
"""
USER_NIC = "user,model=virtio-net-pci"
"""QEMU's own: connections of this process, a DHCP server and a resolver that asks this machine's."""


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """The image's file system, to look into or to change."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def base_image(installed: Path, suite: str = "bookworm", disk_bytes: int = DISK_BYTES) -> Path:
    """A folder with `disk.img` (the files of `installed`, a kernel), `vmlinuz` and `initrd.img`. Made once,
    about two minutes, and kept."""
    final = CACHE / f"{installed.name}-vm"
    with made_once(final) as half:
        if half is None:
            return final
        half.mkdir()
        tree = half / "root"
        subprocess.run(["cp", "-a", "--reflink=auto", str(installed), str(tree)], check=True)
        (tree / "home/ada/cosyd").mkdir(parents=True, exist_ok=True)  # where Root runs its commands
        install = shlex.join(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES])
        done = Root(tree, suite).run(
            "bash", "-c", f"apt-get update && DEBIAN_FRONTEND=noninteractive {install} && apt-get clean",
            user="root", timeout_s=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        for name, pattern in (("vmlinuz", "vmlinuz-*"), ("initrd.img", "initrd.img-*")):
            shutil.copy(next((tree / "boot").glob(pattern)), half / name)
        with (half / "disk.img").open("wb") as file:
            file.truncate(disk_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-d", str(tree), str(half / "disk.img")], check=True)
        shutil.rmtree(tree)
    return final


def enable(root: Path, unit: str, target: str) -> None:
    """As `systemctl enable` would."""
    wanted = root / f"etc/systemd/system/{target}.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / unit).symlink_to(f"/etc/systemd/system/{unit}")


def put_scenario(root: Path, scenario: str, beside: Iterable[Path]) -> None:
    """It runs at each boot. `beside` are modules that it imports."""
    (root / "root/scenario.py").write_text(scenario, encoding="utf-8")
    for module in beside:
        shutil.copy(module, root / "root")
    (root / "etc/systemd/system/scenario.service").write_text(UNIT, encoding="utf-8")
    enable(root, "scenario.service", "multi-user")


def boot(
    base: Path, image: Path, console: Path, *, memory_mb: int, nic: str, timeout_s: float, cut_at: str = ""
) -> None:
    """Until the power is off. With `cut_at`: until the console says that; then the power is cut, and what the
    kernel in there has not yet written is lost. Raises AssertionError when that takes too long."""
    qemu = [
        *(
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-m",
            str(memory_mb),
            "-smp",
            "2",
        ),
        *("-kernel", str(base / "vmlinuz"), "-initrd", str(base / "initrd.img")),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet panic=5"),
        *("-drive", f"file={image},if=virtio,format=raw,cache=unsafe", "-nic", nic, "-no-reboot"),
        *("-display", "none", "-monitor", "none", "-serial", f"file:{console}"),
    ]

    def said(text: str) -> bool:
        return bool(text) and console.exists() and text in console.read_text("utf-8", "replace")

    with subprocess.Popen(qemu, stdin=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: process.poll() is not None or said(cut_at), timeout_s, "the power to be off")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{console.read_text('utf-8', 'replace')[-4000:]}") from None
        finally:
            process.kill()
    assert not cut_at or said(cut_at), console.read_text("utf-8", "replace")[-4000:]


def copied(base: Path, image: Path) -> None:
    """The image of `base`, to be written to."""
    subprocess.run(
        ["cp", "--sparse=always", "--reflink=auto", str(base / "disk.img"), str(image)], check=True
    )


def result(root: Path, console: Path) -> dict[str, Any]:
    """What the scenario left. Raises AssertionError with the console when there is none."""
    left = root / "root/result.json"
    assert left.exists(), console.read_text("utf-8", "replace")[-4000:]
    print((root / "root/scenario.log").read_text("utf-8", "replace")[-8000:])
    found = json.loads(left.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def run_scenario(
    folder: Path,
    scenario: str,
    *,
    beside: Iterable[Path] = (),
    config: str = "",
    limits: str = "",
    memory_mb: int = 1536,
    timeout_s: float,
) -> dict[str, Any]:
    """Boot with cosyd installed, run, power off; what the scenario left."""
    base = base_image(installed_root())
    image, console = folder / "disk.img", folder / "console.log"
    copied(base, image)
    with mounted(image, folder / "mnt") as root:
        put_in(root, config)
        # Not compiled at each start in there, by a service that may not write what it compiled.
        python = f"/{VENV}/bin/python"
        subprocess.run(["chroot", str(root), python, "-m", "compileall", "-q", f"/{VENV}/lib"], check=True)
        put_scenario(root, scenario, beside)
        enable(root, "cosyd-swap.socket", "sockets")
        if limits:
            (root / "etc/cosyd/swap.toml").write_text(limits, encoding="utf-8")
    boot(base, image, console, memory_mb=memory_mb, nic="none", timeout_s=timeout_s)
    with mounted(image, folder / "mnt") as root:
        return result(root, console)


@contextmanager
def bare_machine(folder: Path, scenario: str, *, beside: Iterable[Path], wheels: Path) -> Iterator[Bare]:
    """A bare server with a clone of the committed state of this checkout, a folder of wheels in /srv/wheels
    and the way to the Debian packages. The image is gone at the end."""
    base = base_image(bare_root("bookworm"), disk_bytes=6 * 1024**3)
    image = folder / "disk.img"
    copied(base, image)
    with mounted(image, folder / "mnt") as root:
        put_clone(root)
        shutil.copytree(wheels, root / "srv/wheels")
        (root / "etc/systemd/network/wired.network").write_text(NETWORK, encoding="utf-8")
        (root / "etc/resolv.conf").write_text("nameserver 10.0.2.3\n", encoding="utf-8")  # QEMU's
        subprocess.run(["chroot", str(root), "systemctl", "-q", "enable", "systemd-networkd"], check=True)
        put_scenario(root, scenario, beside)
    try:
        yield Bare(base, image, folder)
    finally:
        image.unlink()


@dataclass
class Bare:
    """Its base, its disk, and the folder of both."""

    base: Path
    image: Path
    folder: Path

    def run(self, number: int, *, timeout_s: float, cut_at: str = "") -> dict[str, Any]:
        """Boot for the `number`th time, until the scenario switches the power off; what it left. With
        `cut_at` until the power is cut; then nothing."""
        console = self.folder / f"console-{number}.log"
        boot(self.base, self.image, console, memory_mb=2048, nic=USER_NIC, timeout_s=timeout_s, cut_at=cut_at)
        if cut_at:
            return {}
        with mounted(self.image, self.folder / "mnt") as root:
            return result(root, console)
