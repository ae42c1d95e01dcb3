"""Profiles as JSON: read, written, and refused with the field and the value."""

import json

import pytest
from pydantic import ValidationError

from surefoot.control import Action, Probe, Profile, builtin_profiles, load_profile, parse_profile
from surefoot.errors import ProfileError

BUILT_IN = sorted(builtin_profiles())
LINEAR = {"kind": "linear", "weights": [1.0], "center": [0.0], "scale": [1.0]}


def through_json(profile):
    return parse_profile(json.loads(profile.dump()))


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_profiles_survive_json(name):
    profile = load_profile(name)
    assert profile.name == name
    assert through_json(profile) == profile


def test_the_built_in_profiles_are_these():
    assert BUILT_IN == ["article", "careful", "creative", "observe"]


@pytest.mark.parametrize("max_keys", [None, 128, 4096])
def test_the_limit_of_keys_survives_json(max_keys):
    profile = Profile(name="p", probe=Probe(max_keys=max_keys, layers=(1, 3)))
    assert through_json(profile) == profile


@pytest.mark.parametrize("description", ["[two  spaces]", "a [\tb", "\u2028 [ \u3000 ]", '"quoted" \\ [ \n ]'])
def test_every_description_survives_json(description):
    profile = Profile(name="p", description=description, probe=Probe(layers=(1, 3)))
    assert through_json(profile) == profile


def test_null_reads_every_key():
    assert parse_profile({"name": "p", "probe": {"max_keys": None}}).probe.max_keys is None


def test_a_dump_written_to_a_file_loads(tmp_path):
    path = tmp_path / "ä.json"
    profile = load_profile("article").model_copy(update={"description": "Überprüft: 语义"})
    path.write_text(profile.dump(), encoding="utf-8")
    assert load_profile(path) == load_profile(str(path)) == profile


def test_profiles_are_frozen():
    profile = load_profile("article")
    for part in (profile, profile.probe, profile.recipe, profile.high, profile.high.action):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, next(iter(type(part).model_fields)), None)


def test_only_an_action_that_narrows_top_p_alters_it():
    assert not load_profile("article").alters_top_p
    narrowed = {"name": "p", "low": {"threshold": 2, "action": {"top_p": 0.8}}}
    assert parse_profile(narrowed).alters_top_p


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"hihg": {"threshold": 4}}, "hihg", "{'threshold': 4}"),
        ({"high": {"treshold": 4.25}}, "high.treshold", "(got 4.25)"),
        ({"high": {"threshold": 4, "action": {"temprature": 0.3}}}, "high.action.temprature", "(got 0.3)"),
        ({"schema_version": 2}, "schema_version", "(got 2)"),
        ({"name": ""}, "name", "''"),
        ({"version": 0}, "version", "(got 0)"),
        ({"high": {}}, "high.threshold", "{}"),
        ({"high": {"threshold": "tall"}}, "high.threshold", "'tall'"),
        ({"high": {"threshold": float("nan")}}, "high.threshold", "(got nan)"),
        ({"low": {"threshold": float("-inf")}}, "low.threshold", "(got -inf)"),
        ({"high": {"threshold": 4, "std_below": -0.5}}, "high.std_below", "(got -0.5)"),
        ({"high": {"threshold": 4, "action": {"temperature": 0}}}, "high.action.temperature", "(got 0)"),
        ({"high": {"threshold": 4, "action": {"temperature": 5.5}}}, "high.action.temperature", "(got 5.5)"),
        ({"low": {"threshold": 2, "action": {"top_p": 1.5}}}, "low.action.top_p", "(got 1.5)"),
        ({"low": {"threshold": 2, "action": {"top_p": 0}}}, "low.action.top_p", "(got 0)"),
        ({"low": {"threshold": 2, "action": {"span": -1}}}, "low.action.span", "(got -1)"),
        ({"low": {"threshold": 2, "action": {"hold": 0}}}, "low.action.hold", "(got 0)"),
        ({"low": {"threshold": 2, "action": {"approach": "leap"}}}, "low.action.approach", "'leap'"),
        ({"shock": {"threshold": 0}}, "shock.threshold", "(got 0)"),
        ({"shock": {"threshold": 1, "unit": -2}}, "shock.unit", "(got -2)"),
        ({"shock": {"threshold": 1, "smoothing": 1.25}}, "shock.smoothing", "(got 1.25)"),
        ({"fuse": {"window": 1, "std_below": 0.03}}, "fuse.window", "(got 1)"),
        ({"fuse": {"std_below": 0}}, "fuse.std_below", "(got 0)"),
        ({"consistency": {"threshold": 1.75}}, "consistency.threshold", "(got 1.75)"),
        ({"probe": {"max_keys": 127}}, "probe.max_keys", "(got 127)"),
        ({"probe": {"min_keys": 1}}, "probe.min_keys", "(got 1)"),
        ({"probe": {"layers": "some"}}, "probe.layers", "'some'"),
        ({"probe": {"layers": []}}, "layers", "[]"),
        ({"probe": {"layers": [2, 1]}}, "layers", "[2, 1]"),
        ({"probe": {"layers": [2, 2]}}, "layers", "[2, 2]"),
        ({"probe": {"layers": [-1, 2]}}, "layers", "[-1, 2]"),
        ({"recipe": {"kind": "magic"}}, "recipe.kind", "'magic'"),
        ({"recipe": {"kind": "mean_kurtosis", "statistics": ["kurtosys"]}}, "recipe.statistics", "'kurtosys'"),
        ({"recipe": LINEAR | {"clip": 0}}, "recipe.clip", "(got 0)"),
        ({"recipe": LINEAR | {"scale": []}}, "recipe", "got 1, 1 and 0"),
        ({"recipe": LINEAR | {"weights": [1, 2]}}, "recipe", "got 2, 1 and 1"),
        ({"recipe": {"kind": "linear"}}, "recipe", "got 0, 0 and 0"),
        ({"recipe": LINEAR | {"scale": [0]}}, "recipe", "0"),
        ({"recipe": LINEAR | {"statistics": []}}, "recipe.statistics", "[]"),
        ({"high": {"threshold": 2}, "low": {"threshold": 2}}, "low.threshold (2)", "high.threshold (2)"),
        ({"high": {"threshold": 2}, "low": {"threshold": 3}}, "low.threshold (3)", "high.threshold (2)"),
        ({"high": {"threshold": 4, "action": {"span": 0.75}}}, "high.action.span", "only the LOW"),
        ({"shock": {"threshold": 4, "action": {"span": 0.75}}}, "shock.action.span", "only the LOW"),
    ],
)
def test_what_is_wrong_is_named(change, field, value):
    with pytest.raises(ProfileError) as refused:
        parse_profile({"name": "p"} | change, "mine.json")
    first, *lines = refused.value.message.splitlines()
    assert "mine.json" in first
    assert any(field in line and value in line for line in lines)


