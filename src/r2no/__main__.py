"""``python -m r2no``: as the command ``r2no``."""

from r2no.cli.main import main

if __name__ == "__main__":
    main()
