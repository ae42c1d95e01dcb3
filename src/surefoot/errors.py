"""Errors that say what was wrong, where, and what to do. The command line prints them without a traceback."""

from __future__ import annotations


class SurefootError(Exception):
    """Anything surefoot refuses or cannot do.

    Parameters
    ----------
    message : str
        What was wrong, and where.
    hint : str, optional
        What to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class ProfileError(SurefootError):
    """A profile that is unknown, malformed, or does not fit the model."""

    exit_code = 3


class ModelError(SurefootError):
    """A model that is unknown, damaged, or of a kind that cannot be observed."""

    exit_code = 4


class InputError(SurefootError):
    """A prompt, file or setting that cannot be used."""

    exit_code = 5


class NonFiniteLogitsError(SurefootError):
    """The model returned NaN or infinite logits, so no token can be drawn.

    Parameters
    ----------
    token : int
        Which token of the answer, counted from 1.
    """

    exit_code = 6

    def __init__(self, token: int) -> None:
        super().__init__(
            f"the model's logits at answer token {token} are not finite (NaN or infinite).",
            "Check the weights and the dtype: float16 overflows in many models; try bfloat16 or float32.",
        )


class ProfileWarning(UserWarning):
    """A profile is used with a model or setting it was not calibrated for."""
