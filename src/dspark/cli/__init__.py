"""The command `dspark`: one file per verb, no logic. Nothing here imports torch before a verb runs."""
