"""How a download is shown and agreed to."""

import typer

from r2no.cli.app import console, say
from r2no.realpdebench.files import fetch
from r2no.realpdebench.files.hub import Hub, HuggingFaceHub

__all__ = ["connect", "fetch", "run_plan"]


def connect(endpoint: str | None) -> Hub:
    """The hub that the benchmark is fetched from."""
    return HuggingFaceHub(endpoint)


def run_plan(plan: fetch.Plan, hub: Hub, *, yes: bool) -> None:
    """Show the plan and its largest files, ask if needed, fetch, say what is there now."""
    say(f"{plan}.")

    def confirm(plan: fetch.Plan) -> bool:
        if yes:
            return True
        for file in sorted(plan.files, key=lambda file: -file.size)[:10]:
            console.print(f"  {file.size / 1e9:8.3f} GB  {file.path}", highlight=False)
        try:
            return typer.confirm(f"Fetch {plan.size / 1e9:.2f} GB?")
        except typer.Abort:  # no terminal to answer from
            return False

    def progress(file: fetch.RemoteFile, left: int) -> None:
        say(f"{file.path}, {left / 1e9:.2f} GB left")

    files = fetch.download(plan, hub, confirm=confirm, progress=progress)
    say(f"{len(files)} files are in {plan.folder}.")