def test_every_wrong_field_is_named_at_once():
    with pytest.raises(ProfileError, match=r"(?s)version.*fuse\.window"):
        parse_profile({"name": "p", "version": 0, "fuse": {"window": 1, "std_below": 1}})


@pytest.mark.parametrize("data", [None, 3, "article", [], [{"name": "p"}]])
def test_json_that_is_no_object_is_refused(data):
    with pytest.raises(ProfileError, match="not usable"):
        parse_profile(data)


@pytest.mark.parametrize("text", ["", "{", '{"name": "p",}', "name: p", "\ufeff{}", "[" * 100_000])
def test_malformed_json_is_refused(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match=r"broken\.json.*not valid JSON"):
        load_profile(path)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ProfileError, match=r"(?s)'artcle': no such profile or file.*article, careful, creative"):
        load_profile("artcle")


def test_a_name_that_no_file_can_have_is_refused():
    with pytest.raises(ProfileError, match=r"no such profile|null byte"):
        load_profile("arti\0cle")


def test_a_file_that_is_not_utf_8_is_refused(tmp_path):
    path = tmp_path / "latin.json"
    path.write_bytes('{"name": "Prüfung"}'.encode("latin-1"))
    with pytest.raises(ProfileError, match=r"latin\.json.*utf-8"):
        load_profile(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ProfileError, match=tmp_path.name):
        load_profile(tmp_path)


def test_the_tuners_file_reads_as_the_article_with_its_numbers(tmp_path):
    path = tmp_path / "claudetune.json"
    path.write_text('{"peak_kurtosis": 3.72, "jerk_threshold": 0.18, "temp_fallback": 0.5}')
    tuned, article = load_profile(path), load_profile("article")
    assert tuned.high == article.high.model_copy(update={"threshold": 3.72})
    assert tuned.shock.threshold == 0.18
    assert tuned.shock.action == Action(temperature=0.5, top_p=1.0)
    same = ("low", "fuse", "consistency", "probe", "recipe")
    assert [getattr(tuned, name) for name in same] == [getattr(article, name) for name in same]
    assert through_json(tuned) == tuned


def test_the_tuners_domain_names_the_profile():
    assert parse_profile({"peak_kurtosis": 3.72, "domain": "finance"}).name == "tuned-finance"


@pytest.mark.parametrize(
    ("data", "field", "value"),
    [
        ({"peak_kurtosis": "steep"}, "high.threshold", "'steep'"),
        ({"peak_kurtosis": 2.0}, "low.threshold (2.1)", "high.threshold (2)"),
        ({"peak_kurtosis": 3.7, "jerk_threshold": -1}, "shock.threshold", "(got -1)"),
        ({"peak_kurtosis": 3.7, "temp_fallback": 9}, "shock.action.temperature", "(got 9)"),
        ({"peak_kurtosis": 3.7, "temp_fallbak": 0.5}, "temp_fallbak", "(got 0.5)"),
    ],
)
def test_a_wrong_number_of_the_tuner_is_named(data, field, value):
    with pytest.raises(ProfileError) as refused:
        parse_profile(data)
    assert any(field in line and value in line for line in refused.value.message.splitlines())
