"""Entry point of `crcr` and `python -m crcr`."""

import gc

from crcr.cli.main import app


def main() -> None:
    # Imports and requests leave almost no cycles: to look for them after every 700 objects takes a tenth of a start.
    gc.set_threshold(20_000, 20, 50)
    app()


if __name__ == "__main__":
    main()
