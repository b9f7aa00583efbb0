"""LOSS -> MODEL: config, data, the training loop, checkpoints, runs, cascades and their evaluation."""

from autodual.train.config import TrainConfig as TrainConfig
from autodual.train.data import ImageData as ImageData
from autodual.train.fit import fit as fit
from autodual.train.trained import TrainedRun as TrainedRun
from autodual.train.trained import load_pretrained as load_pretrained
from autodual.train.trained import load_run as load_run
