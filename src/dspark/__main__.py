"""`python -m dspark` is the command `dspark`."""

from dspark.cli.main import run

if __name__ == "__main__":
    run()
