"""The learner service: inference, unrolls and training."""

import os

# Read when TensorFlow is imported, which happens below this package only. By default it is on only
# where there is AVX-512; with AVX2, too, convolutions are twice as fast with it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
