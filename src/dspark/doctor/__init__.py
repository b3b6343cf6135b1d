"""What this machine has, what it lacks, and what will therefore be slow."""
