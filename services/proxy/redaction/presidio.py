"""`python -m services.proxy.redaction.presidio`: write Presidio's patterns into `presidio.json`.

Importing Presidio costs 11 s and 430 MB, so the gateway reads its patterns from this file and never
imports it. A test compares the file with the installed Presidio.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("presidio.json")


def render() -> str:
    """Every pattern recogniser Presidio ships, sorted by name, as JSON text; needs `presidio-analyzer`."""
    import presidio_analyzer.predefined_recognizers as shipped
    from presidio_analyzer import PatternRecognizer

    recognisers: list[dict[str, Any]] = []
    for name, kind in sorted(inspect.getmembers(shipped, inspect.isclass)):
        if not issubclass(kind, PatternRecognizer) or kind is PatternRecognizer:
            continue
        recogniser: Any = kind()  # type: ignore[call-arg]
        recognisers.append(
            {
                "name": name,
                "entity": recogniser.supported_entities[0],
                "country": getattr(kind, "COUNTRY_CODE", None),
                "context": sorted({word.lower() for word in recogniser.context or ()}),
                "patterns": [{"regex": p.regex, "score": p.score} for p in recogniser.patterns],
            }
        )
    return json.dumps(recognisers, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(render())
