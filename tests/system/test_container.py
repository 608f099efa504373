"""docs/container/: every line of the Dockerfile is run, and what comes out is started as compose.yaml says:
not as root, on a read-only root, with one volume, and judged by its own health check."""

from __future__ import annotations

import io
import os
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.system.booted import free_port
from tests.system.dockerfile import Builder, Container, Image, Unknown, container, instructions
from tests.system.roots import CHECKOUT, wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]
DOCKERFILE = CHECKOUT / "docs/container/Dockerfile"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Built from the files of this checkout, without CosyVoice: PyTorch is most of its size."""
    import shutil

    folder = tmp_path_factory.mktemp("image")
    try:
        yield Builder(CHECKOUT, folder).build(DOCKERFILE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def healthy(running: Container) -> bool:
    return running.exec(*running.image.health).returncode == 0


@pytest.mark.slow
def test_the_image_speaks_as_nobody_of_note_and_keeps_all_in_its_volume(image: Image, tmp_path: Path) -> None:
    assert image.owner() == (10200, 10200)
    assert image.volumes == ["/data"] and image.workdir == "/data"
    assert image.ports == ["7860", "10200"] and image.stop_signal == "SIGTERM"
    volume, log, port = tmp_path / "volume", tmp_path / "log", free_port()
    volume.mkdir()
    env = {"COSYD_WEB__PORT": str(port), "COSYD_WYOMING__PORT": str(free_port())}
    text = "The container has a voice."
    for start in (1, 2):
        with container(image, volume, log, env) as running:
            if start == 1:
                assert not healthy(running)  # it only just began
            wait_for(lambda: running.process.poll() is not None or healthy(running), 120, log.read_text())
            assert running.process.poll() is None, log.read_text()
            made = running.exec("cosyd", "key", "add", f"key {start}")
            assert made.returncode == 0, made.stderr
            speech = {"model": "tts-1", "voice": "alloy", "input": text, "response_format": "wav"}
            url = f"http://127.0.0.1:{port}"
            refused = httpx.post(f"{url}/v1/audio/speech", json=speech, timeout=60, trust_env=False)
            assert refused.status_code == 401  # bound to all addresses: nobody gets in without a key
            reply = httpx.post(
                f"{url}/v1/audio/speech", json=speech, timeout=120, trust_env=False,
                headers={"Authorization": f"Bearer {made.stdout.strip()}"},
            )  # fmt: skip
            assert reply.status_code == 200, reply.text
            with wave.open(io.BytesIO(reply.content)) as sound:
                assert len(sound.readframes(10**9)) > sound.getframerate()  # half a second at the least
            assert running.exec("sh", "-c", "touch /opt/x || touch /etc/x || touch /x").returncode != 0
            (service,) = psutil.Process(running.inside()).children()
            family = [service, *service.children(recursive=True)]
            assert len(family) > 2 and {process.uids().real for process in family} == {10200}
            if start == 1:
                saved = running.exec("cosyd", "backup", "/data")
                assert saved.returncode == 0, saved.stderr
            assert running.stop() == 0, log.read_text()
    with container(image, volume, log, env) as running:
        wait_for(lambda: healthy(running), 120, "the third start")
        history = running.exec("cosyd", "history", "--json")
        assert history.stdout.count(text) == 2, history.stdout
    owners = {
        (path.lstat().st_uid, path.lstat().st_mode & 0o077) for path in volume.rglob("*") if path.is_file()
    }
    assert owners == {(10200, 0)}
    assert [path.name for path in volume.glob("*.zip")]


@pytest.mark.slow
def test_in_a_container_an_update_says_how_it_is_done(image: Image, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    env = {"COSYD_WEB__PORT": str(free_port()), "COSYD_WYOMING__PORT": str(free_port())}
    with container(image, volume, tmp_path / "log", env) as running:
        wait_for(lambda: healthy(running), 120, "the page")
        told = running.exec("cosyd", "update")
        assert told.returncode == 2 and "container image" in told.stderr
        assert running.exec("cosyd", "doctor").returncode in (0, 1)


@pytest.mark.parametrize(
    "line",
    ["ADD x /x", "RUN --mount=type=cache,target=/x true", "FROM alpine", "COPY --chown=1 a /b", "run true",
     "HEALTHCHECK --start-interval=1s CMD [\"x\"]", "CMD cosyd run", "SHELL [\"sh\"]", "ONBUILD RUN x",
     "ENV A=$NOWHERE", "ENV A B", "USER nobody-here", "WORKDIR data", "RUN ["],
)  # fmt: skip
def test_a_line_that_is_not_known_is_an_error(line: str, tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(f"{line}\n")
    builder = Builder(tmp_path, tmp_path / "roots")
    if not line.startswith("FROM"):
        (tmp_path / "root/etc").mkdir(parents=True)
        (tmp_path / "root/etc/passwd").touch()
        builder.image = Image(tmp_path / "root")
    with pytest.raises((Unknown, ValueError)):
        builder.build(file)


def test_continued_lines_and_comments_are_read_as_docker_reads_them() -> None:
    text = "# a\nRUN one \\\n    # inside\n    && two\n\nENV A=1\n"
    assert list(instructions(text)) == [("RUN", "one     && two"), ("ENV", "A=1")]
    assert os.path.exists(DOCKERFILE)
