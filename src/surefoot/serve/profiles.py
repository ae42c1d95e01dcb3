"""The profiles a server uses: by domain or name, versioned, changed without a restart, rolled back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from surefoot.control import Profile, builtin_profiles, load_profile, parse_profile
from surefoot.errors import ProfileError
from surefoot.ssp.grammar import ALLOWED

HISTORY = 20
LIMIT = 200


@dataclass(slots=True)
class _Entry:
    source: str  # what to read again on reload
    versions: list[Profile] = field(default_factory=list)
    last: int = 0


class ProfileStore:
    """Profiles by name.

    Parameters
    ----------
    default : str
        Name or path of the profile for every domain that ``domains`` does not name.
    domains : dict
        Domain to name or path of a profile.
    more : iterable of str
        Names or paths of further profiles, for arms.
    fits : callable
        Raises `ProfileError` for a profile that the model cannot run; returns warnings.
    """

    def __init__(
        self, default: str, domains: dict[str, str], more: tuple[str, ...], fits: Callable[[Profile], list[str]]
    ) -> None:
        self._fits = fits
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self.warnings: list[str] = []
        unknown = set(domains) - set(ALLOWED["domain"])
        if unknown:
            raise ProfileError(
                f"there is no domain '{sorted(unknown)[0]}'.", f"Domains: {', '.join(ALLOWED['domain'])}."
            )
        self.domains = {domain: self._read(domains.get(domain, default)) for domain in ALLOWED["domain"]}
        self.arms = {name: self._read(name) for name in more}
        for name in builtin_profiles():
            # The rest is on offer by name, unless the model cannot run it.
            with contextlib.suppress(ProfileError):
                self._read(name, quietly=True)

    def _read(self, source: str, *, quietly: bool = False) -> str:
        """Load ``source`` unless it is there; its name."""
        for name, entry in self._entries.items():
            if entry.source == source:
                return name
        profile = load_profile(source)
        warnings = self._fits(profile)
        if profile.name in self._entries:
            raise ProfileError(
                f"'{source}' and '{self._entries[profile.name].source}' are both called '{profile.name}'.",
                "Give one of them another name (field 'name').",
            )
        self.warnings += [] if quietly else warnings
        self._entries[profile.name] = _Entry(source, [profile])
        return profile.name

    def get(self, name: str) -> Profile:
        """The newest version; `ProfileError` when there is none of that name."""
        entry = self._entries.get(name)
        if entry is None:
            raise ProfileError(f"no profile is called '{name}'.", f"Loaded: {', '.join(sorted(self._entries))}.")
        return entry.versions[-1]

    def overview(self) -> list[dict[str, Any]]:
        """Name, version, model, description and domains of each."""
        return [
            {
                "name": name,
                "version": (newest := entry.versions[-1]).version,
                "versions_kept": len(entry.versions),
                "model": newest.model,
                "description": newest.description,
                "domains": [d for d, used in self.domains.items() if used == name],
            }
            for name, entry in sorted(self._entries.items())
        ]

    def put(self, name: str, data: Any) -> Profile:
        """Take a new version from decoded JSON; requests in flight keep the old one."""
        profile = parse_profile(data, name)
        if profile.name != name:
            raise ProfileError(f"the profile is called '{profile.name}', and the address says '{name}'.")
        try:
            profile.dump().encode()
        except UnicodeEncodeError as error:
            raise ProfileError(f"profile '{name}' holds a text that is not valid Unicode.") from error
        self._fits(profile)
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                if len(self._entries) >= LIMIT:
                    raise ProfileError(f"there are {LIMIT} profiles already.")
                entry = self._entries[name] = _Entry("")
            # Numbers are not used twice, also after a rollback: traces refer to them.
            entry.last = max(entry.last, *(p.version for p in entry.versions), 0) + 1
            profile = profile.model_copy(update={"version": entry.last})
            entry.versions = [*entry.versions[-HISTORY + 1 :], profile]
        return profile

    def rollback(self, name: str) -> Profile:
        """Drop the newest version."""
        self.get(name)
        with self._lock:
            entry = self._entries[name]
            if len(entry.versions) < 2:
                raise ProfileError(f"profile '{name}' has no earlier version to go back to.")
            entry.versions = entry.versions[:-1]
            return entry.versions[-1]

    def reload(self) -> list[str]:
        """Read all files again; names of the profiles that changed. Nothing changes when one is unusable."""
        read = {name: load_profile(e.source) for name, e in self._entries.items() if e.source}
        changed = []
        for name, profile in read.items():
            now = self._entries[name].versions[-1]
            if profile.name != name:
                raise ProfileError(f"'{self._entries[name].source}' is now called '{profile.name}', not '{name}'.")
            if profile.model_copy(update={"version": now.version}) != now:
                self._fits(profile)
                changed.append(name)
        for name in changed:
            self.put(name, read[name].model_dump(mode="json"))
        return changed
