"""DUAL -> BOUNDS: one engine per file."""

from autodual.engines.backward.dual import Crown as Crown
from autodual.engines.backward.dual import Dual as Dual
from autodual.engines.forward import ForwardDual as ForwardDual
from autodual.engines.high_probability import HighProbability as HighProbability
from autodual.engines.ibp import IBP as IBP
from autodual.engines.prepare import bounds as bounds
from autodual.engines.prepare import capture as capture
from autodual.engines.projected.draws import Draws as Draws
from autodual.engines.projected.engine import Projected as Projected
from autodual.engines.projected.estimators import Estimator as Estimator
from autodual.engines.projected.estimators import GeometricMean as GeometricMean
from autodual.engines.projected.estimators import MaximumLikelihood as MaximumLikelihood
from autodual.engines.projected.estimators import Median as Median
from autodual.engines.projected.estimators import QuietGradient as QuietGradient
from autodual.engines.results import BoundEngine as BoundEngine
from autodual.engines.results import Bounds as Bounds
from autodual.engines.results import Confidence as Confidence
from autodual.engines.results import EstimatedBounds as EstimatedBounds
from autodual.engines.results import EstimatedPreactivations as EstimatedPreactivations
from autodual.engines.results import Minimum as Minimum
from autodual.engines.results import Preactivations as Preactivations
from autodual.engines.results import ProbableBounds as ProbableBounds
from autodual.engines.results import ProbablePreactivations as ProbablePreactivations
from autodual.engines.results import ProbableProof as ProbableProof
from autodual.engines.results import Proof as Proof
from autodual.engines.results import SoundBounds as SoundBounds
