"""A checkpoint of noise in the official layout: it costs what the real one costs, and says nothing.

Used by the bench, by `cosyd model check --random-weights` and by tests with other sizes than the kit's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from pipeline.engines.cosyvoice3.config import FlowConfig, LlmConfig, ModelConfig, VocoderConfig
from pipeline.engines.cosyvoice3.errors import problem
from pipeline.engines.cosyvoice3.official import ONNX_FILES
from pipeline.engines.cosyvoice3.schema import BODY, NET, expected_flow, expected_llm, expected_vocoder

FULL_SIZE = ModelConfig(
    llm=LlmConfig(
        hidden=896, layers=24, heads=14, kv_heads=2, head_dim=64, intermediate=4864, rope_theta=1e6,
        norm_eps=1e-6, text_rows=151_936, codes=6561, speech_rows=6761, top_p=0.8, top_k=25, window=10,
        tau=0.1, mix_text=5, mix_speech=15,
    ),
    flow=FlowConfig(
        mel=80, codes=6561, speaker=192, lookahead=3, lookahead_channels=1024, ratio=2, dim=1024, depth=22,
        heads=16, head_dim=64, ff=2048, conv_kernel=31, conv_groups=16, time_dim=256, block=50, guidance=0.7,
    ),
    vocoder=VocoderConfig(
        mel=80, base=512, sample_rate=24_000, harmonics=9, sine_amplitude=0.1, noise_sigma=0.003,
        voiced_hz=10.0, rates=(8, 5, 3), kernels=(16, 11, 7), istft_n=16, istft_hop=4, res_kernels=(3, 7, 11),
        res_dilations=((1, 3, 5),) * 3, source_kernels=(7, 7, 11), source_dilations=((1, 3, 5),) * 3,
        slope=0.1, limit=0.99, pre_right=4, f0_channels=512, f0_right=3,
    ),
)  # fmt: skip
"""Fun-CosyVoice3-0.5B as published."""

_BASE_TOKENS = 151_643

TOY_GRAPHS = Path(__file__).parent / "toy_graphs"
"""Two small ONNX graphs with the signatures of the official ones, so that a voice can be added."""


def _draw(key: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A tensor that keeps signals finite: norms and Snake near 1, weights of the usual spread."""
    if key.endswith(("layernorm.weight", "norm.weight", ".alpha")):
        return torch.ones(shape)
    if key.endswith("original0"):
        return torch.full(shape, 0.7)
    if key.endswith("bias"):
        return torch.randn(shape, generator=generator) * 0.01
    spread = 0.02 if "embed" not in key else 0.05
    if key.startswith(NET) or "condnet" in key or "lookahead" in key:
        spread = 0.03
    return torch.randn(shape, generator=generator) * spread


def draw_tensors(
    shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, seed: int
) -> dict[str, torch.Tensor]:
    """Random tensors of `shapes`."""
    generator = torch.Generator().manual_seed(seed)
    return {key: _draw(key, shape, generator).to(dtype) for key, shape in shapes.items()}


