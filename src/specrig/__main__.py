"""`python -m specrig`."""

from specrig.cli import main

if __name__ == "__main__":
    main()
