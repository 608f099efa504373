"""What can be the matter with a card, as words: NVML's return codes, and what each means for starts. Pure.

INTERFACES 5.1. Each word has a short name in `[state.gpu]` and a sentence with the cure in `[gpu]` of
`pipeline/messages`. A word that is not OK never means "0 bytes free": the card is unknown then.
"""

from __future__ import annotations

OK, UNKNOWN, NONE, ASLEEP = "ok", "unknown", "none", "asleep"
MISMATCH, LOST, NO_DRIVER, ACCESS_LOST = "driver_mismatch", "gpu_lost", "no_driver", "access_lost"
RESET, NO_PERMISSION, TIMEOUT, DRIVER_OLD = "reset_required", "no_permission", "timeout", "driver_old"
NO_CARD, CARD_MISSING, NONE_VISIBLE, UNSUPPORTED = (
    "no_card",
    "card_missing",
    "none_visible",
    "card_unsupported",
)
NODES_MISSING, HELPER_DIED, UNREADABLE, NVML_ERROR = (
    "nodes_missing",
    "helper_died",
    "unreadable",
    "nvml_error",
)
DAMAGED, NOT_READY, NO_HOST_MEMORY = "card_damaged", "not_ready", "no_host_memory"
HOT, POWER_BRAKE, STARVED = "throttled_heat", "throttled_power", "starved"

BY_CODE = {
    3: NVML_ERROR,  # "not supported" of a field is no trouble; of the card's memory it is
    4: NO_PERMISSION,
    6: CARD_MISSING,
    9: NO_DRIVER,
    10: TIMEOUT,
    11: LOST,  # its interrupts do not arrive
    12: NO_DRIVER,
    13: DRIVER_OLD,
    14: DAMAGED,
    15: LOST,
    16: RESET,
    18: MISMATCH,
    20: NO_HOST_MEMORY,
    27: NOT_READY,
    28: NO_CARD,
    999: LOST,
}

TROUBLE = frozenset(
    {MISMATCH, LOST, NO_DRIVER, ACCESS_LOST, RESET, NO_PERMISSION, TIMEOUT, DRIVER_OLD, NO_CARD, CARD_MISSING,
     NONE_VISIBLE, UNSUPPORTED, NODES_MISSING, HELPER_DIED, UNREADABLE, NVML_ERROR, DAMAGED, NOT_READY,
     NO_HOST_MEMORY}
)  # fmt: skip
"""Words that a reading can fail with."""

CONDITIONS = frozenset({HOT, POWER_BRAKE, STARVED})
"""It works, and slower than it should."""

WORDS = TROUBLE | CONDITIONS | {OK, UNKNOWN, NONE, ASLEEP}

BARS_START = frozenset(
    {MISMATCH, LOST, NO_DRIVER, ACCESS_LOST, RESET, TIMEOUT, CARD_MISSING, NONE_VISIBLE, UNSUPPORTED,
     NODES_MISSING, DAMAGED}
)  # fmt: skip
"""With these a new CUDA context would fail, and a start would only use up the restart budget. Where merely
the numbers cannot be read (no permission, a helper that died, an old driver), speech still works."""

ENDS_WORKER = frozenset({LOST, ACCESS_LOST, RESET, DAMAGED})
"""The context of a running worker is gone with the card. Not so after a driver update: it goes on, and must
be left alone, since a new one cannot be made before the restart of the machine."""


def state_of_code(code: int, *, nodes: bool | None = None, may_open: bool | None = None) -> str:
    """The word for NVML's return code. `nodes`: whether /dev/nvidiactl is there; `may_open`: whether it can
    be opened (a container loses its device rule when systemd reloads: EPERM, NVML says 999)."""
    if code == 999 and may_open is False:
        return ACCESS_LOST
    if code in (9, 999) and nodes is False:
        return NODES_MISSING
    return BY_CODE.get(code, NVML_ERROR)


def bars_start(state: str) -> bool:
    """Whether a worker that needs the card must not be started now."""
    return state in BARS_START
