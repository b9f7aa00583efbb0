"""The robust loss: cross-entropy of the worst scores that the bounds allow."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.bounds.base import BoundEngine
from autodual.bounds.dual import Dual
from autodual.bounds.prepare import check_engine
from autodual.certify.validate import check_classifier, check_label_range, check_labels, check_perturbation
from autodual.dual import REGISTRY, build
from autodual.graph import Network, capture
from autodual.sets import Perturbation
from autodual.spec import margins


class RobustCrossEntropy(nn.Module):
    """An upper bound on the cross-entropy under any perturbation that `ball` allows. [SPAD Sec. 3.1]

    Call it with (x, labels) for a scalar to minimise. It is a module that contains the model, so it can be wrapped as a whole
    for distributed training. The model may be in training mode: batch normalisation then uses the statistics of the clean
    batch, held fixed over the perturbation, and moves its running statistics as usual.
    """

    def __init__(self, model: nn.Module, ball: Perturbation, engine: BoundEngine | None = None) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self.engine = Dual() if engine is None else engine
        check_engine(self.engine)
        check_perturbation(ball)
        self.model, self.ball = model, ball
        self._captured: Network | None = None
        self._captured_for: tuple[object, ...] = ()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.worst_scores(x, labels), labels.long())

    def worst_scores(self, x: Tensor, labels: Tensor) -> Tensor:
        """[N, C]: upper bounds on z_j - z_label; zero at the label."""
        labels = check_labels(labels, x)
        network = self._network(x)
        classes = check_classifier(network.output_shape)
        if labels.device.type == "cpu":  # elsewhere it would wait for the device
            check_label_range(labels, classes)
        dual = build(network, x if _uses_batch_statistics(self.model) else None)
        spec = margins(labels, classes, x.dtype)
        return -self.engine.minimum(dual, self.ball.around(x), spec).lower

    def _network(self, x: Tensor) -> Network:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or len(x) == 0:
            raise ArgumentError("x must be a floating-point batch [N, *shape] with at least one example")
        modules = tuple((id(m), m.training) for m in self.model.modules())
        key = (tuple(x.shape[1:]), x.dtype, x.device, modules)
        if self._captured is None or self._captured_for != key:
            self._captured, self._captured_for = capture(self.model, x, REGISTRY), key
        return self._captured


def _uses_batch_statistics(model: nn.Module) -> bool:
    return any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) and (m.training or m.running_mean is None)
        for m in model.modules()
    )
