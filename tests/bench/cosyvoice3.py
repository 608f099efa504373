"""What CosyVoice 3 costs at full size on this machine's CPU: random weights, which cost the same as real
ones.

    python tests/bench/cosyvoice3.py [--folder DIR] [--json FILE] [--stage NAME] [--llm int8] [--threads 2]

Each stage runs in a fresh process. The machine is measured in the same run (read bandwidth, GEMM), and each
stage is also given as a fraction of its bound. As BASELINE: prompt of 75 tokens, 21 prompt-text ids, 40 text
ids, N = 100 and 250. The table goes to docs/performance.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROMPT, PROMPT_TEXT, TEXT = 75, 21, 40
STAGES = ("machine", "start", "llm", "llm4", "flow", "vocoder", "quality", "plan", "whole", "whole4")


def memory() -> dict[str, float]:
    """RSS by kind in MB, and the peak."""
    wanted = ("VmRSS", "VmHWM", "RssAnon", "RssFile")
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {f[0][:-1]: round(int(f[1]) / 1024) for f in lines if f and f[0][:-1] in wanted}


def best(run: Callable[[], Any], times: int) -> float:
    """The fastest of some runs in seconds, after one that does not count."""
    run()
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def machine() -> dict[str, Any]:
    """Read GB/s, GEMM GFLOP/s in fp32 and bf16, AMX or not."""
    import torch

    big = torch.ones(96 * 2**20)
    out: dict[str, Any] = {"read_gb_s": round(big.numel() * 4 / best(lambda: big.sum(), 5) / 1e9, 1)}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        x, w = torch.randn(1300, 1024).to(dtype), torch.randn(2048, 1024).to(dtype)
        seconds = best(lambda x=x, w=w: torch.nn.functional.linear(x, w), 10)
        out[f"{name}_gflop_s"] = round(2 * 1300 * 1024 * 2048 / seconds / 1e9)
    out["amx"] = "amx_tile" in Path("/proc/cpuinfo").read_text()
    out["load_1min"] = os.getloadavg()[0]
    return out


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    """The model and a random voice."""
    import torch

    from pipeline.engines.cosyvoice3.heap import keep_heap
    from pipeline.engines.cosyvoice3.model import LoadOptions, load_model
    from pipeline.engines.cosyvoice3.synthesis import Voice

    keep_heap()
    options = LoadOptions(llm=args.llm, flow=args.flow, steps=args.steps, vocoder_bf16=args.vocoder_bf16)
    model = load_model(args.folder, args.cache, options)
    generator = torch.Generator().manual_seed(1)
    tokens = tuple(torch.randint(0, 6561, (PROMPT,), generator=generator).tolist())
    mel = torch.randn(2 * PROMPT, 80, generator=generator) - 3
    return model, Voice(tokens, mel, torch.randn(192, generator=generator))


def request(voice: Any, tokens: int, seed: int = 0) -> Any:
    from pipeline.engines.cosyvoice3.decode import LlmRequest

    return LlmRequest(
        tuple(range(100, 100 + TEXT)),
        tuple(range(200, 200 + PROMPT_TEXT)),
        voice.tokens,
        seed,
        max_tokens=tokens,
    )


class NeverStops:
    """The model's own sampler with stop ids forbidden, as in BASELINE."""

    def __init__(self, model: Any) -> None:
        from pipeline.engines.cosyvoice3.sampling import RasParams, RasSampler

        self._codes, self._ras = model.llm.config.codes, RasSampler(RasParams.of(model.llm.config))

    def __call__(self, logits: Any, recent: Any, draws: Any) -> Any:
        logits[:, self._codes :] = -float("inf")
        return self._ras(logits, recent, draws)


