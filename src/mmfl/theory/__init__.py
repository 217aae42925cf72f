"""What the papers prove: bounds on the distance to the optimum, computed from the constants in which they are stated.

- MFA-Rand and MFA-RR (Bhuyan, Moharir & Joshi 2022), in `bounds.py`: describe the federation with a `Problem`, choose
  the learning rate by beta and gamma, and `RandomSplitBound` (Theorem 1) or `RotatingSplitBound` (Theorem 2,
  Corollary 1) gives the bound. In `gains.py`, `gain`, `theorem_3_applies` and `gain_threshold` compare training all
  models together with training them one after another.
- Sampling with any probabilities (Zhang et al. 2025), in `sampling.py`: `SamplingProblem` and `SamplingRound` give
  gamma, V_tau and the three variance terms of Theorem 1.
- Batch sizes by the gradient noise scale (McCandlish et al. 2018; FLAMMABLE), in `batches.py`: `NoiseScale` estimates
  it, `fastest_batch` and `steps_of_equal_progress` say what follows. No run uses them.

Nothing here trains or measures; the constants are arguments.
"""

from mmfl.theory.batches import NoiseScale, fastest_batch, progress_per_second, steps_of_equal_progress
from mmfl.theory.bounds import ErrorBound, Problem, RandomSplitBound, RotatingSplitBound
from mmfl.theory.gains import gain, gain_threshold, theorem_3_applies
from mmfl.theory.sampling import SamplingProblem, SamplingRound

__all__ = [
    "ErrorBound",
    "NoiseScale",
    "Problem",
    "RandomSplitBound",
    "RotatingSplitBound",
    "SamplingProblem",
    "SamplingRound",
    "fastest_batch",
    "gain",
    "gain_threshold",
    "progress_per_second",
    "steps_of_equal_progress",
    "theorem_3_applies",
]
