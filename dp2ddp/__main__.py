"""``python -m dp2ddp`` is the command ``dp2ddp``."""

from dp2ddp.cli import main

if __name__ == "__main__":
    main(prog_name="dp2ddp")
