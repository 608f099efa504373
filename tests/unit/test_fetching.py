"""Getting the model over real sockets: three sources, resumed, checked, and every way it can go wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.codes import CosydError
from pipeline.fetching.incoming import part_path
from pipeline.fetching.model import (
    Fetched,
    alone_in,
    copy_model,
    fetch_model,
    prepared_bytes,
    read_record,
    wanted_files,
)
from pipeline.fetching.progress import Meter, Progress, Waiting
from pipeline.fetching.sources import (
    MIRROR,
    NAMES,
    RemoteFile,
    Source,
    choose_sources,
    file_url,
    listing_url,
    parse_listing,
)
from pipeline.fetching.transfer import TRIES, Patience, retry_after
from pipeline.messages import error_text
from pipeline.model_files import NEEDED, missing_files
from tests.fakes.hub import COMMIT, Hub, serving

NOW = 1_790_000_000.0
UNWANTED = {
    "flow.decoder.estimator.fp32.onnx": b"tensorrt", "llm.rl.pt": b"another", "README.md": b"#",
    "speech_tokenizer_v3.batch.onnx": b"twice", "CosyVoice-BlankEN/model.safetensors": b"overwritten anyway",
}  # fmt: skip


def content(name: str) -> bytes:
    """Some bytes that belong to one name; 300 kB for the large ones."""
    seed = hashlib.sha256(name.encode()).digest()
    return seed * (10_000 if name.endswith((".pt", ".onnx")) else 7)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving({name: content(name) for name in NEEDED} | UNWANTED) as found:
        yield found


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name in ("HF_TOKEN", "HF_ENDPOINT"):
            monkeypatch.delenv(name)


class Listener:
    """What was told, and the pauses, which take no time here."""

    def __init__(self) -> None:
        self.told: list[Progress | Waiting] = []
        self.slept: list[float] = []

    def __call__(self, event: Progress | Waiting) -> None:
        self.told.append(event)

    @property
    def why(self) -> list[str]:
        return [event.why for event in self.told if isinstance(event, Waiting)]

    def patience(self, silent_s: float = 10.0) -> Patience:
        return Patience(connect_s=5, silent_s=silent_s, sleep=self.slept.append, wall=lambda: NOW)


def source_at(hub: Hub, kind: str = "huggingface", token: str = "") -> Source:
    if kind == "modelscope":
        return Source("modelscope", "modelscope", hub.api_url, "master", token)
    return Source("huggingface", "huggingface", hub.api_url, "main", token)


def fetch(folder: Path, *sources: Source, listener: Listener | None = None, **options: float) -> Fetched:
    listener = listener or Listener()
    patience = listener.patience(**options)
    return fetch_model(folder, sources, listener, now=NOW, patience=patience, prepared=0)


def refusal(folder: Path, *sources: Source, **options: float) -> tuple[str, str, Listener]:
    """(code, reason) of what fails, and what was told before."""
    listener = Listener()
    with pytest.raises(CosydError) as caught:
        fetch(folder, *sources, listener=listener, **options)
    for language in ("en", "zh"):
        assert "?" not in error_text(caught.value.code, language, caught.value.params)
        assert f"error.{caught.value.code}" not in error_text(caught.value.code, language)
    return caught.value.code, str(caught.value.params.get("reason")), listener


def whole(folder: Path) -> bool:
    return all((folder / name).read_bytes() == content(name) for name in NEEDED)


@pytest.mark.parametrize("kind", ["huggingface", "modelscope"])
def test_the_needed_files_come_and_nothing_else(hub: Hub, tmp_path: Path, kind: str) -> None:
    done = fetch(tmp_path / "m", source_at(hub, kind))
    assert whole(tmp_path / "m") and missing_files(tmp_path / "m") == ()
    found = {str(p.relative_to(tmp_path / "m")) for p in (tmp_path / "m").rglob("*") if p.is_file()}
    assert found == {*NEEDED, "cosyd-files.json", ".fetch.lock"}
    assert done.came_bytes == sum(len(content(n)) for n in NEEDED) and done.kept == ()
    record = read_record(tmp_path / "m")
    assert record["llm.pt"]["sha256"] == hashlib.sha256(content("llm.pt")).hexdigest()
    small = record["CosyVoice-BlankEN/config.json"]
    assert bool(small["git_sha1"]) == (
        kind == "huggingface"
    )  # git's own id is checked where it is all there is


def test_a_whole_model_costs_one_listing(hub: Hub, tmp_path: Path) -> None:
    fetch(tmp_path, source_at(hub))
    hub.seen.clear()
    again = fetch(tmp_path, source_at(hub))
    assert len(hub.seen) == 1 and again.came_bytes == 0 and set(again.kept) == set(NEEDED)
    fetch_model(
        tmp_path, [source_at(hub)], Listener(), now=NOW, prepared=1 << 60
    )  # nothing to write: no room asked


def test_a_damaged_file_alone_is_brought_again(hub: Hub, tmp_path: Path) -> None:
    fetch(tmp_path, source_at(hub))
    (tmp_path / "flow.pt").write_bytes(content("flow.pt")[:-1] + b"?")
    hub.seen.clear()
    assert fetch(tmp_path, source_at(hub)).came_bytes == len(content("flow.pt"))
    assert {s.path.split("?")[0] for s in hub.seen if "/blob/" in s.path} == {"/blob/flow.pt"}
    assert whole(tmp_path)


def test_the_files_of_one_commit_are_taken_and_large_ones_from_the_other_host(
    hub: Hub, tmp_path: Path
) -> None:
    fetch(tmp_path, source_at(hub, token="hf_secret"))
    resolved = [s for s in hub.seen if "/resolve/" in s.path]
    assert len(resolved) == len(NEEDED) and all(f"/resolve/{COMMIT}/" in s.path for s in resolved)
    assert {s.host.partition(":")[0] for s in hub.asked("llm.pt")} == {"localhost"}
    assert {s.authorization for s in resolved} == {"Bearer hf_secret"}
    elsewhere = [s for s in hub.seen if s.host.startswith("localhost")]
    assert elsewhere and {s.authorization for s in elsewhere} == {None}  # the token stays with its host


def test_a_cut_body_is_gone_on_with_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    hub.faults["llm.pt"] = ["cut", "cut"]
    listener = Listener()
    fetch(tmp_path, source_at(hub), listener=listener)
    size = len(content("llm.pt"))
    starts = [int((s.range or "bytes=0-")[6:-1]) for s in hub.asked("llm.pt")]
    assert starts == [0, size // 2, size // 2 + (size - size // 2) // 2]
    assert whole(tmp_path) and listener.why == ["cut", "cut"]


def test_a_part_of_an_earlier_run_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    body = content("hift.pt")
    file = RemoteFile("hift.pt", len(body), hashlib.sha256(body).hexdigest())
    part_path(tmp_path / "hift.pt", file).write_bytes(body[:1000])
    stale = tmp_path / "hift.pt.aaaaaaaaaaaa.part"
    stale.write_bytes(b"of another version")
    fetch(tmp_path, source_at(hub))
    assert [s.range for s in hub.asked("hift.pt")] == ["bytes=1000-"]
    assert whole(tmp_path) and not stale.exists()


def test_a_part_that_is_damaged_is_thrown_away_and_the_file_brought_whole(hub: Hub, tmp_path: Path) -> None:
    body = content("hift.pt")
    file = RemoteFile("hift.pt", len(body), hashlib.sha256(body).hexdigest())
    part_path(tmp_path / "hift.pt", file).write_bytes(b"x" * 1000)
    listener = Listener()
    fetch(tmp_path, source_at(hub), listener=listener)
    assert [s.range for s in hub.asked("hift.pt")] == ["bytes=1000-", None]
    assert whole(tmp_path) and listener.why == ["checksum"]
    last = [e for e in listener.told if isinstance(e, Progress)][-1]
    assert last.done == last.total == sum(len(content(n)) for n in NEEDED)


def test_a_server_that_cannot_resume_sends_it_whole(hub: Hub, tmp_path: Path) -> None:
    hub.faults["llm.pt"] = ["cut", "no-range"]
    fetch(tmp_path, source_at(hub))
    assert whole(tmp_path)


def test_a_wrong_checksum_twice_ends_it_and_nothing_of_it_stays(hub: Hub, tmp_path: Path) -> None:
    hub.faults["flow.pt"] = ["flip", "flip"]
    assert refusal(tmp_path, source_at(hub))[:2] == ("model_missing", "checksum")
    assert not (tmp_path / "flow.pt").exists()
    assert [p.stat().st_size for p in tmp_path.glob("flow.pt.*.part")] in ([0], [])
    assert (tmp_path / "CosyVoice-BlankEN" / "vocab.json").exists()  # what was good before it stays


def test_a_small_file_is_checked_by_gits_own_id(hub: Hub, tmp_path: Path) -> None:
    hub.faults["CosyVoice-BlankEN/vocab.json"] = ["flip"]
    listener = Listener()
    fetch(tmp_path, source_at(hub), listener=listener)
    assert whole(tmp_path) and listener.why == ["checksum"]


def test_more_bytes_than_announced_are_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.faults["llm.pt"] = ["longer"]
    fetch(tmp_path, source_at(hub))
    assert whole(tmp_path)


def test_a_busy_source_is_given_the_time_it_asks_for(hub: Hub, tmp_path: Path) -> None:
    hub.faults["llm.pt"], hub.retry_after = [429, 503], "7"
    listener = Listener()
    fetch(tmp_path, source_at(hub), listener=listener)
    assert listener.slept == [7.0, 7.0] and listener.why == ["busy", "error"]
    assert whole(tmp_path)


def test_a_source_that_stays_busy_is_given_up(hub: Hub, tmp_path: Path) -> None:
    hub.faults["llm.pt"] = [429] * 50
    code, reason, listener = refusal(tmp_path, source_at(hub))
    assert (code, reason) == ("model_missing", "too_many") and len(listener.slept) == TRIES - 1
    hub.faults["llm.pt"], hub.retry_after = [429], "86400"
    assert refusal(tmp_path, source_at(hub))[1] == "too_many"


def test_pauses_grow_and_a_single_byte_more_counts_as_progress(hub: Hub, tmp_path: Path) -> None:
    hub.faults["llm.pt"] = [500, 502, 503, 504, "cut", 500, 500, 500, 500]
    hub.retry_after = ""
    listener = Listener()
    fetch(tmp_path, source_at(hub), listener=listener)
    assert whole(tmp_path)
    assert listener.slept[0] < listener.slept[1] < listener.slept[2] < listener.slept[3]
    assert listener.slept[4] <= 1.0  # the cut one had brought something


def test_a_stalled_connection_is_left_and_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    hub.faults["llm.pt"] = ["stall"]
    listener = Listener()
    fetch(tmp_path, source_at(hub), listener=listener, silent_s=0.5)
    assert whole(tmp_path) and listener.why == ["stalled"]
    assert hub.asked("llm.pt")[1].range == f"bytes={len(content('llm.pt')) // 3}-"


def test_a_connection_that_only_trickles_is_left_too(hub: Hub, tmp_path: Path) -> None:
    hub.faults["llm.pt"] = ["trickle"]
    listener = Listener()
    patience = dataclasses.replace(listener.patience(), slow_s=0.3, slow_bytes=10_000)
    fetch_model(tmp_path, [source_at(hub)], listener, now=NOW, patience=patience, prepared=0)
    assert whole(tmp_path) and listener.why == ["stalled"]
    assert hub.asked("llm.pt")[1].range


def test_a_login_page_is_not_taken_for_a_model(hub: Hub, tmp_path: Path) -> None:
    hub.faults["listing"] = ["html"]
    assert refusal(tmp_path, source_at(hub))[:2] == ("model_missing", "source_broken")
    hub.faults["llm.pt"] = ["html"]
    assert refusal(tmp_path, source_at(hub))[:2] == ("model_missing", "source_broken")
    assert not (tmp_path / "llm.pt").exists()


@pytest.mark.parametrize(("status", "reason"), [(404, "not_offered"), (401, "refused"), (403, "refused")])
def test_what_is_refused_is_not_tried_again(hub: Hub, tmp_path: Path, status: int, reason: str) -> None:
    hub.faults["llm.pt"] = [status]
    code, found, listener = refusal(tmp_path, source_at(hub))
    assert (code, found, listener.slept) == ("model_missing", reason, [])


def test_a_model_that_lacks_a_file_is_not_begun(tmp_path: Path) -> None:
    with serving({name: b"x" for name in NEEDED if name != "hift.pt"}) as hub:
        assert refusal(tmp_path, source_at(hub))[1] == "not_offered"
        assert not any("/blob/" in s.path for s in hub.seen)


def test_no_network_is_said_after_some_tries_and_the_next_source_is_asked(hub: Hub, tmp_path: Path) -> None:
    dead = Source("huggingface", "huggingface", "http://127.0.0.1:9", "main")
    code, reason, listener = refusal(tmp_path, dead)
    assert (code, reason) == ("model_missing", "no_network") and len(listener.slept) == TRIES - 1
    done = fetch(tmp_path, dead, source_at(hub, "modelscope"))
    assert done.source == "modelscope" and whole(tmp_path)


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(hub: Hub, tmp_path: Path) -> None:
    listener = Listener()
    with pytest.raises(CosydError) as caught:
        fetch_model(tmp_path, [source_at(hub)], listener, now=NOW, prepared=1 << 60)
    assert (caught.value.code, caught.value.params["reason"]) == ("storage_full", "no_room")
    assert caught.value.params["needed"] > 1 << 60 > caught.value.params["free"] > 0
    assert not any("/blob/" in s.path for s in hub.seen)
    assert 1e9 < prepared_bytes() < 2.5e9


def test_two_at_once_do_not_write_into_each_others_files(hub: Hub, tmp_path: Path) -> None:
    with alone_in(tmp_path):
        assert refusal(tmp_path, source_at(hub))[:2] == ("model_missing", "fetching")


def test_a_folder_is_copied_with_its_checksums(tmp_path: Path) -> None:
    origin = tmp_path / "other program's"
    for name in (*NEEDED, "spk2info.pt", "llm.rl.pt"):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_bytes(content(name))
    done = copy_model(tmp_path / "m", origin, Listener(), now=NOW, prepared=0)
    assert whole(tmp_path / "m") and done.files == (*NEEDED, "spk2info.pt")
    assert read_record(tmp_path / "m")["llm.pt"]["sha256"] == hashlib.sha256(content("llm.pt")).hexdigest()
    assert copy_model(tmp_path / "rl", origin, Listener(), now=NOW, prepared=0, reinforced=True).files == (
        *NEEDED, "llm.rl.pt", "spk2info.pt",
    )  # fmt: skip
    (origin / "llm.rl.pt").unlink()
    with pytest.raises(CosydError) as caught:
        copy_model(tmp_path / "rl", origin, Listener(), now=NOW, prepared=0, reinforced=True)
    assert caught.value.params["missing"] == "llm.rl.pt"
    with pytest.raises(CosydError) as caught:
        copy_model(tmp_path / "m", tmp_path / "m", Listener(), now=NOW, prepared=0)
    assert caught.value.params["reason"] == "from_itself"
    (origin / "hift.pt").unlink()
    with pytest.raises(CosydError) as caught:
        copy_model(tmp_path / "m", origin, Listener(), now=NOW, prepared=0)
    assert caught.value.params["missing"] == "hift.pt"


def test_sources_are_chosen_by_environment_and_language() -> None:
    def names(wanted: str, language: str = "en", **environ: str) -> list[str]:
        return [s.name for s in choose_sources(wanted, environ, language)]  # type: ignore[arg-type]

    assert names("auto") == ["huggingface", "modelscope", "hf-mirror"]
    assert names("auto", "zh")[0] == "modelscope"
    assert names("hf-mirror") == ["hf-mirror"]
    assert names("auto", "zh", HF_ENDPOINT="https://hf-mirror.com/")[0] == "huggingface"
    assert choose_sources("huggingface", {"HF_ENDPOINT": MIRROR + "/"}, "en")[0].endpoint == MIRROR
    assert choose_sources("modelscope", {"MODELSCOPE_DOMAIN": "modelscope.ai"}, "en")[0].endpoint == (
        "https://modelscope.ai"
    )
    for name in NAMES:
        (source,) = choose_sources(name, {"HF_TOKEN": "t"}, "en")
        assert (source.token == "t") == (name == "huggingface")  # a mirror is somebody else
        assert listing_url(source).startswith(f"{source.endpoint}/api/") and source.endpoint[:8] == "https://"
    scope = choose_sources("modelscope", {}, "en")[0]
    assert file_url(scope, "master", "a b/c.pt").endswith("/repo?Revision=master&FilePath=a+b%2Fc.pt")


def test_a_listing_cannot_lead_out_of_the_folder_and_nonsense_is_refused(hub: Hub) -> None:
    source = source_at(hub)
    listing = hub.listing()
    for name in ("../x", "/etc/passwd", "a/../../b", "a\\b"):
        listing["siblings"].append({"rfilename": name, "size": 1, "blobId": "0" * 40})
    found = parse_listing(source, listing)
    assert set(found.files) == {*NEEDED, *UNWANTED}
    assert [f.path for f in wanted_files(found, "x", reinforced=True) if ".rl." in f.path] == ["llm.rl.pt"]
    for wrong in ([], {}, {"siblings": [{"rfilename": "a"}]}, {"siblings": 3}, None, {"Code": 404}):
        for kind in ("huggingface", "modelscope"):
            with pytest.raises(CosydError) as caught:
                parse_listing(dataclasses.replace(source, kind=kind), wrong)  # type: ignore[arg-type]
            assert caught.value.params["reason"] == "source_broken"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("", None), ("12", 12.0), ("-3", 0.0), ("soon", None),
     ("Mon, 21 Sep 2026 14:13:30 GMT", 10.0), ("Mon, 21 Sep 2020 14:13:30 GMT", 0.0)],
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    now = [0.0]
    told: list[Progress | Waiting] = []
    meter = Meter(10_000, told.append, lambda: now[0], every_s=0.0)
    meter.had(1000)
    for _ in range(40):
        now[0] += 1.0
        meter.moved("a", 100)
    last = told[-1]
    assert isinstance(last, Progress)
    assert (last.done, last.total, last.rate, last.left_s) == (5000, 10_000, 100.0, 50.0)


def test_the_record_is_readable_and_a_broken_one_is_none(hub: Hub, tmp_path: Path) -> None:
    fetch(tmp_path, source_at(hub))
    record = json.loads((tmp_path / "cosyd-files.json").read_text("utf-8"))
    assert record["source"] == "huggingface" and record["revision"] == COMMIT and record["at"].endswith("Z")
    (tmp_path / "cosyd-files.json").write_text("{", "utf-8")
    assert read_record(tmp_path) == {}
