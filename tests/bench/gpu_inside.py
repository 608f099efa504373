"""What `gpu` runs in processes of their own: the neighbour, the machine, parity, and one profile.

Everything goes through `CosyVoice3Engine` as the worker uses it, with a loader that draws the weights. Prints
one line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.engines.base import Options, OutOfMemory, Segment, VoiceFeatures
from pipeline.engines.cosyvoice3.convert import flow_items, llm_items, text_items, vocoder_items
from pipeline.engines.cosyvoice3.decode import Emitted, LlmRequest, decode_many
from pipeline.engines.cosyvoice3.engine import CosyVoice3Engine
from pipeline.engines.cosyvoice3.linear import Linear
from pipeline.engines.cosyvoice3.model import Model
from pipeline.engines.cosyvoice3.plan import LoadOptions
from pipeline.engines.cosyvoice3.random_weights import FULL_SIZE
from pipeline.engines.cosyvoice3.sampling import GreedySampler, RasParams, RasSampler
from pipeline.engines.cosyvoice3.step import FixedStep, PlainStep, Steppers, cuda_capture
from pipeline.planning.memory import needs
from pipeline.profile import Config
from pipeline.profile.load import Layer, resolve
from tests.bench.drawn import TINY, drawn_model

KIT = Path(__file__).parents[1] / "data" / "cosyvoice3" / "model"
NEVER = threading.Event()
PROMPT, PROMPT_TEXT, TEXT = 75, 21, 40
SENTENCE = "今天天气很好，我们去图书馆看书。"


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is run."""

    device: str
    tokens: int
    step_tokens: int
    generations: int
    generations_s: float
    requests: int


FULL = Size("cuda", 250, 200, 200, 110.0, 10)
DRY = Size("cpu", 12, 12, 4, 60.0, 3)


