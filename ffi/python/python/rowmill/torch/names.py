"""Names of tables and of what is looked up in them."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence


def generation_name(name: str, names: Optional[Mapping[str, str]] = None) -> str:
    """The name of a table in a generation: the one given, else its own made to fit the rules.

    Names there have 1 to 128 of ``A-Z a-z 0-9 _ - .``, and no dot in front; anything else becomes ``_``.
    """
    if names is not None and name in names:
        return names[name]
    fitting = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return re.sub(r"^\.", "_", fitting)[:128]


def embedding_names(tables: Sequence[Any]) -> List[List[str]]:
    """The names of results, table by table: the feature's, with the table's where a feature is in several tables."""
    uses: Dict[str, int] = {}
    for config in tables:
        for feature in config.feature_names:
            uses[feature] = uses.get(feature, 0) + 1
    return [
        [f"{feature}@{config.name}" if uses[feature] > 1 else feature for feature in config.feature_names] for config in tables
    ]
