"""Entry point of `crcr` and `python -m crcr`."""

from crcr.cli.main import app


def main() -> None:
    app()


if __name__ == "__main__":
    main()
