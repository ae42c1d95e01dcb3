"""Engines: thin adapters between a runtime and the core. Nothing about decisions lives here."""
