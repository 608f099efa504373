"""Another program fills the machine: the whole service on a made-up /proc, from the guard to the client."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.engines.numbers import decode
from tests.fakes.meminfo import meminfo
from tests.integration.service import Service, wait_for

TIGHT_MIB, CALM_MIB = 100, 3000
"""Of 4 GiB: CRITICAL, and well."""


class OnMadeUpMachine(Service):
    """Real supervisor, real page, real worker."""

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("daemon.supervisor")] = "tests.fakes.run"
        return command

    def until_status(self, status: int, text: str) -> httpx.Response:
        """Asks until the page, which is told twice a second, answers with it."""

        def there() -> httpx.Response | None:
            found = self.speech(text)
            return found if found.status_code == status else None

        return wait_for(there, 30, f"status {status}", 0.2)


def test_new_load_is_refused_with_the_name_of_who_holds_the_memory_until_it_is_free_again(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    meminfo(root, CALM_MIB)
    (root / "proc/4242").mkdir()
    (root / "proc/4242/comm").write_text("ollama\n")
    (root / "proc/4242/status").write_text("PPid:\t1\nRssAnon:\t3145728 kB\nRssShmem:\t0 kB\n")
    env = {"FAKE_ROOT": str(root), "FAKE_CHILDREN": "no"}
    service = OnMadeUpMachine(tmp_path / "state", env=env, ready_timeout_s=180)
    with service:
        assert decode(service.speech("The number 1 is said.").content) == [1]
        meminfo(root, TIGHT_MIB)
        wait_for(lambda: service.control("status")["pressure"]["foreign"], 30, "the name of the program")
        answer = service.until_status(503, "The number 2 is not.")
        assert int(answer.headers["retry-after"]) > 0
        error = answer.json()["error"]
        assert error["code"] == "foreign_memory" and "ollama" in error["message"]
        meminfo(root, CALM_MIB)
        wait_for(lambda: service.control("status")["level"] == "ok", 30, "calm")
        answer = service.until_status(200, "The number 3 is.")
        assert decode(answer.content) == [3], "nobody had to do anything"
        assert not {"worker_killed", "worker_exited", "web_recycled", "failed"} & set(service.event_kinds())
