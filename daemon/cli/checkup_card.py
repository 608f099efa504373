"""The check-up's verdicts on the graphics card, its driver and what computes on it. Pure.

A cure with a dot in it is a key of the whole catalogue, else of [doctor].
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from daemon import gpu_health, gpu_states
from daemon.cli.checkup import Check
from daemon.hardware.driver import DriverAdvice
from daemon.hardware.facts import Facts, Gpu, Holder
from daemon.hardware.fit import Fit
from daemon.sample import VramReading
from pipeline.messages import size_text
from pipeline.planning.torch_build import TorchBuild
from pipeline.planning.torch_choice import build_suits
from pipeline.profile import PROFILES

MIB = 1024**2
FOREIGN_MIN_BYTES, FOREIGN_MIN_SHARE = 256 * MIB, 0.25
WORD_OF_ERROR = {
    "LibRmVersionMismatch": gpu_states.MISMATCH,
    "GpuIsLost": gpu_states.LOST,
    "Unknown": gpu_states.LOST,
    "ResetRequired": gpu_states.RESET,
    "NoPermission": gpu_states.NO_PERMISSION,
    "DriverNotLoaded": gpu_states.NO_DRIVER,
    "NotFound": gpu_states.NO_CARD,
    "GpuNotFound": gpu_states.NO_CARD,
    "Timeout": gpu_states.TIMEOUT,
    "timeout": gpu_states.TIMEOUT,
    "died": gpu_states.HELPER_DIED,
    "CorruptedInforom": gpu_states.DAMAGED,
    "FunctionNotFound": gpu_states.DRIVER_OLD,
}
"""NVML's names of errors, and our words for them."""


def check_card(facts: Facts, fit: Fit, advice: DriverAdvice) -> Check:
    """Is there a card, does its driver answer, and can it be used?"""
    source = facts.sources.get("gpus") or facts.sources.get("pci", "")
    params: dict[str, Any] = {**fit.torch.params, **advice.params}

    def said(verdict: str, text: str, cure: str = "", **more: Any) -> Check:
        return Check("card", verdict, text, {**params, **more}, cure, source)  # type: ignore[arg-type]

    if advice.reason == "mismatch":
        return said("fail", "card_mismatch", "cure_card_mismatch", kernel=facts.driver.module or "?")
    if advice.reason == "container_libraries":
        return said("fail", "card_container_libraries", "driver.container_libraries")
    if facts.gpus:
        names = ", ".join(gpu.name for gpu in facts.gpus if gpu.parent is None)
        total = max((gpu.total_bytes or 0 for gpu in facts.gpus), default=0)
        seen: dict[str, Any] = {
            "names": names,
            "total": total,
            "driver": facts.driver.library or facts.driver.module or "?",
        }
        if fit.reason == "told_none":
            return said("ok", "card_unused", **seen)  # as its owner wants it
        if fit.reason == "card_missing":
            return said("fail", "card_seen", "gpu.card_missing", **seen)
        if fit.torch.device != "cuda":
            return said("warn", "card_unused", f"torch.cure_{fit.torch.reason}", **seen)
        return said("ok", "card_seen", **seen)
    if not facts.nvidia:
        if facts.others:
            others = ", ".join(card.title for card in facts.others)
            return said("ok", "card_other", "torch.cure_other_card", card=others)
        if facts.driver.module is None and facts.driver.error in ("LibraryNotFound", "DriverNotLoaded", None):
            return said("ok", "card_none")
    elif facts.driver.module is None or advice.action == "replace":
        return said("warn", f"card_{advice.reason}", f"driver.{advice.reason}")
    word = WORD_OF_ERROR.get(facts.driver.error or "", gpu_states.NVML_ERROR)
    return said("warn", "card_trouble", f"gpu.{word}", error=facts.driver.error or "?")


def check_other_cards(facts: Facts, fit: Fit) -> list[Check]:
    """Cards beside the one that is used: those that the chosen torch has no kernels for, those that the
    driver does not answer for, those of other makers."""
    found = []
    if fit.torch.unused:
        params = {**fit.torch.params, "names": ", ".join(fit.torch.unused)}
        found.append(Check("other_card", "ok", "card_beside", params, "", facts.sources.get("gpus", "")))
    slots = {gpu.slot for gpu in facts.gpus}
    silent = [card.title for card in facts.nvidia if facts.gpus and all(slots) and card.slot not in slots]
    if silent:
        params = {"names": ", ".join(silent), "driver": facts.driver.module or "?"}
        found.append(
            Check("other_card", "warn", "card_silent", params, "cure_card_silent", facts.sources["pci"])
        )
    if facts.gpus and facts.others:
        names = {"card": ", ".join(card.title for card in facts.others)}
        found.append(Check("other_card", "ok", "card_other", names, "", facts.sources["pci"]))
    return found


