"""docs/container/ without building it: what compose.yaml promises, and that image and service agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.planning.torch_choice import WHEELS, DriverSeen, Platform, TorchCard, choose_torch

FOLDER = Path(__file__).parents[2] / "docs/container"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8")
SERVICES = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_not_root_and_has_one_volume(name: str) -> None:
    service = SERVICES[name]
    uid = re.search(r"useradd --uid (\d+)", DOCKERFILE)
    assert uid is not None and service["user"] == f"{uid[1]}:{uid[1]}"
    assert service["volumes"] == ["cosyd:/data"] and list(COMPOSE["volumes"]) == ["cosyd"]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"] and service["init"] is True
    exposed = re.search(r"^EXPOSE (.+)$", DOCKERFILE, re.M)
    assert exposed is not None
    assert [port.split(":")[1] for port in service["ports"]] == exposed[1].split()
    # Above what the supervisor itself waits for, below which the engine would kill it.
    assert int(service["stop_grace_period"].removesuffix("s")) >= 20
    build = service["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"


def test_the_two_are_for_a_processor_and_for_a_card() -> None:
    assert {name: service["profiles"] for name, service in SERVICES.items()} == {
        "cosyd": ["cpu"], "cosyd-nvidia": ["nvidia"],
    }  # fmt: skip
    (device,) = SERVICES["cosyd-nvidia"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "deploy" not in SERVICES["cosyd"]


def test_the_image_has_a_health_check_and_a_user() -> None:
    last = DOCKERFILE.split("\nFROM ")[-1]
    assert re.search(r"^HEALTHCHECK .* CMD \[\"cosyd\", \"status\"\]$", last, re.M)
    assert re.search(r"^USER cosyd$", last, re.M) and last.index("\nUSER ") > last.index("\nCOPY ")


def test_the_line_for_older_drivers_is_what_the_table_of_torch_builds_says() -> None:
    told = re.search(r'TORCH: "(torch\S+) --index-url (\S+)"', (FOLDER / "compose.yaml").read_text("utf-8"))
    assert told is not None
    card = TorchCard("GTX 1060", (6, 1), 6 * 1024**3)
    choice = choose_torch(
        [card], DriverSeen("535.1", "535.1", None), Platform("x86_64", True, False), wheels=WHEELS
    )
    assert choice.requirement is not None and choice.index == told[2]
    assert choice.requirement.split(",")[-1] == told[1].removeprefix("torch")
