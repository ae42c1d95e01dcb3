"""What a model's tokenizer and configuration say about conversations."""

from __future__ import annotations

from typing import Any

from surefoot.errors import InputError

Message = dict[str, str]


def check_prompt(prompt: str | list[Message]) -> None:
    """Raise `InputError` for a prompt that is empty, or no text."""
    texts: list[Any] = [prompt] if isinstance(prompt, str) else [m.get("content") for m in prompt]
    if not all(isinstance(text, str) for text in texts):
        raise InputError("the content of every message must be text.")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise InputError("the prompt is not valid Unicode.", "Is it really UTF-8?") from error
    if not any(text.strip() for text in texts):
        raise InputError("the prompt is empty.")


def chat_text(tokenizer: Any, prompt: str | list[Message]) -> str:
    """A prompt in the model's chat format, ready to be tokenized without further special tokens.

    Parameters
    ----------
    tokenizer
        A Transformers tokenizer.
    prompt : str or list of dict
        Text for one user turn, or messages. A model without a chat format gets their contents as plain text.

    Raises
    ------
    InputError
        The model's chat template refuses the messages.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not tokenizer.chat_template:
        return (tokenizer.bos_token or "") + "\n\n".join(m["content"] for m in messages)
    try:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except Exception as error:  # templates are programs, and refuse in their own words
        raise InputError(f"the model's chat template refuses these messages: {error}") from error


def end_ids(model: Any, tokenizer: Any) -> set[int]:
    """All token ids that end an answer."""
    ids = model.generation_config.eos_token_id
    ends = set(ids) if isinstance(ids, (list, tuple)) else {ids}
    return {int(i) for i in (*ends, tokenizer.eos_token_id) if i is not None}


def context_length(model: Any) -> int | None:
    """How many tokens the model can attend to; None when its configuration does not say."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) else None
