"""One step of a denoiser: what its graph computes in each, what is computed once before, and where inputs lie."""
