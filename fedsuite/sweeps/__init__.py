"""Many runs: sweeps, and runs that belong to others."""
