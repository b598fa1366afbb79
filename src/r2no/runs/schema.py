"""The JSON schema of the YAML file, for editors: made by pydantic, its texts as plain words."""

import re
from typing import Any

from r2no.runs.config import OwnConfig

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """What a config of ``r2no adapt`` and ``r2no doctor`` may hold.

    Descriptions that come from docstrings are freed of the docs' markup, and titles that only
    repeat a key are left out, since editors show both.
    """
    found: dict[str, Any] = _plain(OwnConfig.model_json_schema())
    return {"$schema": _DIALECT, **found}


def _plain(value: Any) -> Any:
    """A part of the schema with plain texts, all the way down."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _plain(item) for key, item in value.items()}
    if isinstance(plain.get("properties"), dict):
        for part in plain["properties"].values():
            part.pop("title", None)
    if isinstance(text := plain.get("description"), str):
        plain["description"] = _words(text)
    return plain


def _words(text: str) -> str:
    without_roles = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return " ".join(without_roles.split())