class EndsAfter(RasSampler):
    """The model's own sampler with stop ids forbidden until `tokens` were drawn, then the end: the work of a
    sentence of known length."""

    def __init__(self, model: Model, tokens: int) -> None:
        c = model.llm.config
        super().__init__(RasParams.of(c))
        object.__setattr__(self, "counted", [0, tokens, c.codes, c.eos])

    def __call__(self, logits: torch.Tensor, recent: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        counted: list[int] = self.counted  # type: ignore[attr-defined]
        counted[0] += 1
        if counted[0] > counted[1]:
            return torch.full((logits.shape[0],), counted[3], device=logits.device)
        logits[:, counted[2] :] = -torch.inf
        return super().__call__(logits, recent, draws)


class BenchEngine(CosyVoice3Engine):
    """The engine with weights drawn in place and sentences of a set length."""

    tokens = 100

    def _sampler(self) -> Any:
        return EndsAfter(self._ready(), self.tokens)


def make_engine(size: Size, cache: Path) -> BenchEngine:
    def load(folder: Path, cache: Path, options: LoadOptions) -> Model:
        if size is FULL:
            return drawn_model(FULL_SIZE, options, KIT)
        made = drawn_model(TINY, options, KIT)  # without a card a capture that does nothing
        return dataclasses.replace(made, steppers=Steppers(made.llm, lambda body: body))

    return BenchEngine(KIT, cache, load)


def a_voice(engine: BenchEngine, seed: int = 1) -> VoiceFeatures:
    """An enrolled voice of three seconds, drawn."""
    draw = np.random.default_rng(seed)
    flow = engine._ready().flow.config
    return VoiceFeatures(
        {
            "speech_tokens": draw.integers(0, flow.codes, PROMPT).astype(np.int32),
            "prompt_mel": draw.normal(-3, 1, (flow.ratio * PROMPT, flow.mel)).astype(np.float32),
            "speaker": draw.normal(0, 1, flow.speaker).astype(np.float32),
        },
        f"voice {seed}",
        "The words of the clip.",
    )


def segments(count: int, text: str = SENTENCE) -> list[Segment]:
    return [Segment(i, text, 0, len(text)) for i in range(count)]


def seconds_of(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# -- the roles ---------------------------------------------------------------------------------------


def neighbour(args: argparse.Namespace) -> None:
    """Hold everything but `cap_gib`, say so, wait for the end of stdin."""
    held: list[torch.Tensor] = []
    if args.dry_run:
        held.append(torch.ones(1 << 20, dtype=torch.uint8))
        free = args.cap_gib * 1024**3
    else:
        cap = args.cap_gib * 1024**3
        torch.zeros(1, device="cuda")
        piece = 1 << 30
        while (free := torch.cuda.mem_get_info()[0]) > cap:
            want = min(piece, free - cap)
            if want < 2 << 20:
                break
            held.append(torch.empty(want, dtype=torch.uint8, device="cuda"))
    print(json.dumps({"held_bytes": sum(t.numel() for t in held), "free_bytes": free}), flush=True)
    sys.stdin.read()


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """The card, and what it reads and multiplies."""
    out: dict[str, Any] = {"torch": torch.__version__, "python": sys.version.split()[0]}
    device = torch.device("cpu" if args.dry_run else "cuda")
    if not args.dry_run:
        out["name"] = torch.cuda.get_device_name()
        out["total_bytes"] = torch.cuda.mem_get_info()[1]
        out["capability"] = list(torch.cuda.get_device_capability())
    n = 256 if args.dry_run else 8192
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        x = torch.randn(n, n, device=device).to(dtype)
        out[f"{name}_tflop_s"] = round(2 * n**3 / timed(lambda x=x: x @ x) / 1e12, 2)
    big = torch.ones((1 if args.dry_run else 1024) << 20, device=device)
    out["read_gb_s"] = round(big.numel() * 4 / timed(lambda: big.sum()) / 1e9, 1)
    return out


def timed(run: Callable[[], Any], times: int = 10) -> float:
    """Seconds of one run, warm, the device waited for."""
    for _ in range(3):
        run()
    synchronize()
    return seconds_of(lambda: ([run() for _ in range(times)], synchronize())) / times


def parity(args: argparse.Namespace) -> dict[str, Any]:
    """The tiny model on the device against the CPU in fp32: logits, mel, waveform; each dtype of the weights,
    plain and captured steps."""
    from pipeline.engines.cosyvoice3.flow import FlowRequest

    device = "cpu" if args.dry_run else "cuda"
    exact = drawn_like(TINY, LoadOptions("fp32", "fp32", "cpu"))
    out: dict[str, Any] = {}
    for dtype in ("fp32", "bf16", "int8"):
        flow_dtype = "fp32" if dtype == "fp32" else "bf16"
        made = drawn_like(TINY, LoadOptions(dtype, flow_dtype, device))  # type: ignore[arg-type]
        found: dict[str, Any] = {}
        steps = [PlainStep(exact.llm, 2, 64), PlainStep(made.llm, 2, 64)]
        capture = cuda_capture if device == "cuda" else lambda body: body
        steps.append(FixedStep(made.llm, 2, 64, capture))  # type: ignore[arg-type]
        with torch.inference_mode():
            rows = [
                torch.stack([s.step([p, 40 + p]).log_softmax(-1).float().cpu() for p in range(12)])
                for s in steps
            ]
            found["logprob_max"] = float((rows[1] - rows[0]).abs().max())
            found["graph_against_plain_max"] = float((rows[2] - rows[1]).abs().max())
            ids = tuple(range(5, 45))
            asked = FlowRequest(ids, torch.ones(TINY.flow.speaker), (1, 2, 3), torch.zeros(6, TINY.flow.mel))
            mels = [m.flow.mel(asked).cpu() for m in (exact, made)]  # type: ignore[union-attr]
            found["mel_max"] = float((mels[1] - mels[0]).abs().max())
            waves = [m.vocoder.whole(mels[0]).cpu() for m in (exact, made)]
            noise = (waves[1] - waves[0]).square().mean().clamp_min(1e-20)
            found["wave_snr_db"] = float(10 * torch.log10(waves[0].square().mean() / noise))
        batch = [
            LlmRequest(tuple(range(10, 10 + n)), (1, 2), (3, 4), seed=n, max_tokens=30) for n in (4, 6, 9)
        ]
        sampler = GreedySampler(TINY.llm.codes)
        tokens = []
        for steppers in (None, made.steppers):
            events = decode_many(made.llm, batch, sampler, NEVER, steppers=steppers)
            tokens.append([(e.index, e.token) for e in events if isinstance(e, Emitted)])
        found["greedy_tokens_equal"] = sum(a == b for a, b in zip(*tokens, strict=True)) / len(tokens[0])
        found["graph_trouble"] = made.steppers.trouble
        out[dtype] = found
    return out


def drawn_like(config: Any, options: LoadOptions) -> Model:
    """The tiny model with the same weights for every dtype and device: drawn in fp32 on the CPU,
    converted."""
    from pipeline.engines.cosyvoice3.flow import Flow
    from pipeline.engines.cosyvoice3.llm import Llm
    from pipeline.engines.cosyvoice3.model import assemble
    from pipeline.engines.cosyvoice3.random_weights import draw_tensors
    from pipeline.engines.cosyvoice3.schema import expected_flow, expected_llm, expected_vocoder
    from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer
    from pipeline.engines.cosyvoice3.vocoder import Vocoder

    device = torch.device(options.device)
    sources = [
        draw_tensors(shapes, torch.float32, seed)
        for seed, shapes in enumerate(
            (expected_llm(config.llm), expected_flow(config.flow), expected_vocoder(config.vocoder))
        )
    ]
    parts = [
        {i.name: i.make() for i in items}
        for items in (
            llm_items(config.llm, sources[0], options.llm),
            flow_items(config.flow, sources[1], options.flow),
            vocoder_items(config.vocoder, sources[2]),
        )
    ]
    text = next(iter(text_items(sources[0], "fp32"))).make()
    return assemble(
        Llm(config.llm, parts[0], text, device),
        Flow(config.flow, parts[1], device),
        Vocoder(config.vocoder, parts[2], device),
        TextTokenizer(KIT, config.llm.text_rows),
        options,
    )


def profile(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Load, then each measurement; yields all that is known after each of them."""
    size = DRY if args.dry_run else FULL
    config = resolve([Layer("flags", {"profile": args.profile})]).config
    on_card = size.device == "cuda"
    out: dict[str, Any] = {"profile": args.profile, "memory": {}}
    if on_card:
        torch.zeros(1, device="cuda")
        out["memory"]["context_bytes"] = (
            args.free - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
        )
    else:
        config = dataclasses.replace(config, gpu="none")
    yield out
    with tempfile.TemporaryDirectory() as cache:
        engine = make_engine(size, Path(cache))
        out["load_s"] = round(seconds_of(lambda: engine.load(config, NEVER)), 2)
        if size is DRY:
            engine._effort = dataclasses.replace(engine._effort, graph=True)
        model = engine._ready()
        assert engine.plan is not None
        out["options"] = dataclasses.asdict(model.options)
        out["plan"] = {
            "fits": engine.plan.fits,
            "reduced": engine.plan.reduced,
            "predicted": needs(model.sizes, engine.plan.choice, context=0).to_params(),
        }
        first = next(t for t in (model.llm._layers[0].qkv,) if isinstance(t, Linear))
        out["int8_kernel"] = "packed" if first.packed_rows else "widened"
        memory_now(out, "loaded")
        yield out
        measure(out, engine, config, size)
        yield out
        out["generations"] = generations(engine, config, size)
        memory_now(out, "after_generations")
        yield out
        out["notices"] = list(engine.notices)
        out["graph_trouble"] = model.steppers.trouble
        if on_card:
            out["memory"]["allocator_reserved_peak_bytes"] = torch.cuda.max_memory_reserved()
            out["memory"]["allocator_allocated_peak_bytes"] = torch.cuda.max_memory_allocated()
        engine.trim()
        memory_now(out, "after_trim")
        engine.close()
        del model
        memory_now(out, "after_close")
        yield out


def memory_now(out: dict[str, Any], name: str) -> None:
    """What the allocator holds and has handed out at this point."""
    if torch.cuda.is_available():
        out["memory"][f"{name}_reserved_bytes"] = torch.cuda.memory_reserved()
        out["memory"][f"{name}_allocated_bytes"] = torch.cuda.memory_allocated()


def measure(out: dict[str, Any], engine: BenchEngine, config: Config, size: Size) -> None:
    """Steps, first audio, whole sentences."""
    voice = a_voice(engine)
    options = Options(seed=1, mode="zero_shot")
    engine.tokens = size.tokens

    def first_ms(request: int) -> float:
        begin = time.perf_counter()
        chunks = engine.synthesize(segments(1)[0], voice, dataclasses.replace(options, seed=request), NEVER)
        next(chunks)
        found = (time.perf_counter() - begin) * 1e3
        for _ in chunks:
            pass
        return round(found, 1)

    waits = [first_ms(request) for request in range(size.requests)]
    out["first_audio"] = {"first_ms": waits[0], "tenth_ms": waits[-1], "all_ms": waits}
    out["llm"] = {"one": steps(engine, 1, size)}
    if engine._effort.graph:
        out["llm"]["one_plain"] = steps(engine, 1, size, captured=False)
    together = config.batch_segments
    if together > 1:
        out["llm"]["many"] = steps(engine, together, size)
    out["flow"] = flow_seconds(engine, voice, size)
    out["whole"] = {"one": whole(engine, voice, options, 1)}
    if together > 1:
        out["whole"]["many"] = whole(engine, voice, options, together)


def steps(engine: BenchEngine, rows: int, size: Size, *, captured: bool = True) -> dict[str, Any]:
    """Median step of `rows` sequences, sampling included."""
    model = engine._ready()
    text = tuple(range(100, 100 + TEXT))
    asked = [
        LlmRequest(
            text, tuple(range(200, 200 + PROMPT_TEXT)), tuple(range(PROMPT)), seed, True, size.step_tokens
        )
        for seed in range(rows)
    ]
    marks = [time.perf_counter()]
    steppers = model.steppers if captured else None
    sampler = EndsAfter(model, 10**9)
    for event in decode_many(model.llm, asked, sampler, NEVER, steppers=steppers):
        if isinstance(event, Emitted) and event.index == 0:
            marks.append(time.perf_counter())
    between = [b - a for a, b in itertools.pairwise(marks[1:])]
    step = statistics.median(between) * 1e3
    return {
        "rows": rows,
        "prefill_and_capture_ms": round((marks[1] - marks[0]) * 1e3, 1),
        "step_ms": round(step, 3),
        "step_ms_per_sequence": round(step / rows, 3),
    }


def flow_seconds(engine: BenchEngine, voice: VoiceFeatures, size: Size) -> dict[str, Any]:
    """One flow call, both branches, prompt included; and the vocoder on what it gave."""
    from pipeline.engines.cosyvoice3.flow import FlowRequest
    from pipeline.engines.cosyvoice3.vocoder_stream import VocoderStream

    model = engine._ready()
    ready, _ = engine._voice(voice)
    asked = FlowRequest(tuple(range(size.tokens)), ready.speaker, ready.tokens, ready.mel)
    flow_s = timed(lambda: model.flow.mel(asked), 3)
    mel = model.flow.mel(asked)
    assert mel is not None
    vocoder_s = timed(lambda: list(VocoderStream(model.vocoder).push(mel, final=True)), 3)
    audio = size.tokens / 25
    return {
        "s": round(flow_s, 4),
        "rtf": round(flow_s / audio, 4),
        "vocoder_s": round(vocoder_s, 4),
        "vocoder_rtf": round(vocoder_s / audio, 4),
    }


def whole(engine: BenchEngine, voice: VoiceFeatures, options: Options, together: int) -> dict[str, Any]:
    """Text to samples, `together` segments at once; the second of two runs."""
    found: dict[str, Any] = {}
    for _ in range(2):
        begin, samples = time.perf_counter(), 0
        for _, chunk in engine.synthesize_many(segments(together), voice, options, NEVER):
            samples += len(chunk)
        seconds = time.perf_counter() - begin
        audio = samples / 24_000
        found = {"together": together, "s": round(seconds, 3), "audio_s": round(audio, 2)}
        found["rtf"] = round(seconds / audio, 4)
    return found


def generations(engine: BenchEngine, config: Config, size: Size) -> dict[str, Any]:
    """Texts of changing lengths, some of them the longest there are; how the allocator's share grew."""
    count = size.generations if config.profile == "gpu-4g" else size.generations // 4
    draw = np.random.default_rng(7)
    options = Options(seed=1, mode="zero_shot")
    longest = round(25 * config.longest_segment_s) if size is FULL else size.tokens
    reserved: list[int] = []
    failed = done = 0
    errors: dict[str, int] = {}
    begin = time.perf_counter()
    for number in range(count):
        if time.perf_counter() - begin > size.generations_s:
            break
        engine.tokens = longest if number % 20 == 0 else int(draw.integers(8, max(longest // 3, 9)))
        voice = a_voice(engine, 1 + number % 3)
        text = SENTENCE * (4 if number % 20 == 0 else int(draw.integers(1, 5)))
        try:
            heard = sum(
                len(chunk)
                for chunk in engine.synthesize(
                    segments(1, text)[0], voice, dataclasses.replace(options, seed=number), NEVER
                )
            )
            done += 1
            if not heard:
                failed += 1
        except OutOfMemory as error:
            failed += 1
            errors[error.resource] = errors.get(error.resource, 0) + 1
        reserved.append(torch.cuda.memory_reserved() if torch.cuda.is_available() else 0)
    seconds = time.perf_counter() - begin
    half = reserved[len(reserved) // 2 :]
    return {
        "asked": count,
        "done": done,
        "missing": count - done - failed,
        "failed": failed,
        "errors": errors,
        "growth_bytes": half[-1] - half[0] if half else None,
        "s": round(seconds, 1),
        "reserved_bytes": reserved[:: max(1, len(reserved) // 20)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("neighbour", "machine", "parity", "profile"))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--profile", default="gpu-6g")
    parser.add_argument("--cap-gib", type=int, default=6)
    parser.add_argument("--free", type=int, default=0)
    parser.add_argument("--partial", type=Path)
    args = parser.parse_args()
    if args.dry_run:
        torch.set_num_threads(1)
    if args.role == "neighbour":
        neighbour(args)
    elif args.role == "profile":
        found: dict[str, Any] = {}
        for found in profile(args):
            if args.partial is not None:
                args.partial.write_text(json.dumps(found))
        print(json.dumps(found))
    else:
        print(json.dumps({"machine": machine, "parity": parity}[args.role](args)))


if __name__ == "__main__":
    main()
