"""`crcr` and `python -m crcr`: the way in from a shell."""

from crcr.cli.main import app


def main() -> None:
    app()


if __name__ == "__main__":
    main()
