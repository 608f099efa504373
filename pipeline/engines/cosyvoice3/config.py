"""Sizes and constants of one checkpoint, as frozen values, from cosyvoice3.yaml, config.json and tensor
shapes.

Nothing here is a constant of the full-size or of the tiny model. What the shapes say wins over the yaml where
both speak; what neither says has the default of the published architecture. Raises
EngineUnavailable(bad_value) otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.engines.cosyvoice3.errors import problem
from pipeline.engines.cosyvoice3.yaml_plain import lookup

Shapes = Mapping[str, tuple[int, ...]]
YAML = "cosyvoice3.yaml"
QWEN = "CosyVoice-BlankEN/config.json"
MAX_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class LlmConfig:
    """The speech-token language model. `codes` speech codes are followed by the control ids."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    norm_eps: float
    text_rows: int
    codes: int
    speech_rows: int
    top_p: float
    top_k: int
    window: int
    tau: float
    mix_text: int
    mix_speech: int

    @property
    def sos(self) -> int:
        return self.codes

    @property
    def eos(self) -> int:
        return self.codes + 1

    @property
    def task(self) -> int:
        return self.codes + 2

    @property
    def fill(self) -> int:
        return self.codes + 3


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Tokens to mel. `block` is the streaming mask's block in frames; `lookahead` counts tokens."""

    mel: int
    codes: int
    speaker: int
    lookahead: int
    lookahead_channels: int
    ratio: int
    dim: int
    depth: int
    heads: int
    head_dim: int
    ff: int
    conv_kernel: int
    conv_groups: int
    time_dim: int
    block: int
    guidance: float

    @property
    def frame_rate(self) -> int:
        """Mel frames a second, from 25 tokens a second."""
        return 25 * self.ratio


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """HiFT. `rates` times `istft_hop` samples make one mel frame."""

    mel: int
    base: int
    sample_rate: int
    harmonics: int
    sine_amplitude: float
    noise_sigma: float
    voiced_hz: float
    rates: tuple[int, ...]
    kernels: tuple[int, ...]
    istft_n: int
    istft_hop: int
    res_kernels: tuple[int, ...]
    res_dilations: tuple[tuple[int, ...], ...]
    source_kernels: tuple[int, ...]
    source_dilations: tuple[tuple[int, ...], ...]
    slope: float
    limit: float
    pre_right: int
    f0_channels: int
    f0_right: int

    @property
    def hop(self) -> int:
        """Samples of one mel frame."""
        return math.prod(self.rates) * self.istft_hop


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """All three parts."""

    llm: LlmConfig
    flow: FlowConfig
    vocoder: VocoderConfig


def _bad(file: str, name: str, value: object) -> Exception:
    try:
        shown = str(value)[:80]
    except ValueError:  # Python writes no integer of more than 4,300 digits
        shown = "a number of thousands of digits"
    return problem("bad_value", file, f"{name} = {shown}")


def _integer(value: Any, name: str, file: str, default: int | None = None, low: int = 1) -> int:
    value = default if value is None else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_SIZE:
        raise _bad(file, name, value)
    return value


def _real(value: Any, name: str, file: str, default: float, low: float = 0.0, high: float = 1e9) -> float:
    value = default if value is None else value
    if isinstance(value, str):  # YAML 1.1 reads 1e-5 as text
        try:
            value = float(value)
        except ValueError:
            raise _bad(file, name, value) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _bad(file, name, value)
    return float(value)


def _integers(value: Any, name: str, default: Sequence[int]) -> tuple[int, ...]:
    value = list(default) if value is None else value
    if not isinstance(value, list) or not 0 < len(value) <= 16:
        raise _bad(YAML, name, value)
    return tuple(_integer(v, name, YAML) for v in value)


