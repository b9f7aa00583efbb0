"""`python -m autodual` is the command `autodual`; torchrun needs it."""

from autodual.cli.app import main

if __name__ == "__main__":
    main()
