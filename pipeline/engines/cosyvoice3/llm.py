"""The language model's body: Qwen2 with a static KV cache, and the speech head for the last position only.

The residual stream is float32; matrix products run in the compute dtype (fp32, or bf16 for bf16 and int8
weights). The text table never leaves the CPU: about a hundred of its rows are gathered for each request.
Called by `decode` and `bistream`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from pipeline.codes import CosydError
from pipeline.engines.cosyvoice3.config import LlmConfig
from pipeline.engines.cosyvoice3.linear import Linear, SplitLinear, split_linear, take_linear
from pipeline.engines.cosyvoice3.official import Tensors

KV_ROUND = 64

PREFILL_ROUND, ATTENDED_ROUND = 32, 64
"""On a CPU lengths are rounded up to these: libraries keep what they prepared for each shape, and a text has
a new one each time (0.8 MB of growth for each). What is added lies behind, masked or overwritten."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer block's weights."""

    norm1: torch.Tensor
    qkv: Linear
    o: Linear
    norm2: torch.Tensor
    gate_up: Linear | SplitLinear
    down: Linear


@dataclass(slots=True)
class KvCache:
    """Keys and values [layers, rows, kv_heads, capacity, head_dim]; `lengths` holds what each row has
    used."""

    keys: torch.Tensor
    values: torch.Tensor
    lengths: list[int] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        return int(self.keys.shape[3])

    @property
    def nbytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def copy_row(self, source: int, target: int, length: int | None = None) -> None:
        """Copy the first `length` positions (all used ones by default) of row `source` into `target`."""
        n = self.lengths[source] if length is None else length
        self.keys[:, target, :, :n] = self.keys[:, source, :, :n]
        self.values[:, target, :, :n] = self.values[:, source, :, :n]
        self.lengths[target] = n


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values of a prompt's first positions [layers, kv_heads, n, head_dim], reused between
    segments."""

    keys: torch.Tensor
    values: torch.Tensor


def rotary_tables(positions: int, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, head_dim], float32, for half-split pairing (dimension j pairs with j +
    head_dim/2)."""
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    angle = torch.arange(positions).float()[:, None] * frequency[None, :]
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


