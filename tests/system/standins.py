"""A local apt repository with packages that stand in for NVIDIA's, DKMS and initramfs-tools.

They have the real names and a version above all others, and do what the roles look at: `dkms status` tells
the module as built for the running kernel (or not, where a file says so), `update-initramfs` writes a list
that `lsinitramfs` prints.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

VERSION = "9999.1"
REPOSITORY = "srv/standins"
NAMES = """nvidia-smi nvidia-modprobe nvidia-persistenced libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1
nvidia-open-kernel-dkms nvidia-kernel-dkms linux-headers-amd64""".split()
SCRIPTS = {
    "dkms": {
        "usr/sbin/dkms": '[ -e /srv/no-headers ] || echo "nvidia/535.1, $3, x86_64: installed"\n',
    },
    "initramfs-tools": {
        "usr/sbin/update-initramfs": "mkdir -p /boot; ls /etc/modprobe.d >/boot/initrd.img-$(uname -r); "
        "echo built >>/srv/initramfs.log\n",
        "usr/bin/lsinitramfs": 'cat "$1"\n',
    },
}
DEPENDS = {"nvidia-kernel-dkms": "dkms, initramfs-tools", "nvidia-open-kernel-dkms": "dkms, initramfs-tools"}


def lay(root: Path) -> None:
    """The repository in `root`, and a source that names it."""
    folder = root / REPOSITORY
    folder.mkdir(parents=True)
    entries = []
    for name in [*NAMES, *SCRIPTS]:
        tree = folder / f"{name}.tree"
        (tree / "DEBIAN").mkdir(parents=True)
        control = (
            f"Package: {name}\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: tests <root@localhost>\n"
            + (f"Depends: {DEPENDS[name]}\n" if name in DEPENDS else "")
            + "Description: stands in\n"
        )
        (tree / "DEBIAN/control").write_text(control, encoding="utf-8")
        for path, body in SCRIPTS.get(name, {}).items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(f"#!/bin/sh\n{body}", encoding="utf-8")
            (tree / path).chmod(0o755)
        package = folder / f"{name}.deb"
        build = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        data = package.read_bytes()
        entries.append(
            f"{control}Filename: ./{package.name}\nSize: {len(data)}\n"
            f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    (folder / "Packages").write_text("\n".join(entries), encoding="utf-8")
    (root / "etc/apt/sources.list.d/standins.list").write_text(
        f"deb [trusted=yes] file:/{REPOSITORY} ./\n", encoding="utf-8"
    )
