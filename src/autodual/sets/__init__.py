"""WHAT MAY CHANGE: sets of inputs, named by the norm of the perturbation."""

from autodual.sets.balls import L1Ball as L1Ball
from autodual.sets.balls import L2Ball as L2Ball
from autodual.sets.balls import LinfBall as LinfBall
from autodual.sets.base import InputSet as InputSet
from autodual.sets.base import Perturbation as Perturbation
from autodual.sets.base import norm_of as norm_of
from autodual.sets.norm_sets import Box as Box
from autodual.sets.norm_sets import NormSet as NormSet
from autodual.sets.norms import Norm as Norm
from autodual.sets.norms import Projection as Projection
