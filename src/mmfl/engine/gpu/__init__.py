"""What only a GPU needs: Triton kernels, layers in the form a GPU runs fastest, and steps that are recorded as CUDA
graphs and replayed on streams of their own."""
