"""PyTorch's side of the comparison: the same work as target_bench and drafter_bench, on the CPU."""
