"""The pair's tokenizer: byte-level BPE trained on the corpus, saved as a Hugging Face fast tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from specrig.models import hub

END_OF_TEXT = "<|endoftext|>"
"""The token that ends every training text: id 0, and the tokenizer's eos, bos and pad token."""
_WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+ *|\s+(?!\S)|\s+"
# Digits stand alone so that numbers are copied digit by digit; a newline takes its indentation with it, which makes
# code shorter.


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a BPE of at most `vocabulary` tokens (fewer when the text is too small to yield that many merges)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # every byte can be encoded
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, which `AutoTokenizer.from_pretrained(folder)` loads."""
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder."""
    found: Tokenizer = hub.read_tokenizer(folder / "tokenizer.json")
    return found


def end_of_text(tokenizer: Tokenizer) -> int:
    """The id of the end-of-text token."""
    number: int | None = tokenizer.token_to_id(END_OF_TEXT)
    assert number is not None, "train_tokenizer puts it first"
    return number
