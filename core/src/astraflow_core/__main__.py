"""``python -m astraflow_core`` lists, as JSON, the plugins of the interpreter that runs it: a doctor in another one asks
this way, because an environment of an engine has no command ``astraflow``."""

from __future__ import annotations

import json
import sys

from astraflow_core import __version__
from astraflow_core.catalog import Catalog

plugins = [{"distribution": "astraflow-core", "version": __version__, "problem": None}]
for plugin in Catalog.discover().plugins:
    found = {"distribution": plugin.distribution, "version": plugin.version}
    plugins.append({**found, "problem": plugin.problem or None})
json.dump(plugins, sys.stdout)
