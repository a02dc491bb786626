"""New tokens: in the tokenizer, and as rows of the embedding and the output matrix, tied ones kept tied."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lydian.errors import RecipeError


def add_tokens(tokenizer: PreTrainedTokenizerBase, texts: Seq[str]) -> tuple[int, ...]:
    """Gives each text a token of its own where it has none yet; returns the ids of all of them, in order.

    Raises RecipeError for a text that is empty or stands there twice.
    """
    if not all(texts) or len(set(texts)) != len(texts):
        raise RecipeError(
            where="model.new_tokens",
            given=repr(list(texts)),
            expected="texts that are not empty and differ",
            fix='Write e.g. ["<think>", "</think>"].',
        )
    known = tokenizer.get_vocab()
    missing = [AddedToken(text, special=True, normalized=False) for text in texts if text not in known]
    tokenizer.add_tokens(missing, special_tokens=True)
    return tuple(tokenizer.convert_tokens_to_ids(list(texts)))


@torch.no_grad()
def fit_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Adds rows until every token of the tokenizer has one; each begins as the mean of the rows that were there.

    With the mean, a new token begins less likely than the likeliest old one, wherever it is predicted. A model with
    rows to spare stays as it is.

    Source: Hewitt 2021, "Initializing new word embeddings for pretrained language models".
    """
    num_rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) <= num_rows:
        return
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for matrix in (model.get_input_embeddings(), model.get_output_embeddings()):
        matrix.weight[num_rows:] = matrix.weight[:num_rows].mean(dim=0)
