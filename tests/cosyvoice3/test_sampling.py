"""The sampler against upstream's worked examples, and as a distribution."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

import json  # noqa: E402

from pipeline.engines.cosyvoice3.sampling import RasParams, RasSampler, draws, nucleus, pick  # noqa: E402

CASES = json.loads((KIT / "golden" / "sampling.json").read_text("utf-8"))


def window(case: dict[str, Any], params: RasParams) -> Any:
    return torch.tensor([([-1] * params.window + case["decoded"])[-params.window :]])


def multinomial(weights: Any, uniform: Any) -> Any:
    """Draw as upstream does, from torch's global generator."""
    return torch.multinomial(weights, 1)[:, 0]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['name']}-{c['seed']}")
def test_worked_examples(case: dict[str, Any]) -> None:
    params = RasParams(case["top_p"], case["top_k"], case["win_size"], case["tau_r"])
    probabilities = torch.tensor([case["probs"]])
    ids, weights = nucleus(probabilities, params)
    assert ids[0][weights[0] > 0].tolist() == case["nucleus_candidates"]

    def upstream_pick(weights: Any, uniform: Any) -> Any:
        kept = weights[:, weights[0] > 0] if weights.shape[1] == ids.shape[1] and nucleus_draw else weights
        return multinomial(kept, uniform)

    torch.manual_seed(case["seed"])
    nucleus_draw = True
    first = ids[0][upstream_pick(weights, None)].item()
    assert first == case["nucleus_pick"]

    calls: list[int] = []

    def draw(weights: Any, uniform: Any) -> Any:
        calls.append(1)
        return multinomial(weights[:, weights[0] > 0] if len(calls) == 1 else weights, uniform)

    torch.manual_seed(case["seed"])
    found = RasSampler(params, draw)(probabilities.log(), window(case, params), torch.zeros(1, 2))
    assert found.tolist() == [case["ras_pick"]]


def test_a_draw_follows_the_probabilities_and_never_takes_an_impossible_id() -> None:
    weights = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    uniform = draws(3, 20_000)[:, 0]
    found = torch.bincount(pick(weights.repeat(20_000, 1), uniform), minlength=6) / 20_000
    assert torch.allclose(found, weights, atol=0.015)
    assert found[weights == 0].sum() == 0
    edges = pick(weights.repeat(2, 1), torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64))
    assert edges.tolist() == [1, 4]


def test_a_repeated_id_is_never_drawn_twice_in_a_window_of_one() -> None:
    logits = torch.tensor([[5.0, 4.0, 0.0]]).repeat(500, 1)
    recent = torch.full((500, 10), 0)
    found = RasSampler(RasParams())(logits, recent, draws(1, 500))
    fell_back = found != 0
    # id 0 has 0.73 of the mass: whoever drew it first was sent to the others
    assert fell_back.all()


def test_rows_do_not_influence_each_other() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    recent, uniform = torch.randint(0, 50, (6, 10)), draws(9, 6)
    sampler = RasSampler(RasParams())
    whole = sampler(logits, recent, uniform)
    alone = torch.cat([sampler(logits[i : i + 1], recent[i : i + 1], uniform[i : i + 1]) for i in range(6)])
    assert whole.tolist() == alone.tolist()


def test_forbidden_ids_are_not_drawn() -> None:
    logits = torch.zeros(1000, 40)
    logits[:, 20:] = -torch.inf
    found = RasSampler(RasParams())(logits, torch.full((1000, 10), 3), draws(2, 1000))
    assert int(found.max()) < 20
