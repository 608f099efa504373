"""Official files: what is read, what is refused, and the converted cache."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from pipeline.engines.base import EngineUnavailable  # noqa: E402
from pipeline.engines.cosyvoice3.cache import Cache, write_tensors  # noqa: E402
from pipeline.engines.cosyvoice3.convert import (  # noqa: E402
    Item,
    flow_items,
    llm_items,
    quantize_rows,
    text_items,
    vocoder_items,
)
from pipeline.engines.cosyvoice3.errors import PROBLEMS, problem, problem_text  # noqa: E402
from pipeline.engines.cosyvoice3.official import REQUIRED, open_official, read_voices  # noqa: E402
from pipeline.engines.cosyvoice3.yaml_plain import lookup, parse_plain  # noqa: E402
from pipeline.messages import catalogue  # noqa: E402

LLM_KEY = "llm.model.model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may damage."""
    target = tmp_path / "model"
    shutil.copytree(KIT / "model", target)
    return target


def refuse(folder: Path, kind: str, file: str) -> EngineUnavailable:
    with pytest.raises(EngineUnavailable) as caught:
        open_official(folder)
    assert (caught.value.params["problem"], caught.value.params["file"]) == (kind, file)
    assert "`" in caught.value.params["reason"] or kind == "bad_value"  # it names a cure
    return caught.value


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = torch.load(path, weights_only=True)
    change(tensors)
    torch.save(tensors, path)


def test_the_kit_opens_and_sizes_come_from_the_files(official: Any) -> None:
    c = official.config
    assert (c.llm.hidden, c.llm.layers, c.llm.heads, c.llm.kv_heads, c.llm.head_dim) == (64, 2, 4, 2, 16)
    assert (c.llm.sos, c.llm.eos, c.llm.task, c.llm.fill) == (6561, 6562, 6563, 6564)
    assert (c.flow.dim, c.flow.depth, c.flow.heads, c.flow.conv_groups, c.flow.block) == (64, 2, 2, 16, 50)
    assert (c.vocoder.base, c.vocoder.hop, c.vocoder.f0_right) == (32, 480, 3)


@pytest.mark.parametrize("name", REQUIRED)
def test_each_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    error = refuse(folder, "no_file", name)
    assert error.code == "model_missing"


