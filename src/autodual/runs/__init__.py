"""The files of a run folder, each with one owner: config, checkpoints, metrics, lines of certificates."""

from autodual.runs.config import TrainConfig as TrainConfig
