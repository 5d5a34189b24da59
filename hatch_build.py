"""The build hook of the wheel: it builds the web page, which the wheel contains."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WebPageHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # a clone builds the page when it is needed
        if subprocess.run([Path(self.root, "scripts", "web")]).returncode:
            raise SystemExit("The web page could not be built, so the wheel would not contain it.")
