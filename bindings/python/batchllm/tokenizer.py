"""The tokenizer alone: columns of text to columns of token ids, and back."""

from __future__ import annotations

import os
from typing import Iterator, Optional, Sequence, TypeVar, Union

from . import native
from .columns import Rows, Texts, Tokens, chat_column, text_column, token_column
from .errors import ClosedError, need_directory, refuse_pickle, status_name


class Encoded(Tokens):
    """Columns of token ids from the library; iteration gives lists. A row that failed is empty; `statuses` has its ROW error number."""

    statuses: memoryview[int]
    errors: list[Optional[str]]

    def __iter__(self) -> Iterator[list[int]]:
        return (self.tokens[start:end].tolist() for start, end in zip(self.offsets, self.offsets[1:]))

    def to_pylist(self) -> list[list[int]]:
        """A list of lists."""
        return list(self)


class Decoded(Texts):
    """Columns of texts from the library; iteration gives str. A row that failed is empty; `statuses` has its ROW error number."""

    statuses: memoryview[int]
    errors: list[Optional[str]]

    def __iter__(self) -> Iterator[str]:
        return (str(self.data[start:end], "utf-8", "replace") for start, end in zip(self.offsets, self.offsets[1:]))

    def to_pylist(self) -> list[str]:
        """A list of str; invalid UTF-8 becomes U+FFFD."""
        return list(self)


class Tokenizer:
    """The tokenizer of a tokenizer.json or of a model directory. Immutable: any number of threads may use it."""

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        need_directory(path)
        self._native: Optional[native.batchllm_tokenizer] = native.batchllm_tokenizer_create_from(os.fspath(path))

    @property
    def fingerprint(self) -> int:
        """A hash of everything that affects how text becomes tokens."""
        return native.batchllm_tokenizer_fingerprint(self._handle())

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return native.batchllm_tokenizer_vocabulary(self._handle())

    def encode(self, rows: Rows, *, add_special: bool = True, parse_special: bool = True, threads: int = 0) -> Encoded:
        """Texts -> token columns. threads 0: every core."""
        texts = text_column(rows)
        flags = add_special * native.BATCHLLM_ENCODE_ADD_SPECIAL + parse_special * native.BATCHLLM_ENCODE_PARSE_SPECIAL
        column = native.batchllm_encode_column(self._handle(), texts.data, texts.offsets, flags, threads)
        encoded = Encoded(native.batchllm_column_column_tokens(column), native.batchllm_column_column_offsets(column))
        return _with_errors(encoded, column)

    def encode_one(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """One text -> its token ids."""
        encoded = self.encode([text], add_special=add_special, parse_special=parse_special)
        if encoded.statuses[0]:
            raise ValueError(encoded.errors[0])
        return encoded.to_pylist()[0]

    def decode(self, rows: Rows, *, skip_special: bool = True, threads: int = 0) -> Decoded:
        """Token columns -> texts."""
        tokens = token_column(rows)
        flags = skip_special * native.BATCHLLM_DECODE_SKIP_SPECIAL
        column = native.batchllm_decode_column(self._handle(), tokens.tokens, tokens.offsets, flags, threads)
        return _decoded(column)

    def apply_chat_template(
        self, conversations: Rows, *, add_generation_prompt: bool = True, threads: int = 0
    ) -> Decoded:
        """Conversations -> the texts that the model sees, rendered with its chat template.

        Encode them with add_special=False: the template has already added what is needed.
        """
        chats = chat_column(conversations)
        flags = (not add_generation_prompt) * native.BATCHLLM_CHAT_NO_GENERATION_PROMPT
        return _decoded(native.batchllm_chat_column(self._handle(), chats.data, chats.offsets, flags, threads))

    def decode_one(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Token ids -> their text."""
        decoded = self.decode([tokens], skip_special=skip_special)
        if decoded.statuses[0]:
            raise ValueError(decoded.errors[0])
        return decoded.to_pylist()[0]

    def close(self) -> None:
        """Frees the tokenizer now instead of on garbage collection. Calls in other threads end first."""
        self._native = None

    def _handle(self) -> native.batchllm_tokenizer:
        handle = self._native
        if handle is None:
            raise ClosedError("the tokenizer was closed")
        return handle

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    __reduce_ex__ = refuse_pickle


def _decoded(column: native.batchllm_column) -> Decoded:
    decoded = Decoded(native.batchllm_column_column_text(column), native.batchllm_column_column_offsets(column))
    return _with_errors(decoded, column)


_Made = TypeVar("_Made", Encoded, Decoded)


def _with_errors(made: _Made, column: native.batchllm_column) -> _Made:
    statuses = native.batchllm_column_column_statuses(column)
    offsets = native.batchllm_column_column_error_offsets(column)
    texts = native.batchllm_column_column_errors(column)
    errors = [
        f"{status_name(status)}: {str(texts[start:end], 'utf-8', 'replace')}" if status else None
        for status, start, end in zip(statuses, offsets, offsets[1:])
    ]
    object.__setattr__(made, "statuses", statuses)
    object.__setattr__(made, "errors", errors)
    return made
