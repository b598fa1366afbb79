"""Kill ``r2no demo`` (SIGKILL) at random moments and run it again: the numbers must not change.

    python validation/kill_demo.py [--kills 20] [--seed 0] [--full]

A run is killed after a random time, started again, killed again, and so on until it reaches its
end; then a new run begins, until there were enough kills. Each is compared with an undisturbed
run: results.json must be equal as text, every weight file bit for bit.
"""

import argparse
import hashlib
import random
import shutil
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


def stage(out):
    """What the run had begun so far."""
    begun = sorted(p.name for p in (out / "work").glob("*/*") if p.is_dir())
    return ", ".join(begun) or "wake"


def kill_after(out, full, seconds):
    """Start or go on, kill after some seconds; False if the run had ended by itself before."""
    process = subprocess.Popen(
        command(out, full), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="the full demo, not the quick one")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        reference, out = Path(folder) / "reference", Path(folder) / "killed"
        seconds = complete(reference, arguments.full)
        expected = digest(reference)
        longest = 0.5 * seconds
        print(
            f"undisturbed run: {seconds:.0f} s\n\n| kill | after s | begun by then |\n|---|---|---|"
        )
        kills, different, rounds = 0, 0, 0
        while kills < arguments.kills:
            moment = draw.uniform(1.0, longest)
            if kill_after(out, arguments.full, moment):
                kills += 1
                print(f"| {kills} | {moment:.1f} | {stage(out)} |", flush=True)
            else:  # it reached its end in spite of the kills: compare, then begin anew
                rounds, different = rounds + 1, different + (digest(out) != expected)
                shutil.rmtree(out)
        complete(out, arguments.full)
        rounds, different = rounds + 1, different + (digest(out) != expected)
        same = different == 0
        print(f"\n{rounds} runs with {kills} kills, all equal bit for bit: {same}")
        sys.exit(not same)


if __name__ == "__main__":
    main()
