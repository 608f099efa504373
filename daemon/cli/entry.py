"""The console script `cosyd`: the command line, and a quiet Ctrl+C while it is still being imported."""

from __future__ import annotations

from daemon import interrupt


def main() -> None:
    """Run the command of this process's arguments and end the process with its exit status."""
    interrupt.end_quietly()
    from daemon.cli.main import main as command

    interrupt.raise_again()
    try:
        command()
    finally:
        interrupt.end_quietly()  # what is left is the interpreter's own end


if __name__ == "__main__":
    main()
