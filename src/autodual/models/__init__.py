"""The networks of Wong, Schmidt, Metzen and Kolter (2018), as plain modules that know nothing of bounds."""

from autodual.models.networks import Normalize as Normalize
from autodual.models.networks import ResidualBlock as ResidualBlock
from autodual.models.networks import deep as deep
from autodual.models.networks import large as large
from autodual.models.networks import resnet as resnet
from autodual.models.networks import small as small
from autodual.models.networks import wide as wide
