"""Small C++ kernels for decode steps, compiled on first use for the processor at hand; torch is their oracle."""