def check_headers(facts: Facts) -> Check | None:
    """Without headers of the running kernel no update of the driver can build its module."""
    if facts.headers is None or not facts.nvidia:
        return None
    package = "linux-headers-generic" if facts.os_id == "ubuntu" else "linux-headers-" + {
        "x86_64": "amd64", "aarch64": "arm64"}.get(facts.machine, facts.machine)  # fmt: skip
    if "pve" in (facts.kernel or ""):
        package = "proxmox-default-headers"
    params = {"kernel": facts.kernel or "?", "package": package}
    source = facts.sources.get("headers", "")
    if facts.headers:
        return Check("headers", "ok", "headers_there", params, "", source)
    return Check("headers", "warn", "headers_missing", params, "cure_headers", source)


def check_secure_boot(facts: Facts) -> Check | None:
    """With secure boot on, a driver's module must be signed with a key that the firmware knows."""
    if facts.secure_boot is None or not facts.nvidia:
        return None
    source = facts.sources.get("secure_boot", "")
    if facts.secure_boot == "on" and facts.driver.module is None:
        return Check("secure_boot", "warn", "secure_boot_on", {}, "cure_secure_boot", source)
    return Check("secure_boot", "ok", f"secure_boot_{facts.secure_boot}", {}, "", source)


def check_torch(build: TorchBuild | None, facts: Facts, fit: Fit) -> Check:
    """Does the installed torch fit card and driver? Without one, which would?"""
    choice = fit.torch
    params = {**choice.params, "pip": choice.pip_command}
    if build is None:
        if choice.requirement is None:
            return Check(
                "torch", "warn", "torch_impossible", params, "torch.cure_no_wheels", "torch/version.py"
            )
        return Check("torch", "ok", "torch_absent", params, "", "torch/version.py")
    params |= {"version": build.version}
    if (
        choice.device == "cuda"
        and fit.card is not None
        and build_suits(build.cuda, fit.card, facts.driver.seen, facts.platform) is False
    ):
        text = "torch_for_cpu" if build.cuda is None else "torch_wrong"
        return Check("torch", "warn", text, params, "cure_torch", "torch/version.py")
    return Check("torch", "ok", "version", params, "", "torch/version.py")


def check_class(fit: Fit, engine_there: bool) -> Check:
    """Is the configured hardware class what the machine is fit for? A smaller one is a person's choice, but
    worth a word once CosyVoice is there and its card lies idle."""
    params = {"profile": fit.profile, "suited": fit.suited, "origin": fit.origin or "?"}
    if fit.overridden:
        larger = PROFILES.index(fit.profile) > PROFILES.index(fit.suited)
        if larger:
            return Check("class", "warn", "class_large", params, "cure_class", fit.origin or "")
        if engine_there and fit.profile == "cpu":
            return Check("class", "warn", "class_small", params, "cure_class", fit.origin or "")
    return Check("class", "ok", f"fit.ability_{fit.profile.replace('-', '_')}", params, "", fit.origin or "")


def check_holders(gpu: Gpu | None, ours: Collection[int], source: str) -> Check | None:
    """Which other programs have memory of the card; None where the driver does not say."""
    if gpu is None or gpu.holders is None or not gpu.total_bytes:
        return None
    others = [h for h in gpu.holders if h.pid not in ours and (h.bytes or 0) >= FOREIGN_MIN_BYTES]
    if not others:
        return Check("holders", "ok", "holders_none", {}, "", source)
    held = sum(holder.bytes or 0 for holder in others)
    params = {"names": _names(others), "held": held, "total": gpu.total_bytes}
    if held < FOREIGN_MIN_SHARE * gpu.total_bytes:
        return Check("holders", "ok", "holders", params, "", source)
    return Check("holders", "warn", "holders", params, "cure_holders", source)


def _names(holders: Collection[Holder]) -> str:
    shown = []
    for holder in sorted(holders, key=lambda holder: -(holder.bytes or 0)):
        inside = f" ({holder.container})" if holder.container else ""
        shown.append(f"{holder.name or holder.pid}{inside} {size_text(holder.bytes or 0)}")
    return ", ".join(shown)


def check_health(gpu: Gpu | None, told: str | None, source: str) -> Check | None:
    """Is the card slowed down, starved, or in trouble? `told` is the word of the running service, which has
    watched for longer than this look."""
    word = told
    if word in (None, gpu_states.OK, gpu_states.UNKNOWN, gpu_states.NONE, gpu_states.ASLEEP):
        if gpu is None or gpu.total_bytes is None:
            return None
        reading = VramReading(
            gpu.free_bytes or 0, gpu.total_bytes, throttle_reasons=gpu.throttle_reasons,
            utilisation_ratio=gpu.utilisation_ratio,
        )  # fmt: skip
        word = gpu_health.condition(reading, busy=False)
    if word == gpu_states.OK:
        heat = {"heat": "?" if gpu is None or gpu.temperature_c is None else f"{gpu.temperature_c:.0f}"}
        return Check("health", "ok", "health_ok", heat, "", source)
    return Check("health", "warn", f"state.gpu.{word}", {}, f"gpu.{word}", source)