class Llm:
    """The speech-token language model, ready to run. Not thread-safe: a worker calls it from one thread."""

    def __init__(
        self, config: LlmConfig, part: Tensors, text_table: torch.Tensor, device: torch.device
    ) -> None:
        self.config = config
        self.device = device
        self.text_table = text_table
        self.compute = part["layers.0.qkv.bias"].dtype
        self.speech_table = part["speech_embedding"].to(device)
        self._layers = [self._take_layer(part, i) for i in range(config.layers)]
        self._norm = part["norm"].to(device)
        self._head = take_linear(part, "head", device, self.compute)
        self._cos, self._sin = rotary_tables(0, config.head_dim, config.rope_theta)
        self._rounds = device.type == "cpu"

    def _take_layer(self, part: Tensors, i: int) -> Layer:
        at = f"layers.{i}."
        names = ("qkv", "o", "gate_up", "down")
        qkv, o, gate_up, down = (take_linear(part, at + n, self.device, self.compute) for n in names)
        norm1, norm2 = (part[at + n].to(self.device) for n in ("norm1", "norm2"))
        # The packed kernel reads this one weight, more than half of all, at half the speed of the others.
        scale = part.get(at + "gate_up.scale")
        wide = None if scale is None else split_linear(gate_up.weight, scale)
        return Layer(norm1, qkv, o, norm2, wide or gate_up, down)

    def new_cache(self, rows: int, capacity: int) -> KvCache:
        """An empty cache for `rows` sequences of at most `capacity` positions."""
        c = self.config
        capacity = -(-capacity // KV_ROUND) * KV_ROUND
        shape = (c.layers, rows, c.kv_heads, capacity, c.head_dim)
        if self._cos.shape[0] < capacity:
            cos, sin = rotary_tables(capacity, c.head_dim, c.rope_theta)
            self._cos, self._sin = cos.to(self.device), sin.to(self.device)
        keys = torch.zeros(shape, dtype=self.compute, device=self.device)
        return KvCache(keys, torch.zeros_like(keys), [0] * rows)

    @property
    def rotary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin for as many positions as the largest cache so far."""
        return self._cos, self._sin

    def embed_text(self, ids: Sequence[int]) -> torch.Tensor:
        """float32 [n, hidden] on the device. Raises CosydError(bad_value) for an id the table does not
        have."""
        if ids and not 0 <= min(ids) <= max(ids) < self.config.text_rows:
            raise CosydError("bad_value", field="text", reason="out_of_range", value="token id")
        rows = self.text_table[torch.tensor(list(ids), dtype=torch.long)]
        return rows.to(self.device, torch.float32)

    def embed_speech(self, ids: Sequence[int]) -> torch.Tensor:
        """float32 [n, hidden]; control ids are rows of the same table. Raises CosydError(bad_value)."""
        if ids and not 0 <= min(ids) <= max(ids) < self.config.speech_rows:
            raise CosydError("bad_value", field="voice", reason="out_of_range", value="speech token id")
        index = torch.tensor(list(ids), dtype=torch.long, device=self.device)
        return self.speech_table[index].float()

    def extend(self, cache: KvCache, row: int, embeddings: torch.Tensor) -> torch.Tensor:
        """Append `embeddings` [n, hidden] to one row; the last position's hidden state [hidden], normed,
        float32."""
        start, n = cache.lengths[row], embeddings.shape[0]
        if n == 0 or start + n > cache.capacity:
            raise ValueError(f"{n} positions after {start} of {cache.capacity}")
        c, last, group = self.config, n - 1, self.config.heads // self.config.kv_heads
        cache.lengths[row] = start + n
        if self._rounds and n > 1:
            rounded = min(-(-n // PREFILL_ROUND) * PREFILL_ROUND, cache.capacity - start)
            embeddings = F.pad(embeddings, (0, 0, 0, rounded - n))
            n = rounded
        stop = start + n
        cos, sin = self._cos[start:stop, None], self._sin[start:stop, None]
        mask = None
        if start and n > 1:
            mask = torch.ones(n, stop, dtype=torch.bool, device=self.device).tril(start)
        h = embeddings.float()
        for i, layer in enumerate(self._layers):
            q, k, v = self._project(layer, h, cos, sin)
            cache.keys[i, row, :, start:stop] = k.transpose(0, 1)
            cache.values[i, row, :, start:stop] = v.transpose(0, 1)
            keys = cache.keys[i, row, :, :stop].repeat_interleave(group, 0)[None]
            values = cache.values[i, row, :, :stop].repeat_interleave(group, 0)[None]
            a = F.scaled_dot_product_attention(
                q.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=start == 0 and n > 1
            )
            if i == c.layers - 1:  # from here on only the last position counts
                a, h = a[:, :, last : last + 1], h[last : last + 1]
            h = self._finish(layer, h, a[0].transpose(0, 1).reshape(a.shape[2], -1))
        return self._final(h)[0]

    def step(self, cache: KvCache, embeddings: torch.Tensor) -> torch.Tensor:
        """One position for each of the first B rows: [B, hidden] -> hidden states [B, hidden], normed,
        float32."""
        rows, c = embeddings.shape[0], self.config
        lengths = cache.lengths[:rows]
        longest = max(lengths) + 1
        if longest > cache.capacity:
            raise ValueError(f"{longest} positions of {cache.capacity}")
        at = torch.tensor(lengths, device=self.device)
        cos, sin = self._cos[at, None], self._sin[at, None]
        even = min(lengths) + 1 == longest
        attended = longest
        if self._rounds:
            attended = min(-(-longest // ATTENDED_ROUND) * ATTENDED_ROUND, cache.capacity)
        mask = None
        if not even or attended != longest:
            behind = torch.arange(attended, device=self.device)[None, :] > at[:, None]
            mask = torch.zeros(rows, attended, dtype=self.compute, device=self.device)
            mask = mask.masked_fill_(behind, -torch.inf)[:, None, None]  # once here, not in each layer
        index = torch.arange(rows, device=self.device)
        h = embeddings.float()
        for i, layer in enumerate(self._layers):
            q, k, v = self._project(layer, h, cos, sin)
            if even:
                cache.keys[i, :rows, :, longest - 1] = k
                cache.values[i, :rows, :, longest - 1] = v
            else:
                cache.keys[i, index, :, at] = k
                cache.values[i, index, :, at] = v
            # the query heads of one kv head stand where a sequence of queries would: no repeated keys
            grouped = q.view(rows, c.kv_heads, -1, c.head_dim)
            a = F.scaled_dot_product_attention(
                grouped,
                cache.keys[i, :rows, :, :attended],
                cache.values[i, :rows, :, :attended],
                attn_mask=mask,
            )
            h = self._finish(layer, h, a.reshape(rows, -1))
        for row in range(rows):
            cache.lengths[row] += 1
        return self._final(h)

    def step_at(self, cache: KvCache, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """`step` at fixed shapes for a capture: speech ids [B] at positions `at` [B] -> logits float32 [B,
        V].

        Reads nothing back and looks at the whole capacity, masked; the caller counts `cache.lengths`.
        """
        rows, c = ids.shape[0], self.config
        cos, sin = self._cos[at, None], self._sin[at, None]
        places = torch.arange(cache.capacity, device=self.device)
        mask = torch.zeros(rows, cache.capacity, dtype=self.compute, device=self.device)
        mask = mask.masked_fill(places[None, :] > at[:, None], -torch.inf)[:, None, None]
        index = torch.arange(rows, device=self.device)
        h = self.speech_table[ids].float()
        for i, layer in enumerate(self._layers):
            q, k, v = self._project(layer, h, cos, sin)
            cache.keys[i, index, :, at] = k
            cache.values[i, index, :, at] = v
            grouped = q.view(rows, c.kv_heads, -1, c.head_dim)
            a = F.scaled_dot_product_attention(
                grouped, cache.keys[i], cache.values[i], attn_mask=mask.expand(-1, *grouped.shape[1:3], -1)
            )
            h = self._finish(layer, h, a.reshape(rows, -1))
        return self.logits(self._final(h))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Speech head: [B, hidden] -> float32 [B, speech_rows]."""
        return self._head(hidden.to(self.compute)).float()

    def _project(
        self, layer: Layer, h: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [n, heads, d], k and v [n, kv_heads, d]; q and k rotated together."""
        c = self.config
        x = F.rms_norm(h, (c.hidden,), layer.norm1, c.norm_eps).to(self.compute)
        qkv = layer.qkv(x).view(h.shape[0], -1, c.head_dim)
        turning = qkv[:, : c.heads + c.kv_heads].float()
        low, high = turning.chunk(2, dim=-1)
        turned = (turning * cos + torch.cat([-high, low], dim=-1) * sin).to(self.compute)
        return turned[:, : c.heads], turned[:, c.heads :], qkv[:, c.heads + c.kv_heads :]

    def _finish(self, layer: Layer, h: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of a block after attention."""
        h = h + layer.o(attended)
        x = F.rms_norm(h, (self.config.hidden,), layer.norm2, self.config.norm_eps)
        wide = layer.gate_up(x if isinstance(layer.gate_up, SplitLinear) else x.to(self.compute))
        gate, up = wide.chunk(2, dim=-1)
        return h + layer.down((F.silu(gate) * up).to(self.compute))

    def _final(self, h: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(h, (self.config.hidden,), self._norm, self.config.norm_eps)

    def snapshot(self, cache: KvCache, row: int, length: int) -> Prefix:
        """A copy of the first `length` positions of `row`."""
        return Prefix(
            cache.keys[:, row, :, :length].clone(),
            cache.values[:, row, :, :length].clone(),
        )

    def restore(self, cache: KvCache, row: int, prefix: Prefix) -> None:
        """Start `row` with `prefix`."""
        n = prefix.keys.shape[2]
        cache.keys[:, row, :, :n] = prefix.keys
        cache.values[:, row, :, :n] = prefix.values
        cache.lengths[row] = n
