"""What `attach` refuses, leaves alone, and survives."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, LogitsProcessorList, StoppingCriteriaList

import surefoot
from surefoot.control import Action, HighRule, Profile
from surefoot.errors import InputError, ModelError, ProfileError

IDS = torch.arange(5, 25).view(2, 10)
COOL = Profile(name="cool", high=HighRule(threshold=-1e9, action=Action(temperature=0.2, hold=1)))


@pytest.fixture
def model(make_model: Any) -> Any:
    return make_model("llama")


def test_early_exit_is_refused_before_it_can_do_harm(model: Any) -> None:
    before = model.generate(IDS, max_new_tokens=5, do_sample=False)
    layers = model.config.num_hidden_layers
    with surefoot.attach(model, "observe"):
        for call in ({"assistant_early_exit": 2}, {"generation_config": GenerationConfig(assistant_early_exit=2)}):
            with pytest.raises(InputError, match="assistant_early_exit"):
                model.generate(IDS, max_new_tokens=5, **call)
    assert model.config.num_hidden_layers == layers
    assert torch.equal(model.generate(IDS, max_new_tokens=5, do_sample=False), before)


def test_an_assistant_by_position_is_refused_too(model: Any) -> None:
    with surefoot.attach(model, "observe"), pytest.raises(InputError, match="assistant_model"):
        model.generate(IDS, None, None, None, None, False, model, max_new_tokens=5)


def test_another_way_to_generate_goes_its_own_way(model: Any) -> None:
    processors = model._get_logits_processor
    with surefoot.attach(model, "observe"):
        config = GenerationConfig(do_sample=True, temperature=0.5)
        made = model._get_logits_processor(config, input_ids_seq_length=4, logits_processor=LogitsProcessorList())
        assert [type(p).__name__ for p in made] == [
            type(p).__name__ for p in processors(config, input_ids_seq_length=4, logits_processor=LogitsProcessorList())
        ]


def test_a_failed_call_leaves_no_traces_of_the_one_before(model: Any) -> None:
    def failing(ids: Any, scores: Any) -> Any:
        raise RuntimeError("no")

    with surefoot.attach(model, "observe") as footing:
        model.generate(IDS, max_new_tokens=3)
        assert len(footing.traces) == 2
        with pytest.raises(RuntimeError, match="no"):
            model.generate(IDS, max_new_tokens=3, logits_processor=[failing])
        assert footing.traces == [] and footing.ledger is None


def test_rows_that_have_ended_count_for_nothing(model: Any) -> None:
    def first_row_ends(ids: Any, scores: Any, **more: Any) -> Any:
        return torch.tensor([ids.shape[1] >= 13, False])

    with surefoot.attach(model, COOL) as footing:
        model.generate(
            IDS, max_new_tokens=8, do_sample=True, eos_token_id=None, pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([first_row_ends]),
        )  # fmt: skip
    overrides = [trace.summary()["overrides"] for trace in footing.traces]
    assert overrides == [3, 8]
    assert footing.ledger is not None and footing.ledger.decided == footing.ledger.applied == sum(overrides)


def test_another_thread_s_use_of_the_model_is_not_observed(model: Any) -> None:
    with surefoot.attach(model, "observe") as footing:
        model.generate(IDS, max_new_tokens=12, do_sample=False)
        alone = [t.kurtosis for t in footing.traces[0].tokens]
        stop = threading.Event()

        def busy() -> None:
            with torch.no_grad():
                while not stop.is_set():
                    model(IDS[:1, :7])

        thread = threading.Thread(target=busy)
        thread.start()
        try:
            for _ in range(5):
                model.generate(IDS, max_new_tokens=12, do_sample=False)
                assert [t.kurtosis for t in footing.traces[0].tokens] == alone
        finally:
            stop.set()
            thread.join()


def test_a_pass_inside_generate_is_named(model: Any) -> None:
    def inner(ids: Any, scores: Any) -> Any:
        model(IDS[:1])
        return scores

    with surefoot.attach(model, "observe"), pytest.raises(ModelError, match="Something else runs the model"):
        model.generate(IDS, max_new_tokens=3, logits_processor=[inner])


def test_layers_that_attend_twice_are_refused() -> None:
    config = AutoConfig.for_model(
        "diffllama", vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=1, bos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    with surefoot.attach(model, "observe"), pytest.raises(ModelError, match="more than once"):
        model.generate(IDS, max_new_tokens=3)


@pytest.mark.parametrize("thing", [None, "smollm2", torch.nn.Linear(2, 2)])
def test_only_models_that_generate_are_attached(thing: Any) -> None:
    with pytest.raises(ModelError, match="is not a Transformers model that generates"):
        surefoot.attach(thing)


@pytest.mark.parametrize("profile", [None, 5, {"name": "x"}])
def test_only_profiles_are_profiles(model: Any, profile: Any) -> None:
    with pytest.raises(ProfileError, match="a profile is a name"):
        surefoot.attach(model, profile)


def test_a_damaged_model_folder_is_named(tmp_path: Path) -> None:
    from surefoot.models import load_model

    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="cannot load"):
        load_model(str(tmp_path))
    with pytest.raises(ModelError, match="there is no such folder"):
        load_model("path/to/your/model")
