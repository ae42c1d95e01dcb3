"""From tokens to text that can be shown."""

from __future__ import annotations

from typing import Any

from tokenizers.decoders import DecodeStream


class TextStream:
    """Decodes token by token, and ends at a stop string.

    Parameters
    ----------
    tokenizer
        A Transformers tokenizer with a fast backend.
    stop : tuple of str
        Strings that end the text.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = ()) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._decode = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """The text that ``token`` lets out: none while a character is incomplete or a stop string may have begun."""
        self._held += self._decode.step(self._backend, token) or ""
        ends = [(at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        if ends:
            at, self.stopped_by = min(ends)
            shown, self._held = self._held[:at], ""
            return shown
        keep = max((_overlap(self._held, s) for s in self._stop), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What was held back, once no more tokens come."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
