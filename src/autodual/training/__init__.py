"""LOSS -> MODEL: objectives, the step, the loop, stages of cascades, and trained runs."""

from autodual.training.fitting import fit as fit
from autodual.training.trained import TrainedRun as TrainedRun
from autodual.training.trained import load_pretrained as load_pretrained
from autodual.training.trained import load_run as load_run
