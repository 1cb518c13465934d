"""``python -m station`` is ``stn``."""

from station.cli import main

if __name__ == "__main__":
    main()