def _nested(value: Any, name: str, default: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    value = [list(d) for d in default] if value is None else value
    if not isinstance(value, list) or not 0 < len(value) <= 16:
        raise _bad(YAML, name, value)
    return tuple(_integers(v, name, ()) for v in value)


def shape_of(shapes: Shapes, key: str, file: str, rank: int) -> tuple[int, ...]:
    """The shape of `key`, `rank` long. Raises missing_tensor or wrong_shape."""
    shape = shapes.get(key)
    if shape is None:
        raise problem("missing_tensor", file, key)
    if len(shape) != rank or not all(0 < n <= MAX_SIZE for n in shape):
        raise problem("wrong_shape", file, f"{key} {list(shape)}")
    return shape


def count_blocks(shapes: Shapes, prefix: str) -> int:
    """How many consecutive `prefix`N. there are."""
    found = {key[len(prefix) :].split(".")[0] for key in shapes if key.startswith(prefix)}
    count = 0
    while str(count) in found:
        count += 1
    return count


def llm_config(tree: Mapping[str, Any], qwen: Mapping[str, Any], shapes: Shapes) -> LlmConfig:
    """From the yaml, the Qwen2 config.json and the shapes in llm.pt."""
    if qwen.get("rope_scaling") is not None or qwen.get("use_sliding_window"):
        raise problem("bad_value", QWEN, "rope_scaling or sliding windows are not supported")
    if qwen.get("hidden_act", "silu") != "silu":
        raise problem("bad_value", QWEN, f"hidden_act = {qwen.get('hidden_act')}")
    text_rows, hidden = shape_of(shapes, "llm.model.model.embed_tokens.weight", "llm.pt", 2)
    speech_rows, _ = shape_of(shapes, "speech_embedding.weight", "llm.pt", 2)
    heads = _integer(qwen.get("num_attention_heads"), "num_attention_heads", QWEN)
    kv_heads = _integer(qwen.get("num_key_value_heads"), "num_key_value_heads", QWEN, heads)
    head_dim = _integer(qwen.get("head_dim"), "head_dim", QWEN, max(hidden // heads, 1))
    layers = count_blocks(shapes, "llm.model.model.layers.")
    if layers == 0:
        raise problem("missing_tensor", "llm.pt", "llm.model.model.layers.0")
    if _integer(qwen.get("num_hidden_layers"), "num_hidden_layers", QWEN, layers) != layers:
        raise problem("missing_tensor", "llm.pt", f"llm.model.model.layers.{layers}")
    if heads % kv_heads or head_dim % 2:
        raise _bad(QWEN, "num_key_value_heads, head_dim", (kv_heads, head_dim))
    codes = _integer(lookup(tree, "llm.speech_token_size"), "llm.speech_token_size", YAML, 6561)
    if codes + 4 > speech_rows:
        raise problem("wrong_shape", "llm.pt", f"speech_embedding.weight {speech_rows} rows, {codes} codes")
    mix = _integers(lookup(tree, "llm.mix_ratio"), "llm.mix_ratio", (5, 15))
    if len(mix) != 2:
        raise _bad(YAML, "llm.mix_ratio", mix)
    pick = "llm.sampling."
    return LlmConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=shape_of(shapes, "llm.model.model.layers.0.mlp.gate_proj.weight", "llm.pt", 2)[0],
        rope_theta=_real(qwen.get("rope_theta"), "rope_theta", QWEN, 1e6, low=1.0, high=1e12),
        norm_eps=_real(qwen.get("rms_norm_eps"), "rms_norm_eps", QWEN, 1e-6, high=1.0),
        text_rows=text_rows,
        codes=codes,
        speech_rows=speech_rows,
        top_p=_real(lookup(tree, pick + "top_p"), pick + "top_p", YAML, 0.8, high=1.0),
        top_k=_integer(lookup(tree, pick + "top_k"), pick + "top_k", YAML, 25),
        window=_integer(lookup(tree, pick + "win_size"), pick + "win_size", YAML, 10),
        tau=_real(lookup(tree, pick + "tau_r"), pick + "tau_r", YAML, 0.1, high=100.0),
        mix_text=mix[0],
        mix_speech=mix[1],
    )


def flow_config(tree: Mapping[str, Any], shapes: Shapes) -> FlowConfig:
    """From the yaml and the shapes in flow.pt."""
    file, net = "flow.pt", "decoder.estimator."
    codes, mel = shape_of(shapes, "input_embedding.weight", file, 2)
    channels, _, kernel = shape_of(shapes, "pre_lookahead_layer.conv1.weight", file, 3)
    dim, group_width, conv_kernel = shape_of(
        shapes, net + "input_embed.conv_pos_embed.conv1.0.weight", file, 3
    )
    depth = count_blocks(shapes, net + "transformer_blocks.")
    if depth == 0:
        raise problem("missing_tensor", file, net + "transformer_blocks.0")
    if _integer(lookup(tree, "flow.decoder.estimator.depth"), "depth", YAML, depth) != depth:
        raise problem("missing_tensor", file, f"{net}transformer_blocks.{depth}")
    at = "flow.decoder.estimator."
    heads = _integer(lookup(tree, at + "heads"), at + "heads", YAML, max(dim // 64, 1))
    head_dim = _integer(lookup(tree, at + "dim_head"), at + "dim_head", YAML, max(dim // heads, 1))
    if heads * head_dim != dim or dim % group_width or head_dim % 2:
        raise _bad(YAML, at + "heads, dim_head", (heads, head_dim))
    solver = lookup(tree, "flow.decoder.cfm_params.content.t_scheduler")
    if solver not in (None, "cosine"):
        raise _bad(YAML, "t_scheduler", solver)
    guidance = lookup(tree, "flow.decoder.cfm_params.content.inference_cfg_rate")
    ratio = _integer(lookup(tree, "flow.token_mel_ratio"), "flow.token_mel_ratio", YAML, 2)
    block = lookup(tree, at + "static_chunk_size")
    return FlowConfig(
        mel=mel,
        codes=codes,
        speaker=shape_of(shapes, "spk_embed_affine_layer.weight", file, 2)[1],
        lookahead=kernel - 1,
        lookahead_channels=channels,
        ratio=ratio,
        dim=dim,
        depth=depth,
        heads=heads,
        head_dim=head_dim,
        ff=shape_of(shapes, net + "transformer_blocks.0.ff.ff.0.0.weight", file, 2)[0],
        conv_kernel=conv_kernel,
        conv_groups=dim // group_width,
        time_dim=shape_of(shapes, net + "time_embed.time_mlp.0.weight", file, 2)[1],
        block=_integer(block, at + "static_chunk_size", YAML, 25 * ratio),
        guidance=_real(guidance, "inference_cfg_rate", YAML, 0.7, high=10.0),
    )


def vocoder_config(tree: Mapping[str, Any], shapes: Shapes) -> VocoderConfig:
    """From the yaml and the shapes in hift.pt (weight norm in its parametrised form)."""
    file, at, norm = "hift.pt", "hift.", ".parametrizations.weight.original1"
    base, mel, pre_kernel = shape_of(shapes, "conv_pre" + norm, file, 3)
    f0_channels, _, f0_kernel = shape_of(shapes, "f0_predictor.condnet.0" + norm, file, 3)
    rates = _integers(lookup(tree, at + "upsample_rates"), at + "upsample_rates", (8, 5, 3))
    kernels = _integers(lookup(tree, at + "upsample_kernel_sizes"), at + "upsample_kernel_sizes", (16, 11, 7))
    n_fft = _integer(lookup(tree, at + "istft_params.n_fft"), "n_fft", YAML, 16, low=4)
    hop = _integer(lookup(tree, at + "istft_params.hop_len"), "hop_len", YAML, 4)
    standard = ((1, 3, 5),) * 3
    res_kernels = _integers(
        lookup(tree, at + "resblock_kernel_sizes"), at + "resblock_kernel_sizes", (3, 7, 11)
    )
    source_kernels = _integers(
        lookup(tree, at + "source_resblock_kernel_sizes"), at + "source_resblock_kernel_sizes", (7, 7, 11)
    )
    res_dilations = _nested(
        lookup(tree, at + "resblock_dilation_sizes"), at + "resblock_dilation_sizes", standard
    )
    source_dilations = _nested(
        lookup(tree, at + "source_resblock_dilation_sizes"), at + "source_resblock_dilation_sizes", standard
    )
    lengths = {len(rates), len(kernels), len(source_kernels), len(source_dilations)}
    if len(lengths) != 1 or len(res_kernels) != len(res_dilations) or n_fft % hop or n_fft % 2:
        raise _bad(YAML, "hift", (rates, kernels, res_kernels, source_kernels))
    if base % (1 << len(rates)):
        raise problem("wrong_shape", file, f"conv_pre has {base} channels, {len(rates)} stages")
    return VocoderConfig(
        mel=mel,
        base=base,
        sample_rate=_integer(lookup(tree, at + "sampling_rate"), at + "sampling_rate", YAML, 24000),
        harmonics=shape_of(shapes, "m_source.l_linear.weight", file, 2)[1],
        sine_amplitude=_real(lookup(tree, at + "nsf_alpha"), at + "nsf_alpha", YAML, 0.1, high=10),
        noise_sigma=_real(lookup(tree, at + "nsf_sigma"), at + "nsf_sigma", YAML, 0.003, high=10),
        voiced_hz=_real(lookup(tree, at + "nsf_voiced_threshold"), at + "nsf_voiced_threshold", YAML, 10),
        rates=rates,
        kernels=kernels,
        istft_n=n_fft,
        istft_hop=hop,
        res_kernels=res_kernels,
        res_dilations=res_dilations,
        source_kernels=source_kernels,
        source_dilations=source_dilations,
        slope=_real(lookup(tree, at + "lrelu_slope"), at + "lrelu_slope", YAML, 0.1, high=1),
        limit=_real(lookup(tree, at + "audio_limit"), at + "audio_limit", YAML, 0.99, high=1),
        pre_right=pre_kernel - 1,
        f0_channels=f0_channels,
        f0_right=f0_kernel - 1,
    )
