"""What only a GPU needs: Triton kernels, LSTM layers that run on them, and steps that are recorded as CUDA graphs and
replayed on streams of their own."""
