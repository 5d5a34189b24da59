"""The configuration in effect in a directory, read from its files without a server."""

from __future__ import annotations

from pathlib import Path

from kedge import paths
from kedge.config.load import Loaded, layered, user_layer
from kedge.config.trust import FILE_NAME, Trust


def trusted_files() -> Trust:
    return Trust(paths.data_dir() / FILE_NAME)


def load_config(workspace: Path) -> Loaded:
    """Merge the user's file and the repository's files. Raises BadConfig if the user's file is not valid."""
    return layered(user_layer(paths.config_file()), workspace, trusted_files(), strict=False)
