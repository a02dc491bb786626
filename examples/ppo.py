"""PPO in one flat file: the algorithm's specification in plain torch and transformers.

    r_t  = −β (log π_old − log π_reference) + [t is the last token] R           per token; reference: the first weights
    A_t  = δ_t + γλ A_t+1,  δ_t = r_t + γ V_t+1 − V_t                           V after a true end is 0
    loss = mean_t −min(ρ_t Â_t, clamp(ρ_t, 1 − ε, 1 + ε) Â_t)                   ρ = π / π_old; Â: A standardised
    value loss = mean_t ½ max((V − G)², (V_old + clamp(V − V_old, ±ε) − G)²)    G = A + V_old

Means over all sampled tokens of a round; its samples serve for several steps. The critic is a model of its own with a
linear head, 0 at first. Equal to the library's row `ppo`: tests/examples/test_ppo.py.

    python examples/ppo.py        trains the bundled tiny model on verified reward, with a critic beside it
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence, Set

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lydian.data.arithmetic import arithmetic_problems
from lydian.data.trajectory import Sampling
from lydian.models.load import load_model
from lydian.models.weights import weights_of
from lydian.rollout.local import LocalEngine
from lydian.rollout.sample import sample, score
from lydian.text.template import make_template
from lydian.verifiers import make_verifier

Ids = tuple[int, ...]
Group = tuple[Ids, list[Ids], list[float]]  # a prompt, its completions with their stop tokens, their rewards
Collect = Callable[[int], list[Group]]

CLIP, VALUE_CLIP, KL_COEF, DISCOUNT, GAE_LAMBDA = 0.2, 0.2, 0.05, 1.0, 0.95


def padded(rows: Sequence[tuple[Ids, Ids]]) -> tuple[Tensor, Tensor]:
    """Tokens, filled up on the right where none looks, and which but the first were sampled, [rows, length − 1]."""
    tokens = pad_sequence([torch.tensor(x + y) for x, y in rows], batch_first=True)
    is_sampled = pad_sequence([torch.tensor([False] * len(x) + [True] * len(y)) for x, y in rows], batch_first=True)
    return tokens, is_sampled[:, 1:]


def token_logprobs(model: nn.Module, tokens: Tensor, temperature: float) -> Tensor:
    """log π of every token but the first, given those before it, [rows, length − 1]."""
    logits = model(input_ids=tokens).logits[:, :-1]  # the logits at t predict token t + 1
    return (logits / temperature).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def advantages(reward: Tensor, value: Tensor, after: float) -> Tensor:
    """A_t of one completion; `after` is V behind its last token, 0 after a true end."""
    found, following = torch.zeros_like(reward), 0.0
    for t in reversed(range(len(reward))):
        residual = reward[t] + DISCOUNT * after - value[t]
        found[t] = following = residual + DISCOUNT * GAE_LAMBDA * following
        after = value[t]
    return found


def train(
    model: nn.Module, collect: Collect, *, rounds: int, rate: float, temperature: float, stops: Set[int], epochs: int
) -> Iterator[dict[str, float]]:
    """Trains in place, `epochs` steps on all that `collect(round)` samples with the current weights; yields metrics."""
    reference, critic = copy.deepcopy(model), copy.deepcopy(model)
    trained = nn.ModuleList([model, critic])
    critic.lm_head = nn.Linear(critic.lm_head.in_features, 1)
    nn.init.zeros_(critic.lm_head.weight), nn.init.zeros_(critic.lm_head.bias)
    optimiser = torch.optim.AdamW(trained.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    for round in range(rounds):
        groups = collect(round)
        tokens, is_sampled = padded([(prompt, reply) for prompt, replies, _ in groups for reply in replies])
        with torch.no_grad():  # all of this stays fixed for the round
            proximal = token_logprobs(model, tokens, temperature)
            kl = proximal - token_logprobs(reference, tokens, temperature)
            value = critic(input_ids=tokens).logits.squeeze(-1)  # V of the text up to and including each token
        old_value, advantage = value[:, :-1], torch.zeros_like(proximal)
        for k, final in enumerate(final for _, _, rewards in groups for final in rewards):
            used, last = is_sampled[k], is_sampled[k].nonzero()[-1] + 1
            reward = -KL_COEF * kl[k, used]
            reward[-1] += final
            after = 0.0 if int(tokens[k, last]) in stops else value[k, last]
            advantage[k, used] = advantages(reward, old_value[k, used], after)
        returns = advantage + old_value
        advantage = (advantage - advantage[is_sampled].mean()) / (advantage[is_sampled].std() + 1e-8)
        for _ in range(epochs):
            ratio = (token_logprobs(model, tokens, temperature) - proximal).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)[is_sampled].mean()
            value = critic(input_ids=tokens).logits.squeeze(-1)[:, :-1]
            bounded = old_value + (value - old_value).clamp(-VALUE_CLIP, VALUE_CLIP)
            value_loss = 0.5 * torch.maximum((value - returns) ** 2, (bounded - returns) ** 2)[is_sampled].mean()
            (loss + value_loss).backward()  # they have no parameter in common
            norm, _ = (nn.utils.clip_grad_norm_(m.parameters(), 1.0) for m in trained)
            optimiser.step()
            optimiser.zero_grad()
            yield {"loss": loss.item(), "value_loss": value_loss.item(), "gradient_norm": norm.item()}


def main() -> None:
    """Trains the tiny model and prints how many samples of each round are correct."""
    loaded = load_model("tiny")
    template = make_template("plain", loaded.tokenizer, prompt="{question}\nSteps:")
    verifier, engine = make_verifier("gsm8k", marker="####"), LocalEngine.of("tiny", template)
    problems = arithmetic_problems(num=1000, split="train", min_level=1, max_level=2)

    def collect(round: int) -> list[Group]:
        engine.load(weights_of(loaded.model, round))
        chosen, sampling = problems[32 * round : 32 * (round + 1)], Sampling(max_tokens=40, seed=round)
        judged = score(chosen, sample(engine, template, chosen, sampling, num_samples=4), template, verifier)
        print(f"round {round:2}: {sum(group.num_correct for group in judged)} of 128 samples correct")
        turns = [[(m.trajectory.turns[0], m.verdict.score or 0.0) for m in group.members] for group in judged]
        return [(g[0][0].context, [turn.completion.tokens for turn, _ in g], [score for _, score in g]) for g in turns]

    for step in train(loaded.model, collect, rounds=16, rate=1e-4, temperature=1.0, stops=loaded.stop_tokens, epochs=2):
        print(f"          value loss {step['value_loss']:.3f}")


if __name__ == "__main__":
    main()
