"""Which tensors a checkpoint must hold and with which shapes, from its configuration; and the check of a
file.

`expected_*` are pure; `check` compares. Keys beyond the expected ones are ignored (training leaves some
behind).
"""

from __future__ import annotations

from pipeline.engines.cosyvoice3.config import FlowConfig, LlmConfig, Shapes, VocoderConfig
from pipeline.engines.cosyvoice3.errors import problem

BODY = "llm.model.model."
NET = "decoder.estimator."
GAIN, DIRECTION = ".parametrizations.weight.original0", ".parametrizations.weight.original1"


def expected_llm(c: LlmConfig) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of llm.pt, without the unused lm_head."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    out: dict[str, tuple[int, ...]] = {
        BODY + "embed_tokens.weight": (c.text_rows, c.hidden),
        BODY + "norm.weight": (c.hidden,),
        "speech_embedding.weight": (c.speech_rows, c.hidden),
        "llm_decoder.weight": (c.speech_rows, c.hidden),
    }
    for i in range(c.layers):
        at = f"{BODY}layers.{i}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            out[f"{at}self_attn.{name}_proj.weight"] = (rows, c.hidden)
            out[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        out[at + "self_attn.o_proj.weight"] = (c.hidden, q)
        out[at + "mlp.gate_proj.weight"] = (c.intermediate, c.hidden)
        out[at + "mlp.up_proj.weight"] = (c.intermediate, c.hidden)
        out[at + "mlp.down_proj.weight"] = (c.hidden, c.intermediate)
        out[at + "input_layernorm.weight"] = (c.hidden,)
        out[at + "post_attention_layernorm.weight"] = (c.hidden,)
    return out


def expected_flow(c: FlowConfig) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of flow.pt. The stored rotary frequencies are a formula and not needed."""
    d = c.dim
    out: dict[str, tuple[int, ...]] = {
        "input_embedding.weight": (c.codes, c.mel),
        "spk_embed_affine_layer.weight": (c.mel, c.speaker),
        "pre_lookahead_layer.conv1.weight": (c.lookahead_channels, c.mel, c.lookahead + 1),
        "pre_lookahead_layer.conv2.weight": (c.mel, c.lookahead_channels, 3),
        NET + "time_embed.time_mlp.0.weight": (d, c.time_dim),
        NET + "time_embed.time_mlp.2.weight": (d, d),
        NET + "input_embed.proj.weight": (d, 4 * c.mel),
        NET + "input_embed.conv_pos_embed.conv1.0.weight": (d, d // c.conv_groups, c.conv_kernel),
        NET + "input_embed.conv_pos_embed.conv2.0.weight": (d, d // c.conv_groups, c.conv_kernel),
        NET + "norm_out.linear.weight": (2 * d, d),
        NET + "proj_out.weight": (c.mel, d),
    }
    for i in range(c.depth):
        at = f"{NET}transformer_blocks.{i}."
        out[at + "attn_norm.linear.weight"] = (6 * d, d)
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            out[f"{at}attn.{name}.weight"] = (d, d)
        out[at + "ff.ff.0.0.weight"] = (c.ff, d)
        out[at + "ff.ff.2.weight"] = (d, c.ff)
    for key in [k for k in out if k != "input_embedding.weight"]:
        out[key.removesuffix("weight") + "bias"] = (out[key][0],)
    return out


def expected_vocoder(c: VocoderConfig) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of hift.pt after `generator.` is stripped; weight norm in parametrised form."""
    out: dict[str, tuple[int, ...]] = {}

    def plain(key: str, shape: tuple[int, ...]) -> None:
        out[key + ".weight"], out[key + ".bias"] = shape, (shape[0],)

    def normed(key: str, shape: tuple[int, int, int]) -> None:
        out[key + GAIN], out[key + DIRECTION], out[key + ".bias"] = (shape[0], 1, 1), shape, (shape[0],)

    def residual(key: str, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        for j in range(len(dilations)):
            for n in (1, 2):
                normed(f"{key}.convs{n}.{j}", (channels, channels, kernel))
                out[f"{key}.activations{n}.{j}.alpha"] = (channels,)

    bins = c.istft_n + 2
    out["m_source.l_linear.weight"], out["m_source.l_linear.bias"] = (1, c.harmonics), (1,)
    normed("conv_pre", (c.base, c.mel, c.pre_right + 1))
    for i, kernel in enumerate(c.kernels):
        channels = c.base >> (i + 1)
        normed(f"ups.{i}", (channels, 2 * channels, kernel))
        stride = source_stride(c, i)
        plain(f"source_downs.{i}", (channels, bins, 1 if stride == 1 else 2 * stride))
        residual(f"source_resblocks.{i}", channels, c.source_kernels[i], c.source_dilations[i])
        for j, (kernel_j, dilations) in enumerate(zip(c.res_kernels, c.res_dilations, strict=True)):
            residual(f"resblocks.{i * len(c.res_kernels) + j}", channels, kernel_j, dilations)
    normed("conv_post", (bins, c.base >> len(c.rates), 7))
    for i in range(5):
        width, kernel = (c.mel, c.f0_right + 1) if i == 0 else (c.f0_channels, 3)
        normed(f"f0_predictor.condnet.{2 * i}", (c.f0_channels, width, kernel))
    plain("f0_predictor.classifier", (1, c.f0_channels))
    return out


def source_stride(c: VocoderConfig, stage: int) -> int:
    """How many source STFT frames make one sample of `stage`: 15, 3, 1 for rates 8, 5, 3."""
    stride = 1
    for rate in c.rates[stage + 1 :]:
        stride *= rate
    return stride


def check(file: str, shapes: Shapes, expected: dict[str, tuple[int, ...]]) -> None:
    """Raises EngineUnavailable(missing_tensor | wrong_shape) for the first thing that is off."""
    for key, shape in expected.items():
        if key not in shapes:
            raise problem("missing_tensor", file, key)
        if tuple(shapes[key]) != shape:
            raise problem("wrong_shape", file, f"{key} {list(shapes[key])}, expected {list(shape)}")
