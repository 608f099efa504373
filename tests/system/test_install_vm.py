"""The installer in a machine of its own: a bare Debian 12 with 2 GB of RAM, a kernel that swaps, and a disk
that loses what was not synced when the power is cut. Python packages come from a folder of wheels, as on a
server without a way to an index; Debian packages over the network.

Three boots without KVM, an hour: it runs with `--long`. Each test looks at its part.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.speech import transcribe_file, word_error_rate
from tests.system.appliance import KEPT, LEFT, UNITS, recap, wheelhouse
from tests.system.vm import bare_machine

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(15_000)]

SENTENCE = "The kettle is boiling, and somebody has to take it from the stove."
TEXT = "This sentence stays in the history over a restart of the machine."
FOLDER = "/var/lib/cosyd-swap"
MIB = 1024**2
JUST_WHOLE = "TASK [cosyd : Put them in use"
"""Told when the link to the programs is made: they are marked as whole, and nothing was synced since."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came out of the machine after its third boot. During the first the power was cut."""
    plan = {"sentence": SENTENCE, "text": TEXT, "left": LEFT, "units": UNITS}
    scenario = f"import vm_install_scenario\nvm_install_scenario.main({plan!r})\n"
    beside = [Path(__file__).with_name("vm_install_scenario.py")]
    folder = tmp_path_factory.mktemp("install-vm")
    result: dict[str, Any] = {}
    with bare_machine(folder, scenario, beside=beside, wheels=wheelhouse("bookworm")) as machine:
        machine.run(1, timeout_s=6000, cut_at=JUST_WHOLE)
        for number in (2, 3):
            result = machine.run(number, timeout_s=6000)
            print(number, result["took"])
            assert "error" not in result, f"{result['error']}\n{result['journal']}"
            said = result["installation"]
            assert said["status"] == 0, f"{said['said'][-6000:]}\n{result['journal']}"
    return result


def understood(sound: str) -> None:
    """The sentence can be."""
    assert word_error_rate(SENTENCE, transcribe_file(base64.b64decode(sound))) <= 0.1


def really_swapped(swap: dict[str, Any]) -> None:
    """The kernel has it; it is root's, and nobody else may look."""
    lines = [line.split() for line in swap["kernel"].splitlines()[1:]]
    assert lines and all(line[0].startswith(f"{FOLDER}/swap-") and line[1] == "file" for line in lines)
    size = sum(int(line[2]) * 1024 for line in lines)
    assert size > 64 * MIB
    assert swap["cosyd"]["own_bytes"] >= size
    owners = {line[0]: [0, 0, "0o600"] for line in lines}
    assert {path: owner[:3] for path, owner in swap["files"].items()} == {FOLDER: [0, 0, "0o700"], **owners}


def test_a_power_cut_leaves_what_is_called_whole_whole(found: dict[str, Any]) -> None:
    said = found["installation"]["said"]
    assert "Put them in use" in said and "Install cosyd and what it needs" not in said, said


def test_it_installs_and_speaks_behind_its_login(found: dict[str, Any]) -> None:
    assert "It spoke a sentence" in found["installation"]["said"], found["installation"]["said"][-3000:]
    assert found["active"] == "active"
    assert found["doors"]["link"].startswith("http://10.0.2.15:7860/login?token=")
    assert found["doors"]["answers"] == [401, 200, 401]
    understood(found["sound"])


def test_the_swap_is_real_and_roots(found: dict[str, Any]) -> None:
    really_swapped(found["swap"])
    assert found["oom kills"] == ""


def test_a_second_run_changes_nothing(found: dict[str, Any]) -> None:
    done = found["second installation"]
    assert done["status"] == 0, done["said"][-6000:]
    assert recap(done["said"])["changed"] == 0, done["said"]
    assert found["the same process"]


def test_after_the_power_was_off_service_history_and_swap_are_back(found: dict[str, Any]) -> None:
    assert found["history"][:2] == [TEXT, SENTENCE]
    assert found["history after the boot"] == found["history"]
    understood(found["sound after the boot"])
    really_swapped(found["swap after the boot"])
    assert found["swap after the boot"]["files"].keys() == found["swap"]["files"].keys()


def test_the_removal_leaves_what_was_promised_and_no_swap(found: dict[str, Any]) -> None:
    assert found["removal"]["status"] == 0, found["removal"]["said"][-6000:]
    assert found["packages after"] == found["packages before"]
    assert found["left"] == KEPT
    assert found["units left"] == [] and found["user left"] == "" and found["swaps left"] == []
    assert found["owner of the database"] == [0, 0]
