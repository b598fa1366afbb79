"""Kill ``r2no demo`` (SIGKILL) at random moments and run it again: the numbers must not change.

    python validation/kill_demo.py [--trials 20] [--seed 0] [--full]

Each trial starts in an empty folder, is killed at a random moment of the run, is started again and
compared with an undisturbed run: results.json must be equal as text, every weight file bit for bit.
"""

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def command(out, full):
    run = [sys.executable, "-m", "r2no.cli.main", "demo", "--out", str(out)]
    return run if full else [*run, "--quick", "--members", "1"]


def complete(out, full):
    start = time.monotonic()
    subprocess.run(command(out, full), check=True, capture_output=True)
    return time.monotonic() - start


def digest(out):
    files = [out / "results.json", *sorted((out / "wake.r2no").iterdir())]
    return {str(f.relative_to(out)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def killed_at(out, full, moment):
    """Start, kill after ``moment`` seconds; returns what the run had begun by then."""
    process = subprocess.Popen(
        command(out, full), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(moment)
    process.kill()
    process.wait()
    work = out / "work"
    begun = sorted(p.name for p in work.glob("*/*") if p.is_dir()) if work.exists() else []
    return ", ".join(begun) or "wake"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="the full demo, not the quick one")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference"
        seconds = complete(reference, arguments.full)
        expected = digest(reference)
        print(
            f"undisturbed run: {seconds:.0f} s\n\n| killed after s | begun | same |\n|---|---|---|"
        )
        different = 0
        for trial in range(arguments.trials):
            out = Path(folder) / f"trial-{trial}"
            moment = draw.uniform(0.5, seconds)
            begun = killed_at(out, arguments.full, moment)
            complete(out, arguments.full)
            same = digest(out) == expected
            different += not same
            print(f"| {moment:.1f} | {begun} | {'yes' if same else 'NO'} |", flush=True)
        print(f"\n{arguments.trials - different} of {arguments.trials} equal bit for bit")
        sys.exit(different > 0)


if __name__ == "__main__":
    main()
