"""AutoDual: neural networks whose robustness is proved."""

from autodual._interrupt import commands_end_in_one_line as _commands_end_in_one_line

with _commands_end_in_one_line():
    from autodual import models as models
    from autodual import testing as testing
    from autodual._errors import ArgumentError as ArgumentError
    from autodual._errors import AutodualError as AutodualError
    from autodual._errors import CaptureError as CaptureError
    from autodual._errors import MemoryBudgetError as MemoryBudgetError
    from autodual._errors import UnsoundError as UnsoundError
    from autodual._errors import UnsupportedOperationError as UnsupportedOperationError
    from autodual.bounds import IBP as IBP
    from autodual.bounds import BoundEngine as BoundEngine
    from autodual.bounds import Bounds as Bounds
    from autodual.bounds import Crown as Crown
    from autodual.bounds import Draws as Draws
    from autodual.bounds import Dual as Dual
    from autodual.bounds import EstimatedBounds as EstimatedBounds
    from autodual.bounds import Estimator as Estimator
    from autodual.bounds import ForwardDual as ForwardDual
    from autodual.bounds import GeometricMean as GeometricMean
    from autodual.bounds import HighProbability as HighProbability
    from autodual.bounds import MaximumLikelihood as MaximumLikelihood
    from autodual.bounds import Median as Median
    from autodual.bounds import ProbableBounds as ProbableBounds
    from autodual.bounds import Projected as Projected
    from autodual.bounds import SoundBounds as SoundBounds
    from autodual.bounds import bounds as bounds
    from autodual.bounds import capture as capture
    from autodual.certify import Attack as Attack
    from autodual.certify import Cascade as Cascade
    from autodual.certify import CascadeAttack as CascadeAttack
    from autodual.certify import CascadeCertificate as CascadeCertificate
    from autodual.certify import Certificate as Certificate
    from autodual.certify import HighProbabilityCertificate as HighProbabilityCertificate
    from autodual.certify import RobustCrossEntropy as RobustCrossEntropy
    from autodual.certify import RoutedCascade as RoutedCascade
    from autodual.certify import SumEnsemble as SumEnsemble
    from autodual.certify import Verdict as Verdict
    from autodual.certify import attack as attack
    from autodual.certify import certified_radius as certified_radius
    from autodual.certify import certify as certify
    from autodual.digits import load_digits as load_digits
    from autodual.digits import load_digits_network as load_digits_network
    from autodual.dual import AffineDual as AffineDual
    from autodual.dual import Band as Band
    from autodual.dual import CurvedDual as CurvedDual
    from autodual.dual import ElementwiseDual as ElementwiseDual
    from autodual.dual import Lines as Lines
    from autodual.dual import register as register
    from autodual.dual import rewrite as rewrite
    from autodual.graph import Call as Call
    from autodual.graph import Network as Network
    from autodual.interval import Interval as Interval
    from autodual.sets import Box as Box
    from autodual.sets import InputSet as InputSet
    from autodual.sets import L1Ball as L1Ball
    from autodual.sets import L2Ball as L2Ball
    from autodual.sets import LinfBall as LinfBall
    from autodual.sets import Perturbation as Perturbation
    from autodual.train import ImageData as ImageData
    from autodual.train import TrainConfig as TrainConfig
    from autodual.train import fit as fit

__version__ = "0.1.0"
