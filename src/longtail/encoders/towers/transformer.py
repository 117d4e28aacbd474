"""TOKENS → VECTORS in training, by a pre-trained transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from longtail.data.pretrained import Pretrained
from longtail.encoders.inputs import Ordered
from longtail.encoders.ordered import checked_layers
from longtail.encoders.transformer import FrozenTransformer, Transformer, need_transformers
from longtail.errors import ModelError, RecipeError, one_line
from longtail.labels.tree import Clusters
from longtail.parts import Arrays, Inputs, Network, States, Step, Table
from longtail.types import Floats

NO_WORDS = "a transformer has no word vectors to make label vectors of: --set encoder=bag"
BLOCK = 64  # texts of about one length that are encoded at once


class TransformerTower:
    """A transformer and its pooling."""

    def __init__(self, settings: Transformer, start: Arrays, network: Network) -> None:
        self.settings, self.tables = settings, dict[str, Table]()
        tokenizer: Any = network.fit.tokenizer
        self.module: nn.Module = layers_of(tokenizer, start)
        if settings.frozen:
            self.module.requires_grad_(False)
            for layer in stack_of(self.module)[settings.frozen :]:
                layer.requires_grad_(True)

    def embed(self, inputs: Ordered) -> Tensor:
        """Look up the tokens: (B, T, D)."""
        ids, _ = as_tensors(inputs.ids, self._device())
        return embedded(self.module, ids)

    def __call__(self, inputs: Ordered, step: Step | None) -> States:
        """Encode a batch; dropout inside follows torch's own generator."""
        ids, mask = as_tensors(inputs.ids, self._device())
        tokens = embedded(self.module, ids)
        if step is None:
            return self._states(tokens, mask)
        tokens = step.apply("embeddings", tokens)
        with between_layers(self.module, step):
            states = self._states(tokens, mask, together=any("layers" in part.acts_on for part in step.augmentations))
        dropped = step.drop(states.pooled, self.settings.dropout)
        if states.tokens is None:
            return States(dropped)
        return States(dropped, step.drop(states.tokens, self.settings.dropout), mask)

    def _states(self, tokens: Tensor, mask: Tensor, *, together: bool = False) -> States:
        """Encode embedded tokens."""
        if not self.settings.tokens:
            return States(by_length(self.module, tokens, mask, self.settings, pooled, together=together))
        states = by_length(self.module, tokens, mask, self.settings, hidden, together=together)
        return States(pool(states, mask, self.settings), states * mask[:, :, None], mask)

    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    def bags(self, names: Any, partition: Clusters | None = None) -> Inputs:
        """Refuse: there is no table of words."""
        raise RecipeError(NO_WORDS)

    def sums(self, bags: Any) -> Tensor:
        """Refuse: there is no table of words."""
        raise RecipeError(NO_WORDS)

    def expect(self, *inputs: Inputs) -> None:
        """Do nothing: weights are all read in every step."""

    def take_over(self, other: Any) -> None:
        """Start from the weights of another tower."""
        self.module.load_state_dict(other.module.state_dict())

    def freeze(self, tokenizer: Pretrained) -> FrozenTransformer:
        """Give the encoder as arrays."""
        weights = {name: value.cpu().numpy().copy() for name, value in self.module.state_dict().items()}
        return FrozenTransformer(tokenizer, self.settings, weights)


def layers_of(tokenizer: Pretrained, arrays: Mapping[str, NDArray[Any]]) -> nn.Module:
    """Make the layers that a configuration describes, with these weights, and without what pools in its own way."""
    given = fitting(tokenizer, arrays)
    layers = _encoder(_settings(tokenizer))
    layers.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in given.items()})
    return layers


def fitting(tokenizer: Pretrained, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the weights of the layers that a configuration describes, if they fit; nothing is made of them yet."""
    settings = _settings(tokenizer)
    try:
        with torch.device("meta"):
            layers: Any = _encoder(settings)
    except Exception as reason:  # of any kind: the settings may be those of a stranger
        raise ModelError(f"{tokenizer.source}: its settings describe no encoder ({one_line(reason)})") from None
    prefix, wanted = f"{layers.base_model_prefix}.", layers.state_dict()
    given = {name.removeprefix(prefix): array for name, array in arrays.items()}
    embedded = layers.get_input_embeddings().weight.shape[0]
    if tokenizer.last_id >= embedded:
        raise ModelError(f"{tokenizer.source}: token {tokenizer.last_id} has no vector among {embedded}; train again")
    return checked_layers(given, wanted, f"train again, or use another encoder than {tokenizer.source}")


def _settings(tokenizer: Pretrained) -> Any:
    """Read the settings of the transformers library."""
    library = need_transformers()
    config = dict(tokenizer.config)
    kind = str(config.pop("model_type", ""))
    if kind not in library.CONFIG_MAPPING:
        raise ModelError(f"{tokenizer.source}: transformers knows no encoder of the kind {kind!r}")
    try:
        return library.AutoConfig.for_model(kind, **config)
    except Exception as reason:  # of any kind: the settings may be those of a stranger
        raise ModelError(f"{tokenizer.source}: its settings describe no encoder ({one_line(reason)})") from None


def _encoder(settings: Any) -> nn.Module:
    """Make an encoder with weights that chance decides."""
    layers: nn.Module = need_transformers().AutoModel.from_config(settings, trust_remote_code=False)
    if getattr(layers, "pooler", None) is not None:
        layers.pooler = None  # type: ignore[assignment]
    return layers


def as_tensors(ids: NDArray[np.int32], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids and which of them there are, (B, T) each, as long as the longest text."""
    mask = ids > 0
    length = max(1, int(mask.sum(axis=1).max(initial=0)))
    tokens = np.maximum(ids[:, :length] - 1, 0).astype(np.int64)
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask[:, :length]).to(device)


