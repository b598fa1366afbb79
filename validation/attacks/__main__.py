"""Run every attack with its usual number of trials and print one table.

    python -m validation.attacks

``hostile_files`` has a table of its own, which follows.
"""

import importlib.util
import subprocess
import sys

from validation.attacks.common import HEAD

ATTACKS = (
    "artifact_bits", "artifact_edits", "kills", "concurrency", "disk", "elsewhere", "api"
)  # fmt: skip
OWN_TABLE = "hostile_files"


def run(name: str) -> "subprocess.CompletedProcess[str]":
    """An attack as a process of its own, so that none can disturb another."""
    script = [sys.executable, "-m", f"validation.attacks.{name}"]
    found = subprocess.run(script, capture_output=True, text=True, check=False)
    print(found.stderr, end="", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """All of them; code 1 if any failed."""
    failed = []
    print(HEAD, flush=True)
    for name in ATTACKS:
        found = run(name)
        rows = [line for line in found.stdout.splitlines() if line.startswith("| ")]
        print(*rows[1:], sep="\n", flush=True)
        failed += [name] * bool(found.returncode)
    if importlib.util.find_spec(f"validation.attacks.{OWN_TABLE}") is not None:
        found = run(OWN_TABLE)
        print(found.stdout.strip().rpartition("\n\n")[2])
        failed += [OWN_TABLE] * bool(found.returncode)
    print(*(f"{name} failed" for name in failed), sep="\n", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
