"""`attach`: what it refuses, and that it gives the model back."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, LogitsProcessor, LogitsProcessorList
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import surefoot
from surefoot.control import (
    Probe,
    Profile,
    Provenance,
    Recipe,
)
from surefoot.errors import InputError, ModelError, NonFiniteLogitsError, ProfileError, ProfileWarning

PROMPT = torch.arange(3, 15).unsqueeze(0)
ALWAYS = -1e9


def mappings() -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(ALL_ATTENTION_FUNCTIONS._local_mapping), dict(ALL_ATTENTION_FUNCTIONS._global_mapping)


def hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# ── giving the model back ──


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_detach_leaves_no_trace(make_model: Any, implementation: str) -> None:
    model = make_model("llama", implementation)
    attributes, functions, hooked = set(model.__dict__), mappings(), hooks(model)
    before = model.generate(PROMPT, max_new_tokens=5, do_sample=False)
    footing = surefoot.attach(model, "article")
    model.generate(PROMPT, max_new_tokens=5, do_sample=False)
    footing.detach()
    assert set(model.__dict__) == attributes
    assert mappings() == functions
    assert hooks(model) == hooked
    assert all("_surefoot_observer" not in m.__dict__ for m in model.modules())
    assert torch.equal(model.generate(PROMPT, max_new_tokens=5, do_sample=False), before)


def test_detaching_twice_is_no_error(make_model: Any) -> None:
    footing = surefoot.attach(make_model(), "observe")
    footing.detach()
    footing.detach()
    assert "generate" not in footing._model.__dict__


def test_an_old_footing_does_not_detach_a_new_one(make_model: Any) -> None:
    model = make_model()
    old = surefoot.attach(model, "observe")
    old.detach()
    new = surefoot.attach(model, "observe")
    old.detach()
    model.generate(PROMPT, max_new_tokens=2)
    assert len(new.traces) == 1


def test_an_exception_inside_generate_restores_everything(make_model: Any) -> None:
    model = make_model()
    functions, hooked = mappings(), hooks(model)

    class Fails(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("stumbled")

    with surefoot.attach(model, "article") as footing:
        with pytest.raises(RuntimeError, match="stumbled"):
            model.generate(PROMPT, max_new_tokens=2, logits_processor=LogitsProcessorList([Fails()]))
        assert mappings() == functions
        assert hooks(model) == hooked
        model.generate(PROMPT, max_new_tokens=2, do_sample=False)
        assert len(footing.traces[0].tokens) == 2


def test_the_context_manager_detaches_after_an_exception(make_model: Any) -> None:
    model = make_model()
    with pytest.raises(KeyError), surefoot.attach(model, "observe"):
        raise KeyError
    assert "generate" not in model.__dict__


def test_two_attached_models_do_not_disturb_each_other(make_model: Any) -> None:
    one, two = make_model("llama"), make_model("qwen3")
    with surefoot.attach(one, "observe") as a:
        one.generate(PROMPT, max_new_tokens=4, do_sample=False)
        alone = a.traces[0].rows()
        with surefoot.attach(two, "observe") as b:
            two.generate(PROMPT, max_new_tokens=4, do_sample=False)
            one.generate(PROMPT, max_new_tokens=4, do_sample=False)
            other = b.traces[0].rows()
        one.generate(PROMPT, max_new_tokens=4, do_sample=False)
        assert a.traces[0].rows() == alone
        assert other != alone


def test_two_attached_models_can_generate_at_the_same_time(make_model: Any) -> None:
    models = [make_model("llama"), make_model("qwen3")]
    footings = [surefoot.attach(m, "observe") for m in models]
    alone = []
    for model, footing in zip(models, footings, strict=True):
        model.generate(PROMPT, max_new_tokens=20, do_sample=False, eos_token_id=None)
        alone.append(footing.traces[0].rows())
    threads = [
        threading.Thread(target=lambda m=m: m.generate(PROMPT, max_new_tokens=20, do_sample=False, eos_token_id=None))
        for m in models
    ]
    functions = mappings()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [f.traces[0].rows() for f in footings] == alone
    assert mappings() == functions


def test_a_model_that_is_not_attached_is_not_observed_while_another_is(make_model: Any) -> None:
    attached, other = make_model("llama"), make_model("llama")
    seen: list[bool] = []

    class Nested(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            other(input_ids=torch.arange(3, 40).unsqueeze(0))
            seen.append(True)
            return scores

    with surefoot.attach(attached, "observe") as footing:
        attached.generate(PROMPT, max_new_tokens=3, do_sample=False)
        alone = footing.traces[0].rows()
        attached.generate(PROMPT, max_new_tokens=3, do_sample=False, logits_processor=LogitsProcessorList([Nested()]))
        assert footing.traces[0].rows() == alone
    assert len(seen) == 3


# ── what is refused ──


def test_attaching_twice_is_refused(make_model: Any) -> None:
    model = make_model()
    with surefoot.attach(model, "observe"), pytest.raises(InputError, match="attached already"):
        surefoot.attach(model, "observe")


@pytest.mark.parametrize(
    "settings",
    [{"num_beams": 2}, {"prompt_lookup_num_tokens": 2}, {"guidance_scale": 1.5}],
    ids=lambda settings: next(iter(settings)),
)
def test_modes_in_which_a_row_is_not_one_answer_are_refused(tiny: Any, settings: dict[str, Any]) -> None:
    model = tiny()
    with surefoot.attach(model, "observe"), pytest.raises(InputError, match=next(iter(settings))):
        model.generate(PROMPT, max_new_tokens=3, **settings)


def test_an_assistant_model_is_refused(make_model: Any) -> None:
    model = make_model()
    with surefoot.attach(model, "observe"), pytest.raises(InputError, match="assistant_model"):
        model.generate(PROMPT, max_new_tokens=3, assistant_model=make_model())


def test_an_encoder_decoder_model_is_refused() -> None:
    config = AutoConfig.for_model(
        "t5", vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with pytest.raises(ModelError, match="encoder-decoder"):
        surefoot.attach(AutoModelForSeq2SeqLM.from_config(config), "observe")


def test_a_profile_of_layers_the_model_lacks_is_refused(tiny: Any) -> None:
    with pytest.raises(ProfileError, match="layer 99"):
        surefoot.attach(tiny(), Profile(name="deep", probe=Probe(layers=(99,))))


def test_a_refused_profile_leaves_the_model_unattached(make_model: Any) -> None:
    model = make_model()
    with pytest.raises(ProfileError):
        surefoot.attach(model, Profile(name="deep", probe=Probe(layers=(99,))))
    assert "generate" not in model.__dict__


def test_a_linear_recipe_of_another_shape_is_a_profile_error(make_model: Any) -> None:
    recipe = Recipe(kind="linear", weights=(1.0,) * 3, center=(0.0,) * 3, scale=(1.0,) * 3)
    model = make_model()
    with pytest.raises(ProfileError), surefoot.attach(model, Profile(name="odd", recipe=recipe)):
        model.generate(PROMPT, max_new_tokens=2)


def test_a_profile_of_another_model_warns_and_names_calibrate(make_model: Any) -> None:
    profile = Profile(name="foreign", model="another (llama 1x1x1)")
    with pytest.warns(ProfileWarning, match="surefoot calibrate"):
        surefoot.attach(make_model(), profile)


def test_a_profile_calibrated_in_another_dtype_warns(make_model: Any) -> None:
    provenance = Provenance(
        data="d", data_sha256="0", prompts=1, tokens=1, dtype="bfloat16", correlation=0.5, correlation_all_layers=0.5,
        score_std=1.0, score_quantiles={}, kurtosis_quantiles={}, surefoot="0",
    )  # fmt: skip
    with pytest.warns(ProfileWarning, match="bfloat16"):
        surefoot.attach(make_model(), Profile(name="half", provenance=provenance))


def test_the_default_profile_fits_the_default_model(smollm: Any, recwarn: pytest.WarningsRecorder) -> None:
    with surefoot.attach(smollm[0]):
        pass
    assert not [w for w in recwarn if issubclass(w.category, ProfileWarning)]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error(make_model: Any, poison: float) -> None:
    model = make_model()
    model.lm_head.weight.data[5] = poison
    with surefoot.attach(model, "observe"), pytest.raises(NonFiniteLogitsError, match="answer token 1"):
        model.generate(PROMPT, max_new_tokens=3)
