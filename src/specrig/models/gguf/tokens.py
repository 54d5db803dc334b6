"""The tokenizer that a GGUF header describes, and the ids that end a text, by the rules of llama.cpp (`llama-vocab.cpp`).

transformers' reader leaves out which tokens are put around a text, the space in front of it, and how most byte-level
vocabularies split a text first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specrig.errors import first_line
from specrig.models.gguf.header import Header

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
"""`tokenizer.ggml.model`."""
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens that are found whole in a text; the last are text like any other."""
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
SPLITS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "llama-bpe": [_LLAMA3],
    "qwen2": [_QWEN2],
    "tekken": [_WORD % ("", "") + r"|\p{N}" + _PUNCTUATION + _SPACES],
    "gpt-4o": [_WORD % (f"{_CONTRACTION}?", f"{_CONTRACTION}?") + r"|\p{N}{1,3}" + _PUNCTUATION + _SPACES],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        + _SPACES,
    ],
}
"""How a byte-level vocabulary splits a text before it merges, one pattern after the other."""
ALIASES = {
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe",
    "qwen2": "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "gpt-2": "phi-2 mpt olmo jais trillion granite-docling exaone4 mellum",
    "gpt-4o": "llama4 kanana2",
}
"""Names in `tokenizer.ggml.pre` that split in the same way."""
WHOLE_WORDS = set("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 tekken".split())
"""Those that take a word which is a token as it is, and put a BOS in front where no key says otherwise."""
ENDS = set(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> "
    "<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[ "
    "<｜end▁of▁sentence｜>".split()
)
"""Tokens at which llama.cpp ends a text, wherever a vocabulary has them."""
ENDING_KEYS = {
    "eos": (),
    "eot": (),
    "eom": (),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<fim-repo>", "<|repo_name|>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""`tokenizer.ggml.<name>_token_id` whose tokens end a text too -> the tokens that are meant where the key is missing."""
READ = set(
    "model pre tokens scores token_type merges add_bos_token add_eos_token add_space_prefix bos_token_id eos_token_id "
    "unknown_token_id padding_token_id eot_token_id eom_token_id fim_pad_token_id fim_rep_token_id fim_sep_token_id".split()
)
HARMLESS = set(
    "add_sep_token seperator_token_id separator_token_id mask_token_id cls_token_id token_type_count fim_pre_token_id "
    "fim_suf_token_id fim_mid_token_id prefix_token_id suffix_token_id middle_token_id remove_extra_whitespaces "
    "precompiled_charsmap".split()
)
"""Keys after `tokenizer.ggml.` that a vocabulary of these two kinds has no use for."""
PREFIX = "tokenizer.ggml."


class Vocabulary:
    """The tokens of a header. Raises ModelError for a kind, a key or a way of splitting that is not known here, and
    for more tokens than the embedding has rows.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.kind = self._key("model")
        if self.kind not in (BYTE_LEVEL, SENTENCEPIECE):
            raise header.refusal(
                f"{PREFIX}model {self.kind!r} is not read, only {BYTE_LEVEL!r} and {SENTENCEPIECE!r}; name a folder in "
                "Hugging Face format instead"
            )
        for key in header.keys:
            if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in READ | HARMLESS:
                raise header.refusal(
                    f"the key {key} is not known here, so texts could come out as other tokens; name a folder in Hugging "
                    "Face format or a hub id instead"
                )
        self.tokens: list[str] = self._key("tokens") or []
        self.types: list[int] = self._key("token_type") or [1] * len(self.tokens)
        if len(set(self.tokens)) != len(self.tokens) or not self.tokens:
            raise header.refusal(f"{PREFIX}tokens names a token twice, or none; convert the model again")
        for name in ("token_type", "scores"):
            if len(self._key(name) or self.tokens) != len(self.tokens):
                raise header.refusal(
                    f"{PREFIX}{name} has {len(self._key(name))} entries for {len(self.tokens)} tokens; convert the model again"
                )
        if len(self.tokens) > header.rows:
            raise header.refusal(
                f"{PREFIX}tokens has {len(self.tokens)} tokens, token_embd.weight only {header.rows} rows; convert the "
                "model again"
            )
        self.pre = str(self._key("pre") or "default")
        self.splits = next((name for name, others in ALIASES.items() if self.pre in others.split()), self.pre)
        if self.kind == BYTE_LEVEL and self.splits not in SPLITS:
            raise header.refusal(
                f"{PREFIX}pre {self.pre!r} is not known here, so texts could be split wrongly; name a folder in Hugging "
                "Face format or a hub id instead"
            )

    def _key(self, name: str, default: Any = None) -> Any:
        return self.header.keys.get(PREFIX + name, default)

    def id_of(self, name: str) -> int | None:
        """The id of a special token (`bos`, `eos`, `unknown`, `padding`, …); None: there is none. Without a key it is
        what llama.cpp takes.
        """
        usual = {"bos": 1, "eos": 2, "unknown": 0} if self.kind == SENTENCEPIECE else {"bos": 11, "eos": 11}
        for token in (self._key(f"{name}_token_id"), usual.get(name)):
            if token is not None and 0 <= token < len(self.tokens):
                return int(token)
        return None

    def special_ids(self) -> dict[str, int | None]:
        """The ids that a config.json names. None: there is none, whatever transformers takes for the architecture."""
        ids = {"bos": self.id_of("bos"), "eos": self.id_of("eos"), "pad": self.id_of("padding")}
        return {f"{name}_token_id": token for name, token in ids.items()}

    def adds(self, name: str) -> bool:
        """Whether `bos` or `eos` is put around a text."""
        usual = name == "bos" and (self.kind == SENTENCEPIECE or self.pre in WHOLE_WORDS)
        return bool(self._key(f"add_{name}_token", usual)) and self.id_of(name) is not None

    def stop_ids(self) -> list[int]:
        """The ids at which llama.cpp ends a text: those that keys name, and those that texts of tokens tell."""
        ids = {token: index for index, token in enumerate(self.tokens)}
        ends = {ids[token] for token in ENDS & ids.keys()}
        for name, texts in ENDING_KEYS.items():
            # Without a key llama.cpp takes one of these, in no order: the first that is there is one of one in practice.
            named = next((ids[text] for text in texts if text in ids), None)
            token = self.id_of(name) if self._key(f"{name}_token_id") is not None or name == "eos" else named
            ends |= set() if token is None else {token}
        present = {self.tokens[index] for index in ends}
        if "<|end|>" in present and ({"<|return|>", "<|call|>"} <= present or {"<|calls|>", "<|flush|>"} <= present):
            ends.discard(ids["<|end|>"])  # it ends a part of an answer
        if {"<|tool_response>", "</s>"} <= present:
            ends.discard(ids["</s>"])
        return sorted(ends)

    def counting(self) -> Tokenizer:
        """The tokenizer as the library `tokenizers` has it, without transformers. Raises ModelError."""
        try:
            made = self._byte_level() if self.kind == BYTE_LEVEL else self._sentencepiece()
        except Exception as error:  # the library has no type of its own
            raise self.header.refusal(
                f"its vocabulary makes no tokenizer ({first_line(error)}); convert the model again"
            ) from error
        self._add_whole_tokens(made)
        self._put_around(made)
        return made

    def tokenizer(self) -> Any:
        """The tokenizer as transformers loads one. Raises ModelError."""
        from transformers import PreTrainedTokenizerFast

        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {ours: self.id_of(theirs) for ours, theirs in names.items()}
        special = {name: self.tokens[token] for name, token in ids.items() if token is not None}
        made = PreTrainedTokenizerFast(tokenizer_object=self.counting(), clean_up_tokenization_spaces=False, **special)
        made.chat_template = self.header.keys.get("tokenizer.chat_template")
        return made

    def _byte_level(self) -> Tokenizer:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        merges = [(merge[: (at := merge.index(" ", 1))], merge[at + 1 :]) for merge in self._key("merges") or []]
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=self.pre in WHOLE_WORDS))
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[self.splits]]
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        made.decoder = decoders.ByteLevel()
        return made

    def _sentencepiece(self) -> Tokenizer:
        """Pieces are merged in the order of their scores, the best first."""
        from tokenizers import Tokenizer, decoders, models, normalizers

        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        scores = self._key("scores") or [0.0] * len(self.tokens)
        merges = [
            (token[:cut], token[cut:])
            for _, token in sorted(zip(scores, self.tokens, strict=True), key=lambda pair: -pair[0])
            for cut in range(1, len(token))
            if token[:cut] in vocabulary and token[cut:] in vocabulary
        ]
        unknown = self.id_of("unknown")
        named = {} if unknown is None else {"unk_token": self.tokens[unknown]}
        made = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=True, byte_fallback=True, **named))
        prefixed = bool(self._key("add_space_prefix", True))
        front = [normalizers.Prepend("▁")] if prefixed else []
        made.normalizer = normalizers.Sequence([*front, normalizers.Replace(" ", "▁")])
        strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
        return made

    def _add_whole_tokens(self, made: Tokenizer) -> None:
        """Tokens that are found whole in a text. Of Phi-3's some take the spaces behind them along."""
        from tokenizers import AddedToken

        name = str(self.header.keys.get("general.name", "")).lower()
        strips = "phi-3" in name or "phi3" in name
        ends, text, special = set(self.stop_ids()), [], []
        for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind in (UNKNOWN, CONTROL) or index in ends:
                stripped = strips and token not in ("<unk>", "<s>", "<|endoftext|>")
                special.append(AddedToken(token, normalized=False, special=True, rstrip=stripped))
            elif kind == USER_DEFINED:
                text.append(AddedToken(token, normalized=False, special=False, rstrip=strips))
        made.add_special_tokens(special)
        made.add_tokens(text)

    def _put_around(self, made: Tokenizer) -> None:
        """BOS in front and EOS behind, as the header says."""
        from tokenizers import processors

        bos, eos = (self.tokens[self.id_of(name) or 0] if self.adds(name) else None for name in ("bos", "eos"))
        single = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
        special = [(token, self.tokens.index(token)) for token in {bos, eos} if token is not None]
        made.post_processor = processors.TemplateProcessing(
            single=single, pair=[*single, *(part.replace("$A", "$B") + ":1" for part in single)], special_tokens=special
        )
