"""What only a GPU needs: Triton kernels, and steps that are recorded once and replayed."""
