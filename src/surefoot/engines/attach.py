"""`attach`: steady a Transformers model inside its own ``generate``."""

from __future__ import annotations

import inspect
import threading
import warnings
from pathlib import Path
from typing import Any

from transformers import LogitsProcessorList, PreTrainedModel

from surefoot.control import Ledger, Profile, Trace, load_profile
from surefoot.engines.identity import check_profile
from surefoot.engines.probe import Probe
from surefoot.engines.run import Criteria, Fuse, Run
from surefoot.errors import InputError, ModelError, ProfileError


class Footing:
    """What `attach` returns: the traces of the last ``generate``, and the way to detach.

    Attributes
    ----------
    profile : Profile
        What decides.
    traces : list of Trace
        One a row of the last ``generate`` call, in the order of its output.
    ledger : Ledger or None
        Overrides decided and applied in that call.
    """

    def __init__(self, model: Any, profile: Profile, *, acting: bool = True, tokenizer: Any = None) -> None:
        self.profile = profile
        self.traces: list[Trace] = []
        self.ledger: Ledger | None = None
        self._acting = acting
        self._tokenizer = tokenizer
        self._model = model
        self._probe = Probe(model, profile)
        self._run: Run | None = None
        self._steadying = False
        self._turn = threading.RLock()
        for name in ("generate", "_get_logits_processor", "_get_stopping_criteria"):
            # Instance attributes hide the class's methods; deleting them detaches.
            setattr(model, name, getattr(self, "_" + name.lstrip("_")))

    def __enter__(self) -> Footing:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Give the model back as it was. Doing it twice is no error."""
        if self._model.__dict__.get("generate") == self._generate:
            for name in ("generate", "_get_logits_processor", "_get_stopping_criteria"):
                self._model.__dict__.pop(name, None)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(type(self._model).generate).bind_partial(self._model, *args, **kwargs).arguments
        configs = (given.get("generation_config"), self._model.generation_config)
        given = {**given, **given.get("kwargs", {})}
        for name in ("assistant_model", "custom_generate", "assistant_early_exit"):
            if any(x is not None for x in (given.get(name), *(getattr(c, name, None) for c in configs))):
                raise InputError(f"generate({name}=...) cannot be steadied.", "Call footing.detach() first.")
        # Threads that share the model take turns; the probe watches one call at a time.
        with self._turn:
            return self._steadied(*args, **kwargs)

    def _steadied(self, *args: Any, **kwargs: Any) -> Any:
        self._run, self.traces, self.ledger = None, [], None
        self._steadying = True
        try:
            with self._probe.watching():
                result = type(self._model).generate(self._model, *args, **kwargs)
            if self._run is not None:
                self.traces = self._run.finish(result, self._tokenizer)
                self.ledger = self._run.ledger()
            return result
        finally:
            self._run, self._steadying = None, False

    def _get_logits_processor(self, generation_config: Any, *args: Any, **kwargs: Any) -> LogitsProcessorList:
        if not self._steadying:  # another way to generate, which goes its own way
            untouched: LogitsProcessorList = type(self._model)._get_logits_processor(
                self._model, generation_config, *args, **kwargs
            )
            return untouched
        for name, steadied in (("num_beams", 1), ("prompt_lookup_num_tokens", None), ("guidance_scale", 1)):
            value = getattr(generation_config, name, None)
            if value not in (None, steadied):
                raise InputError(
                    f"generate({name}={value}) cannot be steadied: a row of the batch is then not one answer.",
                    f"Leave {name} out, or call footing.detach() first.",
                )
        original = type(self._model)._get_logits_processor(self._model, generation_config, *args, **kwargs)
        generation_config.disable_compile = True  # a compiled forward would not come by the probe
        self._run = Run(self._probe, generation_config, self._acting)
        return self._run.place(original)

    def _get_stopping_criteria(self, *args: Any, **kwargs: Any) -> Any:
        criteria = type(self._model)._get_stopping_criteria(self._model, *args, **kwargs)
        if self._run is None:
            return criteria
        fuse = [Fuse(self._run)] if self.profile.fuse is not None else []
        return Criteria([*criteria, *fuse], self._run)


def attach(
    model: PreTrainedModel, profile: str | Profile = "careful", *, acting: bool = True, tokenizer: Any = None
) -> Footing:
    """Steady every following ``model.generate(...)`` by ``profile``.

    Parameters
    ----------
    model : PreTrainedModel
        A decoder-only Transformers model on the library's attention interface.
    profile : str or Profile
        A built-in name, the path of a profile's JSON file, or a profile.
    acting : bool
        False only measures: traces are made, nothing is overridden.
    tokenizer : PreTrainedTokenizer, optional
        Fills in the texts of the traces.

    Returns
    -------
    Footing
        Also a context manager that detaches at its end.

    Raises
    ------
    ModelError
        The model cannot be observed.
    ProfileError
        The profile is unusable, or asks for layers the model does not have.
    InputError
        The model is attached already; later, ``generate`` with beams, an assistant model or guidance.

    Warns
    -----
    ProfileWarning
        The profile was calibrated on another model.

    Examples
    --------
    >>> with surefoot.attach(model, "careful") as footing:  # doctest: +SKIP
    ...     output = model.generate(**inputs, do_sample=True, temperature=0.8)
    >>> footing.traces[0].summary()  # doctest: +SKIP
    """
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        raise ModelError(
            f"{type(model).__name__} is not a Transformers model that generates.",
            "Load one with AutoModelForCausalLM.from_pretrained; attach before torch.compile, not after.",
        )
    if "generate" in model.__dict__:
        raise InputError(
            f"this {type(model).__name__} is attached already, or has a generate of its own.",
            "Call detach() on its footing first.",
        )
    if not isinstance(profile, (str, Path, Profile)):
        raise ProfileError(f"a profile is a name, a path or a Profile, not {type(profile).__name__}.")
    profile = profile if isinstance(profile, Profile) else load_profile(profile)
    for problem in check_profile(profile, model):
        warnings.warn(problem, stacklevel=2)
    return Footing(model, profile, acting=acting, tokenizer=tokenizer)
