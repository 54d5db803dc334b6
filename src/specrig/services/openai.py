"""Requests and responses of OpenAI's completions and chat API, as the coordinator serves it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specrig.decoding.types import Temperature
from specrig.services.protocol import MAX_DRAFT_TOKENS


class StreamOptions(BaseModel):
    """include_usage: the stream's last event holds the numbers of tokens."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class GenerationRequest(BaseModel):
    """The fields of both requests. Fields that would change the output and are not served are refused, not ignored."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    temperature: Temperature = 1.0
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    draft_tokens: int | None = Field(None, ge=0, le=MAX_DRAFT_TOKENS)
    """How many tokens to draft a round, instead of the coordinator's --k; 0: plain decoding."""
    n: Literal[1] = 1
    top_p: float = Field(1, ge=1, le=1)
    top_k: Literal[-1, 0] = -1
    presence_penalty: float = Field(0, ge=0, le=0)
    frequency_penalty: float = Field(0, ge=0, le=0)
    logprobs: Literal[False] | None = None
    stop: None = None
    user: str | None = None


class CompletionRequest(GenerationRequest):
    """A request to `/v1/completions`. prompt: a text, or its token ids."""

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    max_tokens: int = Field(16, ge=1)


class ChatMessage(BaseModel):
    """A turn of a chat."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant", "developer"]
    content: str
    name: str | None = None


class ChatCompletionRequest(GenerationRequest):
    """A request to `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int = Field(256, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)


class Detokenizer:
    """Token ids to text, piece by piece: a piece ends where no character is half done."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._before = self._read = 0

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that these tokens add; what is held back comes with later ones, at the latest with the `last`."""
        self._tokens += tokens
        known = self._text(self._tokens[self._before : self._read])
        text = self._text(self._tokens[self._before :])
        if text.endswith("\ufffd") and not last:
            return ""
        # Decoding goes on from the last piece that was text, not from the beginning: what stands before decides about
        # spaces.
        if len(text) > len(known):
            self._before, self._read = self._read, len(self._tokens)
        return text[len(known) :]

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class ResponseBuilder:
    """Builds the response to one request, as one object or as events."""

    def __init__(self, request: GenerationRequest, model: str, prompt_tokens: int) -> None:
        self.request, self.model, self.prompt_tokens = request, model, prompt_tokens
        self.chat = isinstance(request, ChatCompletionRequest)
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + secrets.token_hex(12)
        self.created = int(time.time())

    def event(self, text: str, tokens: Sequence[int], finish: str | None, *, first: bool) -> dict[str, Any]:
        """One event of the stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": text} if first else {"content": text}
        else:
            choice["text"] = text
        return self._about(".chunk" if self.chat else "") | {"choices": [self._with_ids(choice, tokens)]}

    def whole(self, text: str, tokens: Sequence[int], finish: str) -> dict[str, Any]:
        """The whole answer."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return self._about("") | {"choices": [self._with_ids(choice, tokens)], "usage": self.usage(len(tokens))}

    def usage_event(self, tokens: int) -> dict[str, Any]:
        """The event with the numbers of tokens."""
        return self._about(".chunk" if self.chat else "") | {"choices": [], "usage": self.usage(tokens)}

    def usage(self, tokens: int) -> dict[str, int]:
        """Numbers of tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
        }

    def _with_ids(self, choice: dict[str, Any], tokens: Sequence[int]) -> dict[str, Any]:
        return choice | ({"token_ids": list(tokens)} if self.request.return_token_ids else {})

    def _about(self, ending: str) -> dict[str, Any]:
        kind = ("chat.completion" if self.chat else "text_completion") + ending
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