def yaml_text(c: ModelConfig) -> str:
    """A cosyvoice3.yaml with the constructor tags that the official one has."""
    v, f, m = c.vocoder, c.flow, c.llm
    return f"""sample_rate: {v.sample_rate}
token_mel_ratio: {f.ratio}
chunk_size: {f.block // f.ratio}
llm: !new:cosyvoice.llm.llm.CosyVoice3LM
    speech_token_size: {m.codes}
    mix_ratio: [{m.mix_text}, {m.mix_speech}]
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: {m.top_p}
        top_k: {m.top_k}
        win_size: {m.window}
        tau_r: {m.tau}
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithDiT
    token_mel_ratio: !ref <token_mel_ratio>
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        cfm_params: !new:omegaconf.DictConfig
            content:
                t_scheduler: 'cosine'
                inference_cfg_rate: {f.guidance}
        estimator: !new:cosyvoice.flow.DiT.dit.DiT
            depth: {f.depth}
            heads: {f.heads}
            dim_head: {f.head_dim}
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
hift: !new:cosyvoice.hifigan.generator.CausalHiFTGenerator
    sampling_rate: !ref <sample_rate>
    nsf_alpha: {v.sine_amplitude}
    nsf_sigma: {v.noise_sigma}
    nsf_voiced_threshold: {v.voiced_hz}
    upsample_rates: {list(v.rates)}
    upsample_kernel_sizes: {list(v.kernels)}
    istft_params:
        n_fft: {v.istft_n}
        hop_len: {v.istft_hop}
    resblock_kernel_sizes: {list(v.res_kernels)}
    resblock_dilation_sizes: {[list(d) for d in v.res_dilations]}
    source_resblock_kernel_sizes: {list(v.source_kernels)}
    source_resblock_dilation_sizes: {[list(d) for d in v.source_dilations]}
    lrelu_slope: {v.slope}
    audio_limit: {v.limit}
"""


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(extra)) for b in range(256)]


def _write_tokenizer(folder: Path, c: LlmConfig) -> None:
    """A byte-level tokenizer of the table's size: no merges, so a text costs one id a byte."""
    base = min(_BASE_TOKENS, c.text_rows - 293)
    letters = _byte_letters()
    vocabulary = {ch: i for i, ch in enumerate(letters)}
    vocabulary |= {f"~{i}": i for i in range(256, base)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    special = {
        str(base + i): {"content": name}
        for i, name in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": special}), "utf-8")


def random_weights(
    folder: Path,
    config: ModelConfig = FULL_SIZE,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    graphs: Path | None = None,
    told: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> None:
    """Write a checkpoint of noise into `folder` (full size: 3.4 GB in fp32, 1.7 in bf16; peak memory 2 GB).

    The two ONNX graphs are copied from `graphs`; without it the checkpoint can speak but not enrol.
    """
    qwen = folder / "CosyVoice-BlankEN"
    qwen.mkdir(parents=True, exist_ok=True)
    c = config.llm
    (folder / "cosyvoice3.yaml").write_text(yaml_text(config), "utf-8")
    (qwen / "config.json").write_text(
        json.dumps(
            {
                "hidden_act": "silu",
                "num_attention_heads": c.heads,
                "num_key_value_heads": c.kv_heads,
                "head_dim": c.head_dim,
                "num_hidden_layers": c.layers,
                "rms_norm_eps": c.norm_eps,
                "rope_theta": c.rope_theta,
            }
        ),
        "utf-8",
    )
    _write_tokenizer(qwen, c)
    told("llm.pt", 0, 3)
    llm = draw_tensors(expected_llm(c), dtype, seed)
    llm["llm.model.lm_head.weight"] = llm[BODY + "embed_tokens.weight"]
    torch.save(llm, folder / "llm.pt")
    del llm
    told("flow.pt", 1, 3)
    torch.save(draw_tensors(expected_flow(config.flow), dtype, seed + 1), folder / "flow.pt")
    told("hift.pt", 2, 3)
    torch.save(draw_tensors(expected_vocoder(config.vocoder), dtype, seed + 2), folder / "hift.pt")
    for name in ONNX_FILES if graphs is not None else ():
        shutil.copy(graphs / name, folder / name)  # type: ignore[operator]


def full_checkpoint(folder: Path, told: Callable[[str, int, int], None]) -> None:
    """A checkpoint of full size that can also add voices; `told` is given each file, how many are done, and
    how many there are. Raises EngineUnavailable(cannot_write)."""
    try:
        random_weights(folder, graphs=TOY_GRAPHS, told=told)
    except (OSError, RuntimeError) as error:  # torch says RuntimeError when the disk is full
        detail = (str(error) or type(error).__name__).splitlines()[0]
        raise problem("cannot_write", str(folder), detail) from error
