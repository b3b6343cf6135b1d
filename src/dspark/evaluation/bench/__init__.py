"""Load on a serving engine: who asks what and when, what is measured, arms side by side (docs/bench.md)."""