def test_all_missing_files_are_named_at_once_and_no_folder_too(tmp_path: Path) -> None:
    error = refuse(tmp_path, "no_file", ", ".join(REQUIRED))
    assert error.code == "model_missing"
    refuse(tmp_path / "nowhere", "no_folder", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", ["llm.pt", "flow.pt", "hift.pt"])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_a_truncated_checkpoint_is_refused(folder: Path, name: str, keep: float) -> None:
    path = folder / name
    os.truncate(path, int(path.stat().st_size * keep))
    error = refuse(folder, "empty" if keep == 0 else "truncated", name)
    assert error.code == "model_missing"


@pytest.mark.parametrize("content", [b"hello", b"\x80\x02garbage", b"PK\x03\x04", os.urandom(4096)])
def test_what_is_no_checkpoint_is_refused(folder: Path, content: bytes) -> None:
    (folder / "flow.pt").write_bytes(content)
    with pytest.raises(EngineUnavailable) as caught:
        open_official(folder)
    assert caught.value.params["problem"] in ("not_a_checkpoint", "truncated", "unsafe_pickle")


class Runs:
    """A pickle that would make a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("plain", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(
    folder: Path, tmp_path: Path, plain: bool
) -> None:
    mark = tmp_path / "ran"
    hostile = {"llm_decoder.weight": Runs(mark)}
    if plain:
        (folder / "llm.pt").write_bytes(pickle.dumps(hostile))
    else:
        torch.save(hostile, folder / "llm.pt")
    error = refuse(folder, "unsafe_pickle", "llm.pt")
    assert error.code == "engine_failed"
    assert not mark.exists()


def test_wrong_shape_dtype_and_missing_tensors_are_named(folder: Path) -> None:
    edit(folder / "llm.pt", lambda t: t.update({LLM_KEY: torch.zeros(64, 127)}))
    assert LLM_KEY in refuse(folder, "wrong_shape", "llm.pt").params["detail"]
    edit(folder / "llm.pt", lambda t: t.update({LLM_KEY: torch.zeros(64, 128, dtype=torch.float64)}))
    refuse(folder, "wrong_dtype", "llm.pt")
    edit(folder / "llm.pt", lambda t: t.pop(LLM_KEY))
    assert refuse(folder, "missing_tensor", "llm.pt").params["detail"] == LLM_KEY


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("flow.pt", "decoder.estimator.transformer_blocks.1.attn.to_q.weight"),
        ("hift.pt", "resblocks.4.convs1.1.bias"),
        ("hift.pt", "f0_predictor.classifier.weight"),
        ("flow.pt", "input_embedding.weight"),
    ],
)
def test_a_lost_tensor_is_named(folder: Path, file: str, key: str) -> None:
    edit(folder / file, lambda t: t.pop(key))
    assert refuse(folder, "missing_tensor", file).params["detail"] == key


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("flow.pt", "decoder.estimator.transformer_blocks.1.attn.to_q.weight"),
        ("flow.pt", "pre_lookahead_layer.conv2.weight"),
        ("hift.pt", "conv_post.bias"),
        ("hift.pt", "f0_predictor.classifier.weight"),
    ],
)
def test_a_wrong_shape_and_dtype_are_named_in_every_file(folder: Path, file: str, key: str) -> None:
    right = torch.load(folder / file, weights_only=True)[key]
    for shape in ((*right.shape[:-1], right.shape[-1] + 1), (), (1,) * 5, (0,) * right.ndim):
        edit(folder / file, lambda t, shape=shape: t.update({key: torch.zeros(shape)}))  # type: ignore[misc]
        assert key in refuse(folder, "wrong_shape", file).params["detail"]
    for dtype in (torch.int8, torch.float64, torch.complex64):
        edit(folder / file, lambda t, dtype=dtype: t.update({key: right.to(dtype)}))  # type: ignore[misc]
        refuse(folder, "wrong_dtype", file)
    edit(folder / file, lambda t: t.update({key: right.to_sparse()}))
    refuse(folder, "wrong_dtype", file)


def test_a_flow_that_knows_fewer_codes_than_the_language_model_is_refused(folder: Path) -> None:
    edit(
        folder / "flow.pt",
        lambda t: t.update({k: v[:100] for k, v in t.items() if k == "input_embedding.weight"}),
    )
    assert "100 codes" in refuse(folder, "wrong_shape", "flow.pt").params["detail"]


def test_a_lost_layer_is_noticed_although_the_rest_is_whole(folder: Path) -> None:
    edit(folder / "llm.pt", lambda t: [t.pop(k) for k in list(t) if ".layers.1." in k])
    refuse(folder, "missing_tensor", "llm.pt")


@pytest.mark.parametrize("file", ["llm.pt", "flow.pt", "hift.pt"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_at_conversion(folder: Path, file: str, value: float) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        key = next(k for k in reversed(tensors) if tensors[k].ndim > 1 and "lm_head" not in k)
        tensors[key].view(-1)[0] = value

    edit(folder / file, spoil)
    model = open_official(folder)
    makers = {
        "llm.pt": lambda: llm_items(model.config.llm, model.llm, "fp32"),
        "flow.pt": lambda: flow_items(model.config.flow, model.flow, "fp32"),
        "hift.pt": lambda: vocoder_items(model.config.vocoder, model.vocoder),
    }
    with pytest.raises(EngineUnavailable) as caught:
        [i.make() for i in makers[file]()]
    assert caught.value.params["problem"] == "not_finite"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_files_are_read(folder: Path, dtype: Any) -> None:
    for name in ("llm.pt", "flow.pt", "hift.pt"):
        edit(folder / name, lambda t: t.update({k: v.to(dtype) for k, v in t.items()}))
    model = open_official(folder)
    assert model.llm[LLM_KEY].dtype == dtype
    items = {i.name: i for i in llm_items(model.config.llm, model.llm, "fp32")}
    assert items["layers.1.down.weight"].make().dtype == torch.float32


def test_generator_prefix_extra_keys_and_a_nested_state_dict_are_taken(folder: Path) -> None:
    hift = torch.load(folder / "hift.pt", weights_only=True)
    torch.save({**{f"generator.{k}": v for k, v in hift.items()}, "epoch": 5}, folder / "hift.pt")
    llm = torch.load(folder / "llm.pt", weights_only=True)
    llm.pop("llm.model.lm_head.weight")
    torch.save({"state_dict": llm}, folder / "llm.pt")
    open_official(folder)


def test_the_reinforced_model_is_taken_when_asked_for(folder: Path) -> None:
    with pytest.raises(EngineUnavailable):
        open_official(folder, reinforced=True)
    shutil.copy(folder / "llm.pt", folder / "llm.rl.pt")
    assert open_official(folder, reinforced=True).config.llm.layers == 2


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("- a", "bad_yaml"),
        ("a: [", "bad_yaml"),
        ("a: " + "[" * 3000, "bad_yaml"),
        ("x" * (2 << 20), "bad_yaml"),
        ("a: &a [1, *a]\nb: !new:x.Y\n    c: &d {k: *d}\n", "bad_yaml"),
        (
            "m0: &m0 {a: 1}\n" + "".join(f"m{n + 1}: &m{n + 1} {{<<: [*m{n}, *m{n}]}}\n" for n in range(60)),
            "bad_yaml",
        ),
        ("llm: !new:x.Y\n    speech_token_size: " + ":".join(["59"] * 60_000), "bad_value"),
        ("when: 2024-99-99", "bad_yaml"),
        ("llm: !new:x.Y\n    speech_token_size: .nan\n", "bad_value"),
        ("llm: !new:x.Y\n    sampling: !name:x.y\n        top_p: .inf\n", "bad_value"),
        ("hift: !new:x.Y\n    upsample_rates: [0]\n", "bad_value"),
        ("hift: !new:x.Y\n    sampling_rate: many\n", "bad_value"),
        ("llm: !new:x.Y\n    speech_token_size: -4\n", "bad_value"),
        ("flow: !new:x.Y\n    token_mel_ratio: 2.5\n", "bad_value"),
    ],
)
def test_a_wrong_yaml_is_refused(folder: Path, content: str, kind: str) -> None:
    (folder / "cosyvoice3.yaml").write_text(content)
    refuse(folder, kind, "cosyvoice3.yaml")


def test_constructor_tags_are_data(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    tree = parse_plain(
        f"n: 4\nd: !ref <n>\nm: !ref <n> * <d>\nbad: !ref <gone>\nloop: !ref <loop>\n"
        f"x: !apply:os.mkdir [{mark}]\ny: !new:os.mkdir\n    path: {mark}\nz: !name:a.b\n    k: !ref <d>\n"
    )
    assert not mark.exists()
    assert (lookup(tree, "d"), lookup(tree, "m"), lookup(tree, "z.k")) == (4, 16, 4)
    assert lookup(tree, "bad") is lookup(tree, "loop") is lookup(tree, "no.where") is None
    assert lookup(tree, "y.path") == str(mark)
    with pytest.raises(EngineUnavailable):
        parse_plain(f"x: !!python/object/apply:os.mkdir [{mark}]")
    assert not mark.exists()


def test_references_to_references_end_soon() -> None:
    chain = "".join(f"r{n}: !ref <r{n + 1}> * <r{n + 1}>\n" for n in range(60)) + "r60: 2\n"
    tree = parse_plain(chain)
    assert lookup(tree, "r0") is None and lookup(tree, "r57") == 256


@pytest.mark.parametrize("content", ["", "[]", "{", "nul"])
def test_a_wrong_config_json_is_refused(folder: Path, content: str) -> None:
    path = folder / "CosyVoice-BlankEN" / "config.json"
    path.write_text(content)
    refuse(folder, "bad_json" if content else "empty", "CosyVoice-BlankEN/config.json")


@pytest.mark.parametrize(
    "change",
    [{"num_attention_heads": 0}, {"num_key_value_heads": 3}, {"rope_scaling": {}}, {"rms_norm_eps": "x"}],
)
def test_config_values_that_do_not_fit_are_refused(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "CosyVoice-BlankEN" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    refuse(folder, "bad_value", "CosyVoice-BlankEN/config.json")


def test_saved_voices_are_read_and_hostile_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "spk2info.pt"
    torch.save({"anna": {"embedding": torch.ones(1, 192), "name": "x"}}, path)
    assert list(read_voices(path)["anna"]) == ["embedding"]
    for content in ([1], {"anna": 5}, {3: {}}):
        torch.save(content, path)
        with pytest.raises(EngineUnavailable) as caught:
            read_voices(path)
        assert caught.value.params["problem"] == "bad_voices"
    torch.save({"anna": Runs(tmp_path / "ran")}, path)
    with pytest.raises(EngineUnavailable):
        read_voices(path)
    assert not (tmp_path / "ran").exists()


def test_every_problem_has_a_text_in_both_languages() -> None:
    for kind in PROBLEMS:
        error = problem(kind, "llm.pt", "x")
        for language in ("en", "zh"):
            assert f"cosyvoice3.{kind}" in catalogue(language)  # type: ignore[arg-type]
            assert "?" not in problem_text(error, language)  # type: ignore[arg-type]


# ---- the cache


def store_flow(cache: Cache, dtype: str = "fp32") -> tuple[Any, bool]:
    def make() -> Any:
        model = open_official(cache.official)
        return model.config.flow, list(flow_items(model.config.flow, model.flow, dtype))

    return cache.get(f"flow-{dtype}", ["flow.pt", "cosyvoice3.yaml"], make)


def test_a_part_is_converted_once_and_then_mapped(folder: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", folder)
    first, fresh = store_flow(cache)
    assert fresh
    second, again = store_flow(cache)
    assert not again
    assert first.path == second.path and first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(first.tensors[k], second.tensors[k]) for k in first.tensors)
    assert second.config["depth"] == 2
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == [".json", ".safetensors"]


def test_mapped_weights_stay_in_the_file(folder: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", folder)
    store_flow(cache)
    part, _ = store_flow(cache)
    mapped = Path("/proc/self/maps").read_text()
    assert str(part.path) in mapped


def test_a_touched_file_is_recognised_by_its_hash_and_a_changed_one_converted_anew(
    folder: Path, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache", folder)
    first, _ = store_flow(cache)
    os.utime(folder / "flow.pt", (1, 1))
    assert store_flow(cache)[1] is False
    stamp = json.loads((tmp_path / "cache" / "flow-fp32.json").read_text())
    assert stamp["sources"][0]["mtime_ns"] == 10**9  # the next start trusts it without reading
    edit(folder / "flow.pt", lambda t: t["decoder.estimator.proj_out.bias"].add_(1))
    changed, fresh = store_flow(cache)
    assert fresh and changed.path != first.path and not first.path.exists()


@pytest.mark.parametrize("damage", ["truncate", "remove", "stamp", "layout", "header"])
def test_a_damaged_cache_is_made_anew(folder: Path, tmp_path: Path, damage: str) -> None:
    cache = Cache(tmp_path / "cache", folder)
    part, _ = store_flow(cache)
    stamp = tmp_path / "cache" / "flow-fp32.json"
    tree = json.loads(stamp.read_text())
    if damage == "truncate":
        os.truncate(part.path, 1000)
    elif damage == "remove":
        part.path.unlink()
    elif damage == "stamp":
        stamp.write_text("{")
    elif damage == "layout":
        stamp.write_text(json.dumps({**tree, "layout": -1}))
    else:
        with part.path.open("r+b") as stream:
            stream.write(b"\xff" * 16)
    whole, fresh = store_flow(cache)
    assert fresh and torch.isfinite(whole.tensors["modulation"]).all()


def test_a_stamp_cannot_point_outside_its_folder(folder: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", folder)
    part, _ = store_flow(cache)
    stamp = tmp_path / "cache" / "flow-fp32.json"
    tree = json.loads(stamp.read_text())
    stamp.write_text(json.dumps({**tree, "file": f"../elsewhere/{part.path.name}"}))
    assert store_flow(cache)[0].path.parent == tmp_path / "cache"


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> Any:
        raise problem("not_finite", "flow.pt", "x")

    good = Item("a", (2,), torch.float32, lambda: torch.ones(2))
    with pytest.raises(EngineUnavailable):
        write_tensors(tmp_path / "x.safetensors", [good, Item("b", (2,), torch.float32, broken)])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    file = folder / "in-the-way"
    file.write_text("")
    with pytest.raises(EngineUnavailable) as caught:
        store_flow(Cache(file, folder))
    assert caught.value.params["problem"] == "cannot_write"


def test_int8_rows_keep_their_largest_weight_and_lose_at_most_half_a_step() -> None:
    weight = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    weight *= torch.logspace(-3, 1, 50)[:, None]
    q, scale = quantize_rows(weight)
    back = q.float() * scale[:, None]
    assert ((back - weight).abs() <= scale[:, None] / 2 + 1e-9).all()
    assert (q.abs().amax(1) == 127).all()
    zeros, zero_scale = quantize_rows(torch.zeros(2, 4))
    assert not zeros.any() and (zero_scale > 0).all()


def test_the_parts_leave_out_what_is_not_needed(official: Any) -> None:
    c = official.config
    llm = {i.name for i in llm_items(c.llm, official.llm, "bf16")}
    assert not any("embed_tokens" in n or "lm_head" in n for n in llm)
    assert [i.shape for i in text_items(official.llm, "bf16")] == [(1280, 64)]
    flow = {i.name: i for i in flow_items(c.flow, official.flow, "bf16")}
    assert flow["modulation"].shape == (10, 2, 6, 64)
    assert not any("time" in n or "norm" in n for n in flow)
    assert not any("original" in i.name for i in vocoder_items(c.vocoder, official.vocoder))


def test_pages_of_a_mapped_file_are_let_go_and_come_back(tmp_path: Path) -> None:
    import mmap

    from pipeline.engines.cosyvoice3.heap import drop_mapped

    path = tmp_path / "part.bin"
    path.write_bytes(b"cosyd" * 400_000)

    def resident() -> int:
        found, here = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split()[0]:
                here = line.endswith(str(path))
            elif here and line.startswith("Rss:"):
                found += int(line.split()[1])
        return found

    with path.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    whole = mapped[:]
    assert resident() > 1500
    assert drop_mapped(path) >= len(whole) and resident() == 0
    assert mapped[:] == whole
    assert drop_mapped(tmp_path / "other") == 0 == drop_mapped(path, tmp_path)
