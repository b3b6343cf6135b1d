"""Building blocks of targets and drafters: norms, rotary positions, linear kernels, attention."""
