"""The networks of Wong, Schmidt, Metzen and Kolter (2018), as plain modules that know nothing of bounds."""

from autodual.models.normalize import Normalize as Normalize
from autodual.models.plain import deep as deep
from autodual.models.plain import large as large
from autodual.models.plain import small as small
from autodual.models.plain import wide as wide
from autodual.models.residual import ResidualBlock as ResidualBlock
from autodual.models.residual import resnet as resnet
