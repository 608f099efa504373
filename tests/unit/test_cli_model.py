"""`cosyd model` as people use it: real processes, a real server, interrupted, killed, in both languages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from daemon.cli import model_check
from daemon.cli.main import main
from daemon.cli.model_progress import Line
from pipeline.codes import CosydError
from pipeline.fetching.model import write_record
from pipeline.fetching.progress import Progress, Waiting
from pipeline.model_child import read_child
from pipeline.model_files import NEEDED, missing_files, missing_packages, model_folder
from pipeline.model_state import look_at_files, with_problems
from pipeline.paths import StatePaths
from pipeline.store.db import connect
from pipeline.voices import starter
from pipeline.voices.catalogue import OPENAI_VOICES, Voice, find_voice, ready_made
from pipeline.voices.registry import cloned_voices
from tests.fakes.hub import Hub, serving
from tests.unit.storekit import new_state, opened

ROOT = Path(__file__).parents[2]
KIT = ROOT / "tests" / "data" / "cosyvoice3" / "model"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving({name: (KIT / name).read_bytes() for name in NEEDED}) as found:
        yield found


def environment(state: Path, **more: str) -> dict[str, str]:
    proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
    kept = {k: v for k, v in os.environ.items() if k not in proxies | {"COSYD_MODEL_DIR", "HF_TOKEN"}}
    return {**kept, "COSYD_STATE_DIR": str(state), "COSYD_LANG": "en", "PYTHONPATH": str(ROOT), **more}


def start(*args: str, state: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "daemon.cli.main", *args], env=environment(state, **env), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=state.parent,
    )  # fmt: skip


def run(*args: str, state: Path, **env: str) -> tuple[int, str, str]:
    process = start(*args, state=state, **env)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def cosyd(*args: str, state: Path, lang: str = "en") -> Result:
    result = CliRunner().invoke(main, list(args), env={"COSYD_LANG": lang, "COSYD_STATE_DIR": str(state)})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def with_starter(state: Path) -> Path:
    """A state folder that has a starter voice already: making one takes seconds."""
    conn = opened(new_state(state))
    conn.execute(
        "INSERT INTO voices (id, name, owner, engine, created_at, source)"
        " VALUES ('v-0123456789ab', 'Starter', '', 'cosyvoice3', '2026-01-01T00:00:00.000000Z', 'starter')"
    )
    conn.close()
    return state


def until(met: Callable[[], bool], seconds: float = 60.0) -> None:
    late = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < late, "waited in vain"
        time.sleep(0.02)


def voices_of(state: Path) -> list[Any]:
    conn = connect(StatePaths.at(state, {}).database, "read")
    try:
        return conn.execute("SELECT id, source, consent, transcript FROM voices").fetchall()
    finally:
        conn.close()


def test_fetch_brings_the_model_and_a_starter_voice_and_needs_no_network_again(
    hub: Hub, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    code, out, err = run("model", "fetch", "--json", state=state, HF_ENDPOINT=hub.api_url)
    assert code == 0, err
    found = json.loads(out)
    folder = Path(found["folder"])
    assert folder == model_folder({}, state) and missing_files(folder) == ()
    assert all((folder / name).read_bytes() == (KIT / name).read_bytes() for name in NEEDED)
    (row,) = voices_of(state)
    assert (row["id"], row["source"]) == (found["starter"], "starter")
    consent = json.loads(row["consent"])
    assert consent["choice"] == "synthetic" and consent["at"].endswith("Z") and "person" not in consent
    assert (state / "voices" / row["id"] / "reference.flac").stat().st_size > 50_000
    assert "huggingface: 8 MB to come, 10 files" in err
    hub.seen.clear()
    code, out, err = run("model", "fetch", "--json", state=state, HF_ENDPOINT=hub.api_url)
    assert code == 0 and len(hub.seen) == 1 and json.loads(out)["starter"] == row["id"]
    assert len(voices_of(state)) == 1
    hub.seen.clear()
    assert run("model", "check", state=state, HF_ENDPOINT=hub.api_url)[0] in (0, 75)  # 75: no PyTorch here
    assert hub.seen == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_fetch_that_ends_in_the_middle_goes_on_where_it_was(
    hub: Hub, tmp_path: Path, sent: signal.Signals
) -> None:
    state, folder = with_starter(tmp_path / "state"), model_folder({}, tmp_path / "state")
    hub.faults["llm.pt"] = ["stall"]
    process = start("model", "fetch", state=state, HF_ENDPOINT=hub.api_url)
    third = len(hub.files["llm.pt"]) // 3
    until(lambda: any(p.stat().st_size >= third // 2 for p in folder.glob("llm.pt.*.part")))
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if sent == signal.SIGINT else -signal.SIGKILL)
    if sent == signal.SIGINT:
        assert "What came is kept" in err and "Traceback" not in err
    assert not (folder / "llm.pt").exists()
    kept = next(folder.glob("llm.pt.*.part")).stat().st_size
    assert kept > 0
    hub.released.set()
    code, _, err = run("model", "fetch", state=state, HF_ENDPOINT=hub.api_url)
    assert code == 0, err
    assert hub.asked("llm.pt")[-1].range == f"bytes={kept}-"
    assert (folder / "llm.pt").read_bytes() == hub.files["llm.pt"]


@pytest.mark.parametrize(("lang", "said"), [("en", "does not have the model"), ("zh", "没有这个模型")])
def test_a_404_is_said_in_peoples_words(hub: Hub, tmp_path: Path, lang: str, said: str) -> None:
    hub.faults["listing"] = [404]
    code, _, err = run(
        "model",
        "fetch",
        "--source",
        "huggingface",
        state=tmp_path / "s",
        COSYD_LANG=lang,
        HF_ENDPOINT=hub.api_url,
    )
    assert code == 75 and said in err and "--source modelscope" in err and "Traceback" not in err


def test_a_proxy_is_honoured_and_a_wrong_one_is_named(hub: Hub, tmp_path: Path) -> None:
    proxy = {"HTTP_PROXY": hub.api_url, "http_proxy": hub.api_url}
    run(
        "model",
        "fetch",
        "--source",
        "huggingface",
        state=tmp_path / "s",
        HF_ENDPOINT="http://hub.example",
        **proxy,
    )
    # A proxy is asked for the whole address; this one does not know it and says 404.
    assert (
        hub.seen and hub.seen[0].host == "hub.example" and hub.seen[0].path.startswith("http://hub.example/")
    )
    code, _, err = run("model", "fetch", state=tmp_path / "s", ALL_PROXY="socks9://x:1")
    assert code == 75 and "ALL_PROXY" in err and "Traceback" not in err


def test_fetch_from_a_folder_copies_and_refuses_half_a_model(tmp_path: Path) -> None:
    state = with_starter(tmp_path / "state")
    code, out, err = run("model", "fetch", "--from", str(KIT), "--json", state=state)
    assert code == 0 and json.loads(out)["source"] == "folder", err
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "llm.pt").write_bytes(b"x")
    result = cosyd("model", "fetch", "--from", str(tmp_path / "half"), state=state)
    assert result.exit_code == 75 and "hift.pt" in result.stderr


def copied(folder: Path) -> Path:
    """The kit with a record of checksums."""
    for name in NEEDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((KIT / name).read_bytes())
    import hashlib

    files = {
        name: {
            "size": (KIT / name).stat().st_size,
            "sha256": hashlib.sha256((KIT / name).read_bytes()).hexdigest(),
        }
        for name in NEEDED
    }
    write_record(folder, "huggingface", "abc", files, 0.0)
    return folder


def test_check_says_of_each_file_what_is_wrong(tmp_path: Path) -> None:
    folder = copied(tmp_path / "m")
    assert {f.state for f in look_at_files(folder)} == {"good"}
    assert {f.state for f in look_at_files(folder, quick=True)} == {"there"}
    wanting = look_at_files(folder, quick=True, reinforced=True)
    assert [f.name for f in wanting if f.bad] == ["llm.rl.pt"]
    (folder / "hift.pt").unlink()
    (folder / "flow.pt").write_bytes(b"")
    body = (folder / "llm.pt").read_bytes()
    (folder / "llm.pt").write_bytes(body[:-1])
    flipped = bytearray((folder / "campplus.onnx").read_bytes())
    flipped[1000] ^= 1
    (folder / "campplus.onnx").write_bytes(flipped)
    found = {f.name: f for f in look_at_files(folder)}
    assert {n: f.state for n, f in found.items() if f.bad} == {
        "hift.pt": "missing", "flow.pt": "empty", "llm.pt": "size", "campplus.onnx": "checksum",
    }  # fmt: skip
    assert found["llm.pt"].params == {"found": len(body) - 1, "wanted": len(body)}
    assert {f.name for f in look_at_files(folder, quick=True) if f.bad} == {"hift.pt", "flow.pt", "llm.pt"}
    (folder / "cosyd-files.json").unlink()
    assert {f.state for f in look_at_files(folder)} == {"unchecked", "missing", "empty"}


@pytest.mark.parametrize(("lang", "said"), [("en", ["missing", "empty"]), ("zh", ["缺少", "是空的"])])
def test_check_prints_a_line_for_each_file_and_fails(
    tmp_path: Path, lang: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        model_check, "missing_packages", lambda: ("torch",)
    )  # what is inside is tested elsewhere
    folder = copied(tmp_path / "m")
    (folder / "hift.pt").unlink()
    (folder / "flow.pt").write_bytes(b"")
    result = cosyd("model", "check", str(folder), state=tmp_path / "s", lang=lang)
    lines = {line.split()[1].rpartition("/")[2].strip(":"): line for line in result.stdout.splitlines()}
    assert result.exit_code == 75
    assert lines["hift.pt"].startswith("- ") and said[0] in lines["hift.pt"]
    assert lines["flow.pt"].startswith("- ") and said[1] in lines["flow.pt"]
    assert lines["llm.pt"].startswith("+ ") and "good" in lines["llm.pt"] + ("good" if lang == "zh" else "")
    assert "hift.pt" in result.stderr and "flow.pt" in result.stderr


def test_what_the_engine_found_inside_is_told_of_its_file(tmp_path: Path) -> None:
    states = look_at_files(copied(tmp_path / "m"))
    found = with_problems(
        states,
        [
            {"file": "llm.pt", "problem": "wrong_shape", "detail": "x [3]"},
            {"file": "CosyVoice-BlankEN", "problem": "bad_tokenizer", "detail": "y"},
        ],
    )
    bad = {f.name: f for f in found if f.bad}
    assert set(bad) == {"llm.pt", "CosyVoice-BlankEN/config.json"}
    assert "x [3]" in model_check.state_text(bad["llm.pt"])
    assert [f.name for f in states] == [f.name for f in found]


def test_random_weights_never_go_into_a_folder_that_holds_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_check, "missing_packages", lambda: ())
    (tmp_path / "photo.jpg").write_bytes(b"x")
    result = cosyd("model", "check", "--random-weights", str(tmp_path), state=tmp_path / "s")
    assert result.exit_code == 2 and "not empty" in result.stderr
    monkeypatch.setattr(model_check, "RANDOM_BYTES", 1 << 60)
    result = cosyd("model", "check", "--random-weights", str(tmp_path / "new"), state=tmp_path / "s")
    assert result.exit_code == 75 and "free" in result.stderr and not (tmp_path / "new").exists()


@pytest.mark.skipif(not missing_packages(), reason="not asked for: this is about a machine without PyTorch")
@pytest.mark.parametrize("command", [["convert"], ["check", "--speak"], ["check", "--random-weights", "x"]])
def test_without_pytorch_one_sentence_says_so(tmp_path: Path, command: list[str]) -> None:
    copied(model_folder({}, tmp_path / "s"))
    result = cosyd("model", *command, state=tmp_path / "s")
    assert result.exit_code == 75 and "PyTorch is not installed" in result.stderr


def test_info_shows_what_is_there_and_what_would_be_chosen(tmp_path: Path) -> None:
    state = tmp_path / "s"
    result = cosyd("model", "info", "--json", state=state)
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["whole"] is False and found["bytes"] == 0
    assert (
        found["plan"]["needs"]["peak"] > 5e8 and found["cache"]["parts"] == [] and "zh" in found["languages"]
    )
    copied(model_folder({}, state))
    found = json.loads(cosyd("model", "info", "--json", state=state).stdout)
    assert found["whole"] and found["origin"]["source"] == "huggingface"
    assert {f["name"] for f in found["files"]} == set(NEEDED)
    result = cosyd("model", "info", state=state, lang="zh")
    assert result.exit_code == 0 and "llm.pt" in result.stdout and "语言" in result.stdout


def test_a_line_is_written_over_on_a_terminal_and_kept_apart_in_a_log() -> None:
    class Screen:
        def __init__(self, tty: bool) -> None:
            self.tty, self.text = tty, ""

        def isatty(self) -> bool:
            return self.tty

        def write(self, text: str) -> int:
            self.text += text
            return len(text)

        def flush(self) -> None:
            pass

    screen, log = Screen(True), Screen(False)
    for target in (screen, log):
        with Line(target) as line:  # type: ignore[arg-type]
            for done in range(50):
                line.fetched(Progress("llm.pt", done, 50, 10.0 if done else None))
            line.fetched(Waiting("busy", 7.0, 1))
    assert screen.text.count("\r") == 50 and "7 s" in screen.text and screen.text.endswith("\n")
    assert log.text.count("\n") == 2 and "\r" not in log.text


def test_a_child_that_dies_or_talks_nonsense_is_an_error_and_its_own_error_is_passed_on() -> None:
    def child(code: str) -> dict[str, Any]:
        return read_child([sys.executable, "-c", code])

    assert child('print(\'{"result": {"a": 1}}\')') == {"a": 1}
    with pytest.raises(CosydError) as caught:
        child('print(\'{"error": {"code": "bad_audio", "params": {"reason": "silent"}}}\'); exit(2)')
    assert (caught.value.code, caught.value.params) == ("bad_audio", {"reason": "silent"})
    with pytest.raises(CosydError) as caught:
        child("raise ValueError('what happened')")
    assert caught.value.code == "internal" and "what happened" in str(caught.value.params["detail"])
    with pytest.raises(CosydError) as caught:
        child("import os; os.kill(os.getpid(), 9)")
    assert caught.value.code == "out_of_memory"


def test_openais_names_mean_the_starter_voice_while_the_model_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    monkeypatch.setattr(starter, "make_clip", lambda out: out.write_bytes(clip_bytes()))
    from daemon.cli.keys import open_database

    paths = StatePaths.at(state, {})
    with open_database(paths) as conn:
        made = starter.ensure_starter(conn, paths, "Starter", 1_790_000_000.0)
        assert starter.ensure_starter(conn, paths, "Starter", 1_790_000_001.0) == made
        voices = [*ready_made({}), *cloned_voices(conn)]
    assert made.starter and made in voices and not any(v.starter for v in voices if v != made)
    for name in (*OPENAI_VOICES, "Alloy"):
        assert find_voice(name, voices, "heart", lambda: True) == made
        assert find_voice(name, voices, "heart", lambda: False).id == "heart"
        assert find_voice(name, ready_made({}), "heart", lambda: True).id == "heart"
    for name in ("", "default"):
        assert find_voice(name, voices, "heart", lambda: True).id == "heart"
    for name in ("nobody", "starter", "Starter"):
        with pytest.raises(CosydError) as caught:
            find_voice(name, voices, "heart", lambda: True)
        assert caught.value.code == "unknown_voice" and "heart" in str(caught.value.params["known"])
    assert isinstance(made, Voice) and made.transcript


def clip_bytes() -> bytes:
    """Three seconds of a tone as wav."""
    import io

    import numpy as np
    import soundfile

    out = io.BytesIO()
    tone = 0.3 * np.sin(2 * np.pi * 220 * np.arange(72_000) / 24_000)
    soundfile.write(out, tone, 24_000, "PCM_16", format="WAV")
    return out.getvalue()
