"""FOLDER OF AN OLDER SCHEMA → FOLDER OF THIS ONE: written whole, and opened before it replaces the old one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.data.tokens import Words
from longtail.errors import LongtailError, ModelError, one_line
from longtail.files import read_arrays, read_json, write_arrays
from longtail.folder import SCHEMA, check_seal, checksum, read_config, verify_files, write_config
from longtail.model import Model
from longtail.scorers import linear
from longtail.whole import held, whole_folder

Config = dict[str, Any]


def _with_voices(folder: Path, config: Config) -> Config:
    """Go from 3 to 4: the scores by words of a recipe became a list of voices."""
    recipe = dict(config["recipe"])
    lexical = recipe.pop("lexical", None)
    return config | {"recipe": recipe | {"voices": [] if lexical is None else [lexical]}}


def _by_word(folder: Path, config: Config) -> Config:
    """Go from 4 to 5: the trees of linear classifiers list the nodes of a word, not the words of a node."""
    if linear.FILE not in config["files"]:
        return config
    old = {name: np.array(values) for name, values in read_arrays(folder / linear.FILE).items()}
    node = np.repeat(np.arange(len(old["node_ends"])), np.diff(np.append(0, old["node_ends"])))
    term = np.repeat(np.arange(len(node)), np.diff(np.append(0, old["word_ends"])))
    child = old["firsts"][node[term]] + old["children"]
    shape = (len(old["below"]), len(Words.load(folder)))
    rows = sp.csr_array((old["weights"], (child, old["words"][term])), shape=shape)
    forest = linear.Forest.of_rows(old["roots"], old["firsts"], old["below"], old["biases"], rows)
    write_arrays(folder / linear.FILE, forest.arrays() | {"labels": old["labels"]})
    return config | {"files": config["files"] | {linear.FILE: checksum(folder / linear.FILE)}}


STEPS: Mapping[int, Callable[[Path, Config], Config]] = {3: _with_voices, 4: _by_word}  # from each to the next
DAMAGED = LongtailError, LookupError, ValueError, TypeError  # what a step or an opening may say of a folder


def upgrade(path: str | Path) -> int:
    """Bring a model folder up to date and return the schema that it had; what cannot be done is a ModelError."""
    folder = Path(path)
    config = read_json(folder / "config.json")
    before = config.get("schema")
    if before == SCHEMA:
        read_config(folder)
        return SCHEMA
    if type(before) is not int or before not in STEPS:
        known = ", ".join(map(str, STEPS))
        raise ModelError(f"{folder}: its schema is {before!r}; only {known} can be brought to {SCHEMA}: train again")
    check_seal(folder, config)
    verify_files(folder, config["files"])
    with held(folder), whole_folder(folder, force=True) as new:
        for file in sorted(folder.iterdir()):
            if file.name in config["files"] or file.name.endswith((".jsonl", ".csv")):  # the journal, the log
                shutil.copy2(file, new / file.name)
        try:
            for schema in range(before, SCHEMA):
                config = STEPS[schema](new, config) | {"schema": schema + 1}
            write_config(new, config)
            Model.load(new).predict(["a text"])
        except DAMAGED as reason:
            why = f"cannot be brought up to date, and stays as it is ({one_line(reason)})"
            raise ModelError(f"{folder}: {why}") from None
    return before
