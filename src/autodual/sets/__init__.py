"""WHAT MAY CHANGE: sets of inputs, named by the norm of the perturbation."""

from autodual.sets.balls import GivenSet as GivenSet
from autodual.sets.balls import L1Ball as L1Ball
from autodual.sets.balls import L2Ball as L2Ball
from autodual.sets.balls import LinfBall as LinfBall
from autodual.sets.balls import Perturbation as Perturbation
from autodual.sets.input_sets import Box as Box
from autodual.sets.input_sets import InputSet as InputSet
from autodual.sets.input_sets import Norm as Norm
from autodual.sets.input_sets import NormSet as NormSet
from autodual.sets.input_sets import Projection as Projection
from autodual.sets.input_sets import norm_of as norm_of