def start(args: argparse.Namespace) -> dict[str, Any]:
    """From exec to ready with the cache there, and memory before and after a first sentence."""
    import threading

    from pipeline.engines.cosyvoice3.synthesis import speak_many

    model, voice = load(args)
    ready = time.clock_gettime(time.CLOCK_BOOTTIME) - started_at()
    at_start = memory()
    for _ in speak_many(model, voice, [request(voice, 50)], NeverStops(model), threading.Event()):
        pass
    return {
        "ready_s": round(ready, 2),
        "converted": list(model.converted),
        "ready": at_start,
        "steady": memory(),
    }


def started_at() -> float:
    """When this process was started, in seconds of CLOCK_BOOTTIME."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def llm(args: argparse.Namespace, rows: int = 1) -> dict[str, Any]:
    """Median step of `rows` sequences together, sampling included."""
    import threading

    from pipeline.engines.cosyvoice3.decode import Emitted, decode_many

    model, voice = load(args)
    c = model.llm.config
    block = c.hidden * (2 * (c.heads + c.kv_heads) * c.head_dim + 3 * c.intermediate)
    bytes_read = (c.layers * block + c.hidden * c.speech_rows) * {"int8": 1, "bf16": 2, "fp32": 4}[args.llm]
    out: dict[str, Any] = {"weight_mb": round(bytes_read / 1e6)}
    for tokens in args.lengths:
        marks = [time.perf_counter()]
        requests = [request(voice, tokens, seed) for seed in range(rows)]
        for event in decode_many(model.llm, requests, NeverStops(model), threading.Event()):
            if isinstance(event, Emitted) and event.index == 0:
                marks.append(time.perf_counter())
        steps = [b - a for a, b in itertools.pairwise(marks[1:])]
        step = statistics.median(steps)
        out[f"N{tokens}"] = {
            "prefill_ms": round((marks[1] - marks[0]) * 1e3),
            "step_ms": round(step * 1e3, 1),
            "fastest_tenth_ms": round(statistics.quantiles(steps, n=10)[0] * 1e3, 1),
            "step_ms_per_sequence": round(step * 1e3 / rows, 1),
            "rtf": round(step * 25 / rows, 2),
            "bound_ms": round(bytes_read / args.machine["read_gb_s"] / 1e6, 1),
        }
    return {**out, "memory": memory()}


def flow_flop(frames: int, c: Any, steps: int) -> float:
    """Multiply-adds of the linears and the attention, both branches, as FLOP."""
    linear = c.depth * (4 * c.dim * c.dim + 2 * c.dim * c.ff) * 2
    attention = c.depth * 2 * 2 * frames * c.dim
    convs = 2 * 2 * c.dim * (c.dim // c.conv_groups) * c.conv_kernel
    return 2.0 * frames * (linear + attention + convs) * steps


def flow(args: argparse.Namespace) -> dict[str, Any]:
    """All Euler steps, both branches, prompt frames included."""
    import torch

    from pipeline.engines.cosyvoice3.flow import FlowRequest

    model, voice = load(args)
    out: dict[str, Any] = {}
    peak = args.machine["fp32_gflop_s" if args.flow == "fp32" else "bf16_gflop_s"]
    for tokens in args.lengths:
        ids = tuple(torch.randint(0, 6561, (tokens,)).tolist())
        made = FlowRequest(ids, voice.speaker, voice.tokens, voice.mel)
        seconds = best(lambda made=made: model.flow.mel(made), args.repeats)
        frames = 2 * (PROMPT + tokens)
        bound = flow_flop(frames, model.flow.config, model.flow.steps) / peak / 1e9
        rtf = seconds / (tokens / 25)
        out[f"N{tokens}"] = {"s": round(seconds, 2), "rtf": round(rtf, 2), "bound_s": round(bound, 2)}
    return {**out, "memory": memory()}


def vocoder(args: argparse.Namespace) -> dict[str, Any]:
    """Log-mel to samples on windows."""
    import torch

    from pipeline.engines.cosyvoice3.vocoder_stream import VocoderStream

    model, _ = load(args)
    out: dict[str, Any] = {}
    for tokens in args.lengths:
        mel = torch.randn(2 * tokens, 80) - 3
        seconds = best(lambda mel=mel: list(VocoderStream(model.vocoder).push(mel, final=True)), args.repeats)
        out[f"N{tokens}"] = {"s": round(seconds, 3), "rtf": round(seconds / (tokens / 25), 3)}
    return {**out, "memory": memory()}


def quality(args: argparse.Namespace) -> dict[str, Any]:
    """What the chosen dtypes change against fp32: log-probabilities, mel, and the waveform of one and the
    same mel."""
    import torch

    from pipeline.engines.cosyvoice3.decode import prefill
    from pipeline.engines.cosyvoice3.flow import FlowRequest

    found: list[dict[str, Any]] = []
    mel = torch.randn(100, 80, generator=torch.Generator().manual_seed(5)) - 3
    ids = tuple(torch.randint(0, 6561, (50,), generator=torch.Generator().manual_seed(6)).tolist())
    for exact in (True, False):
        chosen = argparse.Namespace(**vars(args))
        if exact:
            chosen.llm, chosen.flow, chosen.vocoder_bf16 = "fp32", "fp32", False
        model, voice = load(chosen)
        with torch.inference_mode():
            cache = model.llm.new_cache(1, 256)
            rows = [prefill(model.llm, cache, 0, request(voice, 50), None)[None]]
            for token in ids[:8]:
                rows.append(model.llm.step(cache, model.llm.embed_speech([token])))
            found.append(
                {
                    "logprobs": model.llm.logits(torch.cat(rows)).log_softmax(-1),
                    "mel": model.flow.mel(FlowRequest(ids, voice.speaker, voice.tokens, voice.mel)),
                    "wave": model.vocoder.whole(mel),
                }
            )
        del model
    a, b = found
    p = a["logprobs"].exp()
    noise = (a["wave"] - b["wave"]).square().mean()
    return {
        "logprob_max": round(float((a["logprobs"] - b["logprobs"]).abs().max()), 4),
        "kl_max_nats": round(float((p * (a["logprobs"] - b["logprobs"])).sum(-1).max()), 6),
        "mel_max": round(float((a["mel"] - b["mel"]).abs().max()), 4),
        "mel_rms": round(float((a["mel"] - b["mel"]).square().mean().sqrt()), 5),
        "wave_snr_db": round(float(10 * torch.log10(a["wave"].square().mean() / noise)), 1),
    }


def whole(args: argparse.Namespace, rows: int = 1) -> dict[str, Any]:
    """Text ids to samples."""
    import threading

    from pipeline.engines.cosyvoice3.synthesis import speak_many

    model, voice = load(args)
    out: dict[str, Any] = {}
    for tokens in args.lengths:
        samples = 0
        begin = time.perf_counter()
        requests = [request(voice, tokens, seed) for seed in range(rows)]
        for _, piece in speak_many(model, voice, requests, NeverStops(model), threading.Event()):
            samples += len(piece)
        seconds = time.perf_counter() - begin
        audio = samples / 24e3
        out[f"N{tokens}"] = {"s": round(seconds, 1), "audio_s": audio, "rtf": round(seconds / audio, 2)}
    return {**out, "memory": memory()}


def plan(args: argparse.Namespace) -> dict[str, Any]:
    """The memory plan against what was measured, in MB, for a segment of ten seconds and a quarter more."""
    import threading

    import torch

    from pipeline.engines.cosyvoice3.flow import FlowRequest
    from pipeline.engines.cosyvoice3.heap import return_heap
    from pipeline.engines.cosyvoice3.synthesis import speak_many
    from pipeline.engines.cosyvoice3.vocoder_stream import VocoderStream
    from pipeline.planning.memory import MIB, Choice, needs

    before = memory()["VmRSS"]
    model, voice = load(args)
    choice = Choice("cpu", args.llm, args.flow, 1, 10.0, PROMPT / 25, args.vocoder_bf16)
    tokens = 312
    first = request(voice, 20)
    for _ in speak_many(model, voice, [first], NeverStops(model), threading.Event()):
        pass  # faults the weights in
    return_heap()
    steady = memory()["VmRSS"]

    def peak_of(run: Callable[[], Any]) -> int:
        return_heap()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        base = memory()["VmRSS"]
        run()
        return int(memory()["VmHWM"] - base)

    ids = tuple(torch.randint(0, 6561, (tokens,)).tolist())
    mel = torch.randn(2 * tokens, 80) - 3
    made = FlowRequest(ids, voice.speaker, voice.tokens, voice.mel)
    measured = {
        "weights": int(steady - before),
        "flow_work": peak_of(lambda: model.flow.mel(made)),
        "vocoder_work": peak_of(lambda: list(VocoderStream(model.vocoder).push(mel, final=True))),
        "llm_work_and_kv": peak_of(lambda: llm_only(model, request(voice, 30))),
    }
    measured["peak"] = int(steady - before) + max(list(measured.values())[1:])
    found = needs(model.sizes, choice, context=0)
    predicted = {
        "weights": found.weights,
        "flow_work": found.flow_work,
        "vocoder_work": found.vocoder_work,
        "llm_work_and_kv": found.llm_work + found.kv,
        "peak": found.peak,
    }
    return {"measured": measured, "predicted": {k: round(v / MIB) for k, v in predicted.items()}}


def llm_only(model: Any, asked: Any) -> None:
    import threading

    from pipeline.engines.cosyvoice3.decode import decode_many

    for _ in decode_many(model.llm, [asked], NeverStops(model), threading.Event()):
        pass


RUN: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "machine": lambda args: machine(),
    "start": start,
    "llm": llm,
    "llm4": lambda args: llm(args, 4),
    "flow": flow,
    "vocoder": vocoder,
    "quality": quality,
    "plan": plan,
    "whole": whole,
    "whole4": lambda args: whole(args, 4),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "cosyd-bench-model")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stage", choices=STAGES, action="append", help="only this one; may be repeated")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--llm", default="int8", choices=("int8", "bf16", "fp32"))
    parser.add_argument("--flow", default="bf16", choices=("int8", "bf16", "fp32"))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--vocoder-bf16",
        action=argparse.BooleanOptionalAction,
        help="default: as the service would on this CPU",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 250])
    args = parser.parse_args()
    args.cache = args.cache or args.folder / "cache"
    if args.vocoder_bf16 is None:
        from pipeline.planning.processor import fast_bf16

        args.vocoder_bf16 = fast_bf16()
    return args


def main() -> None:
    """Run the stages, each in a process of its own, and print one line of JSON for each."""
    sys.path.insert(0, str(ROOT))
    args = parse()
    if importlib.util.find_spec("torch") is None:
        print("not run: torch is not installed (pip install cosyd[cosyvoice])")
        return
    if args.inside:
        import torch

        torch.set_num_threads(args.threads)
        args.machine = json.loads(os.environ["BENCH_MACHINE"])
        print(json.dumps(RUN[args.inside](args)))
        return
    from tests.bench.cosyvoice3_soak import full_checkpoint

    full_checkpoint(args.folder)
    results: dict[str, Any] = {}
    wanted = [s for s in STAGES if s == "machine" or not args.stage or s in args.stage]
    if "start" in wanted:  # once for the conversion, once for the figure
        wanted.insert(wanted.index("start"), "start")
    for stage in wanted:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(args.threads),
            "BENCH_MACHINE": json.dumps(results.get("machine", {})),
        }
        command = [sys.executable, __file__, "--inside", stage, *sys.argv[1:]]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{stage}: {done.stderr[-2000:]}")
        results[stage] = json.loads(done.stdout.splitlines()[-1])
        print(stage, json.dumps(results[stage]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
