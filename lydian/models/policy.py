"""A transformers model seen as a policy: log-probabilities at the sites of a forest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from lydian.data.forest import Forest, Layout, Sites, plant, site_weights
from lydian.data.sequence import Sequence
from lydian.errors import ModelError
from lydian.models.heads import Head
from lydian.models.prefix import PrefixCache, is_prefix, prefix_states
from lydian.models.tree_attention import Mask, sparse_masks
from lydian.objectives.logprobs import log_collision, token_logprobs

M = TypeVar("M")


class Policy:
    """Computes what training needs of a causal language model, on any unmodified transformers architecture.

    model              a transformers causal language model, or a PEFT model around one
    layout             how batches must be laid out for it; found by `find_layout` when not given
    compute_dtype      bfloat16 runs matrix products in bf16 over the fp32 masters (autocast); float32 changes nothing
    head               a head on the same hidden states, trained with the model: a critic's, a reward model's

    `attention` says by what its layers see a forest: trees, blocks, or dense masks (see `sparse_masks`); `refused`
    which of them failed on this model, and why.
    Raises ModelError if the model's logits are not `hidden · output matrixᵀ` (soft-capped or scaled heads).
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        *,
        layout: Layout | None = None,
        compute_dtype: torch.dtype = torch.float32,
        head: Head | None = None,
    ) -> None:
        self.model = model
        self.head = head
        self.compute_dtype = compute_dtype
        causal_lm: PreTrainedModel = model.get_base_model() if isinstance(model, PeftModel) else model
        self._body = causal_lm.base_model
        self._kinds = sliding_layers(causal_lm.config.get_text_config())
        self.output = causal_lm.get_output_embeddings()
        mask_dtype = compute_dtype if compute_dtype == torch.bfloat16 else self.output.weight.dtype
        self._masks = sparse_masks(causal_lm) | {"dense masks": partial(dense_mask, dtype=mask_dtype)}
        self.attention = next(iter(self._masks))
        self.refused: dict[str, str] = {}
        self._check_head(causal_lm)
        self.layout: Layout = layout or self.find_layout()

    @property
    def device(self) -> torch.device:
        return self.output.weight.device

    def recompute(self, num_layers: int) -> None:
        """Keep only the inputs of the model's first layers for the backward pass, and recompute the rest there.

        It changes no number: less memory (`activation_bytes`) for more time. First layers, because those after them are
        done, and their activations gone, when these are recomputed.

        Raises ModelError for more layers than can be recomputed, as with prefix tuning.
        """
        layers = recomputable_layers(self.model)
        if num_layers > len(layers):
            raise ModelError(
                where="activations to recompute",
                given=f"{num_layers} layers",
                expected=f"at most {len(layers)}, which transformers can recompute; with a prefix it can none",
                fix="Recompute fewer layers, or use another kind of adapter.",
            )
        for index, layer in enumerate(layers):
            # transformers asks the layer alone whether it trains; what is inside stays as it is
            layer.gradient_checkpointing = layer.training = index < num_layers
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)

    @property
    def num_recomputed(self) -> int:
        """Layers whose activations are recomputed in the backward pass."""
        return sum(layer.gradient_checkpointing for layer in recomputable_layers(self.model))

    def logprobs(self, forest: Forest) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """log π(target) and entropy in nats at each site, at the temperature that the site was sampled at."""
        return self.site_logprobs(self.states(forest)[forest.sites.source], forest.sites)

    def states(self, forest: Forest) -> Float[Tensor, "m d"]:
        """The last hidden states of all tokens of a forest, flat: what a site's `source` and `after` index."""
        return self.hidden(forest).flatten(0, 1)

    def trainable(self) -> dict[str, nn.Parameter]:
        """What training changes, by name: the model's parameters that take gradients, and the head's as `head.…`."""
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        return named | {f"head.{name}": p for name, p in (self.head.named_parameters() if self.head else ())}

    def site_logprobs(
        self, hidden: Float[Tensor, "n d"], sites: Sites
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """log π(target) and entropy in nats from the sites' hidden states."""
        with self._precision():
            return token_logprobs(hidden, self.output.weight, sites.target, sites.temperature)

    def site_log_collision(self, hidden: Float[Tensor, "n d"], sites: Sites) -> Float[Tensor, " n"]:
        """log Σ_v π(v)² at each site, constant: how sure the policy is, whatever the target."""
        with self._precision():
            return log_collision(hidden, self.output.weight, sites.temperature)

    def hidden(self, forest: Forest) -> Float[Tensor, "rows length d"]:
        """Last hidden states of a forest's rows; each token attends to its ancestors and itself only."""
        prefix = prefix_states(self.model)
        num_before = 0 if prefix is None else prefix.shape[3]
        cache = {} if prefix is None else {"cache": PrefixCache(prefix)}
        with self._precision():
            if forest.layout == "single":
                return self._body(input_ids=forest.tokens, use_cache=False, **cache).last_hidden_state
            return self._body(
                input_ids=forest.tokens,
                attention_mask=attention_masks(self._kinds, partial(self._masks[self.attention], forest, num_before)),
                position_ids=forest.positions + num_before,
                use_cache=False,
                **cache,
            ).last_hidden_state

    def find_layout(self) -> Layout:
        """`shared` if masked attention reproduces plain causal attention on this model, else `single`; and the first
        of the masks that does."""
        n = 3 if self.device.type == "cpu" else 50  # below 128 tokens a GPU uses another kernel than in training
        vocabulary = self.output.weight.shape[0]
        tokens = torch.randint(vocabulary, (4 * n,), generator=torch.Generator().manual_seed(0)).tolist()
        sequences = [  # two branches of several tokens: without a mask the later one would see the earlier
            Sequence(id=str(k), group="", tokens=(*tokens[: 2 * n], *tail), trained=(False,) + (True,) * (3 * n - 1))
            for k, tail in enumerate((tokens[2 * n : 3 * n], tokens[3 * n :]))
        ]
        plain = self._logprobs_of(sequences, "single")
        tolerance = 1e-3 if self.compute_dtype == torch.float32 else 0.2
        for name in self._masks:
            self.attention = name
            try:
                masked = self._logprobs_of(sequences, "shared")
            except (ValueError, TypeError, AttributeError, RuntimeError) as error:  # not every model takes every mask
                self.refused[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            if all((plain[k] - masked[k]).abs().max() <= tolerance for k in plain):  # NaN is not
                return "shared"
            self.refused[name] = "other log-probabilities than one sequence at a time gives"
        return "single"

    def _logprobs_of(self, sequences: Seq[Sequence], layout: Layout) -> dict[str, Float[Tensor, " n"]]:
        """Of each sequence's sites, by its id. On a GPU the backward pass is tried too, whose kernels are others."""
        found = {}
        for forest in plant(sequences, site_weights(sequences, "token_mean"), layout=layout):
            with torch.set_grad_enabled(self.device.type != "cpu"):
                logprobs, _ = self.logprobs(forest.to(self.device))
            if logprobs.requires_grad:
                torch.autograd.grad(logprobs.sum(), [*self.trainable().values()], allow_unused=True)
            for k, sequence_id in enumerate(forest.sequence_ids):
                found[sequence_id] = logprobs.detach()[forest.sites.sequence.to(self.device) == k]
        return found

    def _check_head(self, causal_lm: PreTrainedModel) -> None:
        tokens = torch.arange(1, 5, device=self.device)[None] % self.output.weight.shape[0]
        with torch.no_grad(), self._precision():
            logits = causal_lm(input_ids=tokens, use_cache=False).logits.float()
            own = (self._body(input_ids=tokens, use_cache=False).last_hidden_state @ self.output.weight.T).float()
        gap = (logits - own).abs().max().item()
        if gap > 1e-3 * max(1.0, logits.abs().max().item()) * (1 if self.compute_dtype == torch.float32 else 50):
            raise ModelError(
                where=f"{type(causal_lm).__name__}'s output head",
                given=f"logits that differ from hidden · output matrix by {gap:.3g}",
                expected="a linear head without bias, soft cap or scale",
                fix="This architecture's logits need more than its output matrix; it cannot be trained here yet.",
            )

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        if self.compute_dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)


def recomputable_layers(model: PreTrainedModel | PeftModel) -> list[GradientCheckpointingLayer]:
    """The decoder's layers that transformers can recompute, first to last; none with a prefix, which it would drop."""
    if is_prefix(model):
        return []
    causal_lm: PreTrainedModel = model.get_base_model() if isinstance(model, PeftModel) else model
    return [module for module in causal_lm.get_decoder().modules() if isinstance(module, GradientCheckpointingLayer)]


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """How an architecture takes masks: one for all layers, or one for each kind of layer.

    window       tokens that a sliding layer looks back, itself included; None if no layer slides
    is_by_kind   True if the model wants a mapping {"full_attention": mask, "sliding_attention": mask}
    """

    window: int | None
    is_by_kind: bool

    def select(self, masks: dict[str, M]) -> M | dict[str, M]:
        """The masks in the form that the model takes."""
        if self.is_by_kind:
            return masks
        return masks["sliding_attention" if self.window else "full_attention"]


def sliding_layers(config: PreTrainedConfig) -> LayerKinds:
    """Reads a transformers configuration; `Policy.find_layout` checks the result on the model itself."""
    window = getattr(config, "sliding_window", None)
    layer_types = set(getattr(config, "layer_types", None) or ())
    if not window or layer_types == {"full_attention"}:
        return LayerKinds(None, False)
    return LayerKinds(window, bool(layer_types))


def attention_masks(kinds: LayerKinds, mask_of: Callable[[int | None], Mask]) -> Mask | dict[str, Mask]:
    """The masks of each kind of layer that a model has, made by `mask_of(window)`."""
    masks = {"full_attention": mask_of(None)}
    if kinds.window:
        masks["sliding_attention"] = mask_of(kinds.window)
    return kinds.select(masks)


def dense_mask(forest: Forest, num_before: int, window: int | None, *, dtype: torch.dtype) -> Tensor:
    """Additive [rows, 1, length, num_before + length]: 0 where query i sees key j (j ≤ i < reach[j]), else the lowest
    number.

    num_before  keys of a prefix in front, which all queries see
    window      only keys less than so many positions back are seen; None: all
    """
    index = torch.arange(forest.tokens.shape[1], device=forest.reach.device)
    is_visible = (index[None, :] <= index[:, None]) & (index[:, None] < forest.reach[:, None, :])
    is_visible = nn.functional.pad(is_visible, (num_before, 0), value=True)
    if window:
        before = torch.arange(-num_before, 0, device=forest.reach.device).expand(len(forest.positions), -1)
        distance = forest.positions[:, :, None] - torch.cat([before, forest.positions], dim=1)[:, None, :]
        is_visible &= distance < window
    mask = torch.zeros(is_visible.shape, dtype=dtype, device=is_visible.device)
    return mask.masked_fill_(~is_visible, torch.finfo(dtype).min)[:, None]
