"""`python -m rstar2` is the command `rstar2`."""

from rstar2.cli.main import main

if __name__ == "__main__":
    main()