def embedded(layers: Any, ids: Tensor) -> Tensor:
    """Look up the tokens: (B, T, D)."""
    tokens: Tensor = layers.get_input_embeddings()(ids)
    return tokens


def hidden(layers: Any, tokens: Tensor, mask: Tensor, settings: Transformer) -> Tensor:
    """Encode embedded tokens (B, T, D) as states (B, T, width)."""
    seen = mask.clone()
    seen[:, 0] = True  # attention to nothing is not a number
    several = settings.layers > 1
    out = layers(inputs_embeds=tokens, attention_mask=seen.long(), output_hidden_states=several)
    states: Tensor = torch.cat(out.hidden_states[-settings.layers :], dim=2) if several else out.last_hidden_state
    return states


def pool(states: Tensor, mask: Tensor, settings: Transformer) -> Tensor:
    """Make one vector of the states of each text: (B, width), zero for texts without any token."""
    if settings.pooling == "cls":
        return states[:, 0] * mask.any(dim=1, keepdim=True)
    weights = mask[:, :, None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)


def pooled(layers: Any, tokens: Tensor, mask: Tensor, settings: Transformer) -> Tensor:
    """Encode embedded tokens (B, T, D) as vectors (B, width)."""
    return pool(hidden(layers, tokens, mask, settings), mask, settings)


def by_length(
    layers: Any, tokens: Tensor, mask: Tensor, settings: Transformer, way: Callable[..., Tensor], *,
    together: bool = False,
) -> Tensor:  # fmt: skip
    """Encode embedded tokens, texts of a length side by side; more than a chunk of them again on the way back.

    `way` gives vectors or states; `together` encodes all texts at once.
    """
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415  (half a second)

    if together:
        return way(layers, tokens, mask, settings)
    again = torch.is_grad_enabled() and len(tokens) > settings.chunk
    lengths, order = mask.sum(dim=1).sort(stable=True)
    parts = []
    for start in range(0, len(order), BLOCK):
        some, length = order[start : start + BLOCK], max(1, int(lengths[start : start + BLOCK].max()))
        part = layers, tokens[some, :length], mask[some, :length], settings
        out = checkpoint(way, *part, use_reentrant=False) if again else way(*part)
        parts.append(out if out.dim() == 2 else functional.pad(out, (0, 0, 0, mask.shape[1] - length)))
    return torch.cat(parts)[order.argsort()]


def stack_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformer, the first one first."""
    stacks = [list(part) for part in module.modules() if isinstance(part, nn.ModuleList)]
    return max(stacks, key=len)


@contextmanager
def between_layers(module: nn.Module, step: Step) -> Iterator[None]:
    """Let augmentations change what each layer gives, while it lasts."""
    if not any("layers" in part.acts_on for part in step.augmentations):
        yield
        return
    stack = stack_of(module)

    def hook(number: int) -> Callable[..., Any]:
        def changed(_: nn.Module, __: Any, out: Any) -> Any:
            states = out[0] if isinstance(out, tuple) else out
            states = step.apply("layers", (number, len(stack), states))[2]
            return (states, *out[1:]) if isinstance(out, tuple) else states

        return changed

    hooks = [layer.register_forward_hook(hook(number)) for number, layer in enumerate(stack, 1)]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


@torch.no_grad()
def encode(layers: Any, ids: NDArray[np.int32], settings: Transformer) -> Floats:
    """Encode token ids outside of training."""
    tokens, mask = as_tensors(ids, torch.device("cpu"))
    vectors: Floats = by_length(layers, embedded(layers, tokens), mask, settings, pooled).numpy()
    return vectors


@torch.no_grad()
def encode_tokens(layers: Any, ids: NDArray[np.int32], settings: Transformer) -> tuple[Floats, NDArray[np.bool_]]:
    """Return states (N, T, D) of token ids outside of training, and which tokens there are."""
    tokens, mask = as_tensors(ids, torch.device("cpu"))
    states = by_length(layers, embedded(layers, tokens), mask, settings, hidden) * mask[:, :, None]
    return states.numpy(), mask.numpy()
