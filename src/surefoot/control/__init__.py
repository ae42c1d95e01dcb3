"""Decide: profiles, the determinacy recipe and the state machine. Knows no engine and no HTTP."""

from surefoot.control.controller import Controller, Snapshot
from surefoot.control.overrides import Ledger, Overrides, SamplerStep
from surefoot.control.profile import Probe, Profile, Provenance, builtin_profiles, load_profile, parse_profile
from surefoot.control.recipe import Recipe
from surefoot.control.rules import Action, ConsistencyRule, FuseRule, HighRule, LowRule, ShockRule
from surefoot.control.state import State
from surefoot.control.trace import TokenTrace, Trace

__all__ = [
    "Action",
    "ConsistencyRule",
    "Controller",
    "FuseRule",
    "HighRule",
    "Ledger",
    "LowRule",
    "Overrides",
    "Probe",
    "Profile",
    "Provenance",
    "Recipe",
    "SamplerStep",
    "ShockRule",
    "Snapshot",
    "State",
    "TokenTrace",
    "Trace",
    "builtin_profiles",
    "load_profile",
    "parse_profile",
]
