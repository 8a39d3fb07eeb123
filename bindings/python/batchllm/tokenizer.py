"""The tokenizer by itself: columns of text to columns of token ids, and back."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence, Union

from . import native
from .columns import Rows, Texts, Tokens, text_column, token_column
from .errors import ClosedError
from .results import refuse_pickle


class Encoded(Tokens):
    """Token columns that the library made, with a status a row (0, or a ROW error number; such a row is empty)."""

    statuses: memoryview[int]

    def to_pylist(self) -> list[list[int]]:
        """A list of lists."""
        return [self.tokens[start:end].tolist() for start, end in zip(self.offsets, self.offsets[1:])]


class Decoded(Texts):
    """Text columns that the library made, with a status a row."""

    statuses: memoryview[int]

    def to_pylist(self) -> list[str]:
        """A list of str; what is not UTF-8 is U+FFFD."""
        return [str(self.data[start:end], "utf-8", "replace") for start, end in zip(self.offsets, self.offsets[1:])]


class Tokenizer:
    """A tokenizer.json, or that of a model directory. Immutable: any number of threads may use it."""

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        self._native: Optional[native.batchllm_tokenizer] = native.batchllm_tokenizer_create_from(os.fspath(path))

    @property
    def fingerprint(self) -> int:
        """A hash of everything that changes how text becomes tokens."""
        return native.batchllm_tokenizer_fingerprint(self._handle())

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return native.batchllm_tokenizer_vocabulary(self._handle())

    def encode(self, rows: Rows, *, add_special: bool = True, parse_special: bool = True, threads: int = 0) -> Encoded:
        """Texts -> token columns. threads 0: every core."""
        texts = text_column(rows)
        flags = add_special * native.BATCHLLM_ENCODE_ADD_SPECIAL + parse_special * native.BATCHLLM_ENCODE_PARSE_SPECIAL
        return _encoded(
            native.batchllm_encode_column(self._handle(), texts.data, texts.offsets, flags, threads)
        )

    def encode_one(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """One text -> its token ids."""
        encoded = self.encode([text], add_special=add_special, parse_special=parse_special)
        if encoded.statuses[0]:
            raise ValueError(native.batchllm_status_name(encoded.statuses[0]))
        return encoded.to_pylist()[0]

    def decode(self, rows: Rows, *, skip_special: bool = True, threads: int = 0) -> Decoded:
        """Token columns -> texts."""
        tokens = token_column(rows)
        flags = skip_special * native.BATCHLLM_DECODE_SKIP_SPECIAL
        column = native.batchllm_decode_column(self._handle(), tokens.tokens, tokens.offsets, flags, threads)
        decoded = Decoded(
            native.batchllm_column_column_text(column), native.batchllm_column_column_offsets(column)
        )
        object.__setattr__(decoded, "statuses", native.batchllm_column_column_statuses(column))
        return decoded

    def decode_one(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Token ids -> their text."""
        return self.decode([tokens], skip_special=skip_special).to_pylist()[0]

    def close(self) -> None:
        """Frees the tokenizer now rather than when it is forgotten. Threads inside it end first."""
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


def _encoded(column: Any) -> Encoded:
    encoded = Encoded(native.batchllm_column_column_tokens(column), native.batchllm_column_column_offsets(column))
    object.__setattr__(encoded, "statuses", native.batchllm_column_column_statuses(column))
    return encoded
