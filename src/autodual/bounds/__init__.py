"""DUAL -> BOUNDS: one engine per file."""

from autodual.bounds.base import BoundEngine as BoundEngine
from autodual.bounds.base import Bounds as Bounds
from autodual.bounds.base import Confidence as Confidence
from autodual.bounds.base import EstimatedBounds as EstimatedBounds
from autodual.bounds.base import EstimatedPreactivations as EstimatedPreactivations
from autodual.bounds.base import Minimum as Minimum
from autodual.bounds.base import Preactivations as Preactivations
from autodual.bounds.base import ProbableBounds as ProbableBounds
from autodual.bounds.base import ProbablePreactivations as ProbablePreactivations
from autodual.bounds.base import ProbableProof as ProbableProof
from autodual.bounds.base import Proof as Proof
from autodual.bounds.base import SoundBounds as SoundBounds
from autodual.bounds.draws import Draws as Draws
from autodual.bounds.dual import Crown as Crown
from autodual.bounds.dual import Dual as Dual
from autodual.bounds.estimators import Estimator as Estimator
from autodual.bounds.estimators import GeometricMean as GeometricMean
from autodual.bounds.estimators import MaximumLikelihood as MaximumLikelihood
from autodual.bounds.estimators import Median as Median
from autodual.bounds.estimators import QuietGradient as QuietGradient
from autodual.bounds.forward import ForwardDual as ForwardDual
from autodual.bounds.high_probability import HighProbability as HighProbability
from autodual.bounds.ibp import IBP as IBP
from autodual.bounds.prepare import bounds as bounds
from autodual.bounds.prepare import capture as capture
from autodual.bounds.projected import Projected as Projected
