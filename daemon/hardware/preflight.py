"""What an installation would find, do, and not be able to do on this machine, before it begins. Pure.

Called by `daemon.preflight` for install.sh. Each statement is a key of [install] in `pipeline/messages` (with
a dot: of the whole catalogue) and its params. `stop` statements have the exit status that install.sh ends
with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from daemon.hardware.driver import DriverAdvice
from daemon.hardware.facts import Facts
from daemon.hardware.fit import Fit

MB, GB = 1024**2, 1024**3
SUPPORTED = {("debian", "12"), ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04")}
E_DISK, E_PORT, E_SYSTEM = 13, 14, 23
"""As in install.sh."""

Kind = Literal["found", "do", "cannot", "stop"]


@dataclass(frozen=True, slots=True)
class Part:
    """What a part brings: bytes from the network, bytes that stay on disk, bytes more while it is made, and
    the folder that they lie in."""

    download: int
    disk: int
    working: int = 0
    folder: Literal["/opt", "/var/lib"] = "/opt"


BASE = Part(420 * MB, 1500 * MB, 500 * MB)
"""Debian packages with the compiler for systemd-python, Ansible, cosyd's own packages."""
TORCH = {"cpu": Part(210 * MB, 900 * MB, 300 * MB)}
TORCH_CUDA = Part(3 * GB, 7 * GB, 3 * GB)
MODEL = Part(int(4.4 * GB), int(6.6 * GB), folder="/var/lib")
"""With the converted weights, which the first start makes."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for. `opt_free_bytes` is None where /opt lies on the disk of the recordings; `installed`
    is whether cosyd is there already; `driver` the policy of the role nvidia_driver."""

    port: int = 7860
    cosyvoice: bool = False
    model_dir: str = ""
    source: str = "auto"
    driver: str = "keep"
    installed: bool = False
    opt_free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of the report."""

    kind: Kind
    key: str
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    status: int = 0


def preflight(facts: Facts, fit: Fit, advice: DriverAdvice, wish: Wish) -> list[Statement]:
    """All of it, in the order in which it is read."""
    return [
        *_found(facts, fit, advice, wish),
        *_do(facts, fit, advice, wish),
        *_cannot(facts, fit, advice, wish),
        *_stop(facts, fit, wish),
    ]


def parts(fit: Fit, wish: Wish) -> list[Part]:
    """What has to come. What is there already is not taken off: nobody minds more room than was said."""
    if wish.installed and not wish.cosyvoice:
        return []
    wanted = [] if wish.installed else [BASE]
    if wish.cosyvoice and fit.torch.requirement is not None:
        wanted.append(TORCH.get(fit.torch.family, TORCH_CUDA))
        wanted.append(replace(MODEL, download=0) if wish.model_dir else MODEL)
    return wanted


def _found(facts: Facts, fit: Fit, advice: DriverAdvice, wish: Wish) -> Iterator[Statement]:
    place = "found_container" if facts.container else "found_system"
    params = {"name": facts.os_name or "?", "machine": facts.machine, "kind": facts.virtualization or "?"}
    yield Statement("found", place, params)
    if facts.ram_bytes is not None and facts.cpu_count is not None:
        yield Statement("found", "found_memory", {"ram": facts.ram_bytes, "count": facts.cpu_count})
    yield Statement("found", f"fit.{fit.reason}", fit.params)
    if advice.action != "none":
        yield Statement("found", f"driver.{advice.reason}", advice.params)
    if wish.cosyvoice:
        yield Statement("found", f"torch.{fit.torch.reason}", fit.torch.params)
    if wish.installed:
        yield Statement("found", "found_installed")


def _do(facts: Facts, fit: Fit, advice: DriverAdvice, wish: Wish) -> Iterator[Statement]:
    yield Statement("do", "do_packages")
    yield Statement("do", "do_service", {"port": wish.port})
    yield Statement("do", "do_class", {"profile": fit.profile})
    if wish.cosyvoice and fit.torch.requirement is not None:
        yield Statement("do", "do_torch", {"requirement": fit.torch.requirement, "family": fit.torch.family})
        if wish.model_dir:
            yield Statement("do", "do_model_copied", {"folder": wish.model_dir})
        else:
            yield Statement("do", "do_model", {"source": wish.source})
    if advice.action in ("install", "replace") and wish.driver in (advice.action, "replace"):
        yield Statement("do", "do_driver", advice.params)
    if not facts.container:
        yield Statement("do", "do_swap")
    needed = parts(fit, wish)
    sizes = {"download": sum(p.download for p in needed), "disk": sum(p.disk for p in needed)}
    if needed and facts.disk_free_bytes is not None:
        yield Statement("do", "do_sizes", {**sizes, "free": facts.disk_free_bytes})


def _cannot(facts: Facts, fit: Fit, advice: DriverAdvice, wish: Wish) -> Iterator[Statement]:
    if not wish.cosyvoice and not wish.installed:
        yield Statement("cannot", "cannot_clone")
    elif wish.cosyvoice and fit.torch.requirement is None:
        yield Statement("cannot", "torch.no_wheels", fit.torch.params)
    elif wish.cosyvoice and fit.torch.device == "cpu":
        yield Statement("cannot", f"torch.cure_{fit.torch.reason}")
    if facts.secure_boot == "on" and advice.action in ("install", "replace") and wish.driver != "keep":
        yield Statement("cannot", "cannot_secure_boot")
    if facts.container:
        yield Statement("cannot", "cannot_swap")
    if facts.port_free is False and not wish.installed and facts.port_holder is None:
        yield Statement("cannot", "cannot_see_port", {"port": wish.port})


def _stop(facts: Facts, fit: Fit, wish: Wish) -> Iterator[Statement]:
    if (facts.os_id, facts.os_version) not in SUPPORTED:
        yield Statement("stop", "stop_system", {"name": facts.os_name or "?"}, E_SYSTEM)
    if facts.port_free is False and not wish.installed:
        holder = facts.port_holder or "?"
        yield Statement("stop", "stop_port", {"port": wish.port, "holder": holder}, E_PORT)
    needed = parts(fit, wish)
    programs = sum(part.disk + part.working for part in needed if part.folder == "/opt")
    model = sum(part.disk + part.working for part in needed if part.folder == "/var/lib")
    free, opt = facts.disk_free_bytes, wish.opt_free_bytes
    if opt is not None and opt < programs:
        yield Statement("stop", "stop_disk", {"folder": "/opt", "need": programs, "free": opt}, E_DISK)
    here = model + (programs if opt is None else 0)
    if free is not None and free < here:
        yield Statement("stop", "stop_disk", {"folder": "/var/lib", "need": here, "free": free}, E_DISK)
