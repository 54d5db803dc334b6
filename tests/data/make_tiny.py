"""Makes the pair in tests/data/tiny: `python tests/data/make_tiny.py`, some minutes on one core.

A byte-level BPE of 1,024 tokens with a chat template, a target of 4 layers, 64 wide, and a draft of 1 layer, 32 wide, as
transformers writes them, in float16. They learn the repository's documentation and its requests with their references:
enough to repeat themselves and to agree with each other about half of the time, which is what tests need.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "tiny"
END, ROLES = "<|endoftext|>", ("<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SEQUENCE, BATCH, STEPS = 256, 8, 1200
CONTEXT = 1024


def texts() -> list[str]:
    """Documentation, and requests with answers in the chat template."""
    prose = [file.read_text(encoding="utf-8") for file in sorted((REPOSITORY / "docs").rglob("*.md"))]
    asked = []
    for file in sorted((REPOSITORY / "configs/prompts").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            answer = row.get("reference") or f"Here is {row['prompt'][0].lower()}{row['prompt'][1:]}"
            asked.append(f"<|user|>{row['prompt']}{END}<|assistant|>{answer}")
    return prose + asked * 3


def trained_tokenizer(corpus: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        extra_special_tokens=list(ROLES),
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def untrained(layers: int, hidden: int, heads: int, intermediate: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1024,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def train(model: LlamaForCausalLM, stream: torch.Tensor, teacher: LlamaForCausalLM | None = None) -> None:
    """Next tokens of the stream, or the teacher's distribution over them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS, pct_start=0.05)
    chance = random.Random(0)
    for step in range(STEPS):
        starts = [chance.randrange(len(stream) - SEQUENCE - 1) for _ in range(BATCH)]
        batch = torch.stack([stream[start : start + SEQUENCE + 1] for start in starts])
        logits = model(batch[:, :-1]).logits.flatten(0, 1)
        if teacher is None:
            loss = F.cross_entropy(logits, batch[:, 1:].flatten())
        else:
            with torch.no_grad():
                goal = teacher(batch[:, :-1]).logits.flatten(0, 1).log_softmax(-1)
            loss = F.kl_div(logits.log_softmax(-1), goal, log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    torch.manual_seed(0)
    corpus = texts()
    tokenizer = trained_tokenizer(corpus)
    stream = torch.tensor([token for text in corpus for token in (*tokenizer(text).input_ids, 0)])
    print(f"{len(stream):,} tokens", flush=True)
    target = untrained(layers=4, hidden=64, heads=2, intermediate=192)
    train(target, stream)
    draft = untrained(layers=1, hidden=32, heads=1, intermediate=96)
    train(draft, stream, target.eval())
    for name, model in (("target", target), ("draft", draft)):
        model.generation_config.bos_token_id = None
        model.half().save_pretrained(HERE / name)
        tokenizer.save_pretrained(HERE / name)
        file = HERE / name / "tokenizer.json"  # on one line
        file.write_text(json.dumps(json.loads(file.read_text()), ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
