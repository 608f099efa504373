"""A whole machine: QEMU without KVM, a kernel of its own with cgroup v2 and swap, cosyd in the image.

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
from pathlib import Path
from typing import Any

from tests.system.booted import VENV, installed_root, put_in
from tests.system.roots import CACHE, Root, made_once

PACKAGES = "linux-image-cloud-amd64 initramfs-tools zstd e2fsprogs".split()
DISK_BYTES = 4 * 1024**3
UNIT = """
[Unit]
After=multi-user.target cosyd-swap.socket
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


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """The image's file system, to look into or to change."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def base_image(suite: str = "bookworm") -> Path:
    """A folder with `disk.img`, `vmlinuz` and `initrd.img`. Made once, about two minutes, and kept."""
    installed = installed_root(suite)
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
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-d", str(tree), str(half / "disk.img")], check=True)
        shutil.rmtree(tree)
    return final


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
    """Boot, run, power off; what the scenario left in /root/result.json. `beside` are modules that it
    imports. Raises AssertionError with the console when there is none."""
    base = base_image()
    image, console = folder / "disk.img", folder / "console.log"
    subprocess.run(
        ["cp", "--sparse=always", "--reflink=auto", str(base / "disk.img"), str(image)], check=True
    )
    with mounted(image, folder / "mnt") as root:
        put_in(root, config)
        (root / "root/scenario.py").write_text(scenario, encoding="utf-8")
        # Not compiled at each start in there, by a service that may not write what it compiled.
        python = f"/{VENV}/bin/python"
        subprocess.run(["chroot", str(root), python, "-m", "compileall", "-q", f"/{VENV}/lib"], check=True)
        for module in beside:
            shutil.copy(module, root / "root")
        (root / "etc/systemd/system/scenario.service").write_text(UNIT, encoding="utf-8")
        wanted = root / "etc/systemd/system/multi-user.target.wants"
        wanted.mkdir(exist_ok=True)
        (wanted / "scenario.service").symlink_to("/etc/systemd/system/scenario.service")
        sockets = root / "etc/systemd/system/sockets.target.wants"
        sockets.mkdir(exist_ok=True)
        (sockets / "cosyd-swap.socket").symlink_to("/etc/systemd/system/cosyd-swap.socket")
        if limits:
            (root / "etc/cosyd/swap.toml").write_text(limits, encoding="utf-8")
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
        *("-drive", f"file={image},if=virtio,format=raw,cache=unsafe", "-nic", "none", "-no-reboot"),
        *("-display", "none", "-monitor", "none", "-serial", f"file:{console}"),
    ]
    subprocess.run(qemu, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
    with mounted(image, folder / "mnt") as root:
        result = root / "root/result.json"
        assert result.exists(), console.read_text("utf-8", "replace")[-4000:]
        print((root / "root/scenario.log").read_text("utf-8", "replace")[-8000:])
        found = json.loads(result.read_text("utf-8"))
    assert isinstance(found, dict)
    return found
