"""AutoDual: neural networks whose robustness is proved.

A name is imported when it is first used: `import autodual` is fast, and does not import PyTorch.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from autodual._version import __version__ as __version__

if TYPE_CHECKING:  # what type checkers read; the table below is what Python reads, and a test compares the two
    from autodual import models as models
    from autodual import testing as testing
    from autodual._errors import ArgumentError as ArgumentError
    from autodual._errors import AutodualError as AutodualError
    from autodual._errors import CaptureError as CaptureError
    from autodual._errors import ContradictionError as ContradictionError
    from autodual._errors import MemoryBudgetError as MemoryBudgetError
    from autodual._errors import UnsoundError as UnsoundError
    from autodual._errors import UnsupportedOperationError as UnsupportedOperationError
    from autodual.cascades import Cascade as Cascade
    from autodual.cascades import CascadeAttack as CascadeAttack
    from autodual.cascades import CascadeCertificate as CascadeCertificate
    from autodual.cascades import RoutedCascade as RoutedCascade
    from autodual.cascades import SumEnsemble as SumEnsemble
    from autodual.certificates import Attack as Attack
    from autodual.certificates import Certificate as Certificate
    from autodual.certificates import HighProbabilityCertificate as HighProbabilityCertificate
    from autodual.certificates import RobustCrossEntropy as RobustCrossEntropy
    from autodual.certificates import Verdict as Verdict
    from autodual.certificates import attack as attack
    from autodual.certificates import certified_radius as certified_radius
    from autodual.certificates import certify as certify
    from autodual.data import ArrayData as ArrayData
    from autodual.data import ImageData as ImageData
    from autodual.data import load_table as load_table
    from autodual.digits import load_digits as load_digits
    from autodual.digits import load_digits_network as load_digits_network
    from autodual.dual import AffineDual as AffineDual
    from autodual.dual import Band as Band
    from autodual.dual import CurvedDual as CurvedDual
    from autodual.dual import ElementwiseDual as ElementwiseDual
    from autodual.dual import Lines as Lines
    from autodual.dual import register as register
    from autodual.dual import rewrite as rewrite
    from autodual.engines import IBP as IBP
    from autodual.engines import AlphaCrown as AlphaCrown
    from autodual.engines import BestOf as BestOf
    from autodual.engines import BoundEngine as BoundEngine
    from autodual.engines import Bounds as Bounds
    from autodual.engines import Crown as Crown
    from autodual.engines import Draws as Draws
    from autodual.engines import Dual as Dual
    from autodual.engines import EstimatedBounds as EstimatedBounds
    from autodual.engines import Estimator as Estimator
    from autodual.engines import ForwardDual as ForwardDual
    from autodual.engines import GeometricMean as GeometricMean
    from autodual.engines import HighProbability as HighProbability
    from autodual.engines import MaximumLikelihood as MaximumLikelihood
    from autodual.engines import Median as Median
    from autodual.engines import ProbableBounds as ProbableBounds
    from autodual.engines import Projected as Projected
    from autodual.engines import QuietGradient as QuietGradient
    from autodual.engines import SoundBounds as SoundBounds
    from autodual.engines import bounds as bounds
    from autodual.engines import capture as capture
    from autodual.evaluation import DataCertificate as DataCertificate
    from autodual.evaluation import certify_data as certify_data
    from autodual.graph import Call as Call
    from autodual.graph import Network as Network
    from autodual.interchange import VnnLibProperty as VnnLibProperty
    from autodual.interchange import load_onnx as load_onnx
    from autodual.interchange import load_vnnlib as load_vnnlib
    from autodual.interchange import save_onnx as save_onnx
    from autodual.interval import Interval as Interval
    from autodual.runs import TrainConfig as TrainConfig
    from autodual.sets import Box as Box
    from autodual.sets import InputSet as InputSet
    from autodual.sets import L1Ball as L1Ball
    from autodual.sets import L2Ball as L2Ball
    from autodual.sets import LinfBall as LinfBall
    from autodual.sets import Perturbation as Perturbation
    from autodual.spec import AllOf as AllOf
    from autodual.spec import AnyOf as AnyOf
    from autodual.spec import Between as Between
    from autodual.spec import Label as Label
    from autodual.spec import Positive as Positive
    from autodual.spec import Specification as Specification
    from autodual.spec import TopK as TopK
    from autodual.training import TrainedRun as TrainedRun
    from autodual.training import fit as fit
    from autodual.training import load_pretrained as load_pretrained
    from autodual.training import load_run as load_run
else:
    _NAMES = {
        "_errors": (
            "ArgumentError", "AutodualError", "CaptureError", "ContradictionError", "MemoryBudgetError", "UnsoundError",
            "UnsupportedOperationError",
        ),
        "cascades": ("Cascade", "CascadeAttack", "CascadeCertificate", "RoutedCascade", "SumEnsemble"),
        "certificates": (
            "Attack", "Certificate", "HighProbabilityCertificate", "RobustCrossEntropy", "Verdict", "attack",
            "certified_radius", "certify",
        ),
        "data": ("ArrayData", "ImageData", "load_table"),
        "digits": ("load_digits", "load_digits_network"),
        "dual": ("AffineDual", "Band", "CurvedDual", "ElementwiseDual", "Lines", "register", "rewrite"),
        "engines": (
            "IBP", "AlphaCrown", "BestOf", "BoundEngine", "Bounds", "Crown", "Draws", "Dual", "EstimatedBounds", "Estimator",
            "ForwardDual", "GeometricMean", "HighProbability", "MaximumLikelihood", "Median", "ProbableBounds", "Projected",
            "QuietGradient", "SoundBounds", "bounds", "capture",
        ),
        "evaluation": ("DataCertificate", "certify_data"),
        "graph": ("Call", "Network"),
        "interchange": ("VnnLibProperty", "load_onnx", "load_vnnlib", "save_onnx"),
        "interval": ("Interval",),
        "runs": ("TrainConfig",),
        "sets": ("Box", "InputSet", "L1Ball", "L2Ball", "LinfBall", "Perturbation"),
        "spec": ("AllOf", "AnyOf", "Between", "Label", "Positive", "Specification", "TopK"),
        "training": ("TrainedRun", "fit", "load_pretrained", "load_run"),
    }  # fmt: skip
    """Public names by the module of `autodual` that they are imported from."""
    _MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
    _MODULES = ("models", "testing", *_NAMES)
    """Modules that are attributes without being imported by their own name."""
    __all__ = ["models", "testing", *_MODULE_OF]

    def __getattr__(name: str) -> object:
        if name in _MODULE_OF:
            value = getattr(_import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
            globals()[name] = value  # so that Python does not ask again
            return value
        if name in _MODULES:
            return _import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
