"""What Linux tells about itself: os-release, modules, swap, processor, secure boot, containers. Pure."""

from __future__ import annotations

import re

from daemon.hardware.facts import Swap

KIB = 1024
CONTAINERS = frozenset(
    {"docker", "podman", "lxc", "lxc-libvirt", "systemd-nspawn", "openvz", "rkt", "proot", "pouch",
     "container-other"}
)  # fmt: skip
"""systemd-detect-virt's words for containers; its `wsl` is a machine with a driver of its own kind."""
USEFUL_FLAGS = frozenset(
    {
        "avx2",
        "avx512f",
        "avx512_bf16",
        "avx512_vnni",
        "avx_vnni",
        "amx_bf16",
        "amx_int8",
        "asimd",
        "bf16",
        "i8mm",
    }
)
"""What makes a difference to speech on the processor."""


def parse_os_release(text: str) -> dict[str, str]:
    """`ID`, `VERSION_ID`, `PRETTY_NAME` ... of /etc/os-release, unquoted."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            found[key] = value.strip("\"'")
    return found


def parse_modules(text: str) -> frozenset[str]:
    """Names of loaded kernel modules, from /proc/modules."""
    return frozenset(line.split()[0] for line in text.splitlines() if line.strip())


def parse_swaps(text: str) -> tuple[Swap, ...]:
    """/proc/swaps; a path may have blanks, written as \\040."""
    areas = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 5 and words[2].isdecimal() and words[3].isdecimal():
            name = words[0].replace("\\040", " ")
            kind = "zram" if name.startswith("/dev/zram") else words[1]
            areas.append(Swap(name, kind, int(words[2]) * KIB, int(words[3]) * KIB))
    return tuple(areas)


def parse_cpuinfo(text: str) -> tuple[str | None, int | None, tuple[str, ...] | None]:
    """Name, number of processors, and the flags that matter here; ARM writes `Features` and no name."""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    count = len(re.findall(r"^processor\s*:", text, re.M))
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M)
    useful = tuple(sorted(USEFUL_FLAGS & set(flags[1].split()))) if flags else None
    return (" ".join(name[1].split()) if name else None), count or None, useful


def parse_mokutil(text: str) -> str | None:
    """on, off or absent from `mokutil --sb-state`; None when it could not tell."""
    if re.search(r"doesn't support Secure Boot|EFI variables are not supported", text):
        return "absent"
    if "validation is disabled in shim" in text or "SecureBoot disabled" in text:
        return "off"
    return "on" if "SecureBoot enabled" in text else None


def parse_efi_variable(data: bytes | None) -> str | None:
    """on or off from the variable SecureBoot: four bytes of attributes, then one of value."""
    return None if data is None or len(data) != 5 else "on" if data[4] == 1 else "off"


def container_of(cgroup: str) -> str:
    """The kind of container that a process is in, from its /proc/PID/cgroup on the host; "" outside."""
    for pattern, kind in (
        (r"/docker[-/][0-9a-f]{12,}|/docker/", "docker"),
        (r"/libpod-", "podman"),
        (r"/kubepods", "kubernetes"),
        (r"/lxc\.payload|/lxc/", "lxc"),
        (r"/machine\.slice/(systemd-nspawn@|machine-)", "systemd-nspawn"),
    ):
        if re.search(pattern, cgroup):
            return kind
    return ""


def parse_yes(text: str) -> bool | None:
    """timedatectl's yes and no."""
    return {"yes": True, "no": False}.get(text.strip())


def parse_listening(text: str) -> frozenset[int]:
    """Ports that somebody listens on, from /proc/net/tcp or tcp6 (state 0A)."""
    found = re.findall(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F:]+ 0A ", text, re.M | re.A)
    return frozenset(int(port, 16) for port in found)
