"""Networks of the wild: small models written the way strangers write PyTorch.

Nothing in this file knows about the library under test. Every builder returns a float32 model in eval
mode, is deterministic, and leaves the global random state alone. Batch-norm statistics and affine
parameters are randomised, so that a bound which forgets them cannot pass by accident.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


@dataclass(frozen=True)
class Wild:
    """One network of the zoo: ``build()`` makes it, ``shape`` is the shape of one input, without batch."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classifier: bool = True


def _randomise_norms(model: nn.Module) -> None:
    """Give every batch norm statistics and affine parameters far from mean 0, variance 1, scale 1."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0.0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, 0.0, 0.2)


def _kaiming(model: nn.Module) -> nn.Module:
    """The initialisation most image classifiers ship with; keeps the signal alive through many layers."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A builder that calls ``make`` under seed 0 and restores the random state afterwards."""

    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = make()
            _randomise_norms(model)
            return model.eval()

    return build


# --------------------------------------------------------------------------------------------------------
# Image classifiers


class BasicBlock(nn.Module):
    def __init__(self, in_planes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet18(nn.Module):
    """Eighteen layers with a CIFAR stem; the usual width is 64."""

    def __init__(self, width: int = 64, num_classes: int = 10) -> None:
        super().__init__()
        self.in_planes = width
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._make_layer(width, 2, stride=1)
        self.layer2 = self._make_layer(2 * width, 2, stride=2)
        self.layer3 = self._make_layer(4 * width, 2, stride=2)
        self.layer4 = self._make_layer(8 * width, 2, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, num_classes)

    def _make_layer(self, planes: int, blocks: int, stride: int) -> nn.Sequential:
        layers = []
        for s in [stride] + [1] * (blocks - 1):
            layers.append(BasicBlock(self.in_planes, planes, s))
            self.in_planes = planes
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.fc(x)


class DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.relu(self.norm(x)))], 1)


class DenseNet(nn.Module):
    def __init__(self, growth: int = 4, depth: int = 3, num_classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * growth, 3, padding=1, bias=False)
        self.block = nn.Sequential(*[DenseLayer((2 + i) * growth, growth) for i in range(depth)])
        channels = (2 + depth) * growth
        self.transition = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)
        )
        self.classifier = nn.Linear(channels // 2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.transition(self.block(self.stem(x)))
        out = F.adaptive_avg_pool2d(F.relu(features, inplace=True), (1, 1))
        return self.classifier(torch.flatten(out, 1))


class InvertedResidual(nn.Module):
    def __init__(self, inp: int, oup: int, stride: int, expand_ratio: int) -> None:
        super().__init__()
        hidden = inp * expand_ratio
        self.use_res_connect = stride == 1 and inp == oup
        self.conv = nn.Sequential(
            nn.Conv2d(inp, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, oup, 1, bias=False),
            nn.BatchNorm2d(oup),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.use_res_connect:
            return x + self.conv(x)
        return self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, num_classes: int = 5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)
            ),
            InvertedResidual(8, 8, 1, 3),
            InvertedResidual(8, 12, 2, 3),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = x.mean([2, 3])
        return self.classifier(x)


class LeNet5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.act = nn.Tanh()
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.act(self.conv1(x)))
        x = self.pool(self.act(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = torch.tanh(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.fc3(x)


class VGG(nn.Module):
    def __init__(self, cfg: tuple[int | str, ...] = (8, "M", 12, "M", 16, 16, "M"), num_classes: int = 5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for v in cfg:
            if isinstance(v, str):
                layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
            else:
                layers += [nn.Conv2d(channels, v, 3, padding=1), nn.BatchNorm2d(v), nn.ReLU(inplace=True)]
                channels = v
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * 4, 24), nn.ReLU(True), nn.Dropout(), nn.Linear(24, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = x.view(x.size(0), -1)
        return self.classifier(x)


# --------------------------------------------------------------------------------------------------------
# Other shapes of data


def _mlp_gelu() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 24), nn.GELU(approximate="tanh"), nn.Linear(24, 5)
    )


class Conv1dNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(2, 8, 5, padding=2),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(8, 12, 3, dilation=2),
            nn.BatchNorm1d(12),
            nn.ReLU(),
            nn.MaxPool1d(3, stride=2, padding=1),
        )
        self.head = nn.Sequential(nn.Linear(72, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(x).flatten(start_dim=1))


class AutoEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 1, 3, stride=2, padding=1, output_padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class Conv3dNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(1, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm3d(4)
        self.pool = nn.MaxPool3d(2)
        self.conv2 = nn.Conv3d(4, 8, 2)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = F.relu(self.conv2(x))
        x = F.adaptive_avg_pool3d(x, 1)
        return self.fc(x.flatten(1))


# --------------------------------------------------------------------------------------------------------
# Styles of writing


class FunctionalOnly(nn.Module):
    """No submodules at all: bare parameters, ``F.*``, ``torch.*`` and tensor methods."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(6, 3, 3, 3) * 0.2)
        self.b1 = nn.Parameter(torch.randn(6) * 0.1)
        self.w2 = nn.Parameter(torch.randn(8, 6, 3, 3) * 0.15)
        self.w3 = nn.Parameter(torch.randn(16, 36) * 0.15)
        self.b3 = nn.Parameter(torch.randn(16) * 0.1)
        self.w4 = nn.Parameter(torch.randn(5, 16 + 8) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.w1, self.b1, padding=1).relu()
        x = F.max_pool2d(x, 2)
        x = torch.tanh(F.conv2d(x, self.w2, None, stride=1, padding=1))
        pooled = x.mean(dim=(2, 3))
        y = x[:, :4, 1:, 1:]
        z = x[:, 4:, :-1, :-1]
        y = y + z * 0.5
        y = y.reshape(y.size(0), -1)
        h = F.linear(y.view(y.size(0), -1), self.w3, self.b3).relu()
        return torch.matmul(torch.cat((h, pooled), dim=-1), self.w4.t())


class SharedWeights(nn.Module):
    """One linear layer unrolled four times, one activation module called after each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.cell = nn.Linear(16, 16)
        self.act = nn.ReLU()
        self.head = nn.Linear(16, 4)
        self.alias = self.cell

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.embed(x))
        for _ in range(3):
            h = self.act(self.cell(h))
        h = self.act(self.alias(h))
        return self.head(h)


class WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = parametrizations.weight_norm(nn.Conv2d(3, 6, 3, padding=1))
        self.conv2 = parametrizations.weight_norm(nn.Conv2d(6, 8, 3, stride=2, padding=1))
        self.fc1 = parametrizations.spectral_norm(nn.Linear(128, 16))
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv1(x), 0.1)
        x = F.leaky_relu(self.conv2(x), 0.1)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)


def _weight_normed() -> nn.Module:
    model = WeightNormed()
    with torch.no_grad():
        # The magnitudes start equal to the norms of the directions, which would hide a missing division.
        for conv in (model.conv1, model.conv2):
            conv.get_parameter("parametrizations.weight.original0").mul_(1.3)
    return model


def _old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        first = torch.nn.utils.weight_norm(nn.Linear(10, 16))
        second = torch.nn.utils.weight_norm(nn.Linear(16, 12), dim=None)  # type: ignore[arg-type]
    with torch.no_grad():
        for layer in (first, second):
            layer.get_parameter("weight_g").mul_(0.8)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(12, 4))


class NestedContainers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Sequential(
                        nn.Conv2d(c_in, c_out, 3, padding=1), nn.Sequential(nn.BatchNorm2d(c_out), nn.ReLU())
                    ),
                    nn.AvgPool2d(2),
                )
                for c_in, c_out in [(3, 6), (6, 8)]
            ]
        )
        self.heads = nn.ModuleDict({"coarse": nn.Linear(32, 4), "fine": nn.Sequential(nn.Linear(32, 16), nn.ReLU())})
        self.join = nn.ModuleList([nn.Linear(16, 4), nn.Identity()])

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        x = x.flatten(1)
        outputs = {}
        for key, head in self.heads.items():
            outputs[key] = head(x)
        out = outputs["fine"]
        for i, layer in enumerate(self.join):
            out = layer(out) if i == 0 else layer(out) + outputs["coarse"]
        return out


class ConstantsAndBuffers(nn.Module):
    mean: Tensor
    var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.49, 0.48, 0.45]).view(1, 3, 1, 1))
        self.register_buffer("var", torch.tensor([0.06, 0.058, 0.068]).view(1, 3, 1, 1))
        self.conv = nn.Conv2d(3, 6, 3)
        self.log_scale = nn.Parameter(torch.randn(6, 1, 1) * 0.3)
        self.fc = nn.Linear(6 * 4 * 4, 5)
        self.temperature = 2.5

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / torch.sqrt(self.var + 1e-5)
        x = F.relu(self.conv(x))
        x = x * self.log_scale.exp()
        x = 1.0 - (-x + 3) / 2
        ones = torch.ones(4, 4, device=x.device)
        x = F.relu(x + 0.1 * ones)
        logits = self.fc(x.flatten(1))
        return logits / self.temperature + torch.arange(5.0)


class StaticShapeBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.fc1 = nn.Linear(6 * 4 * 4, 16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            x = x.unsqueeze(0)
        if x.shape[1] != 3:
            raise ValueError(f"expected 3 channels, got {x.shape[1]}")
        x = F.relu(self.conv(x))
        if x.shape[-1] > 4:
            x = F.avg_pool2d(x, x.shape[-1] // 4)
        b, c, h, w = x.shape
        x = x.reshape(b, c * h * w)
        x = F.relu(self.fc1(x))
        assert x.ndim == 2
        return self.fc2(x.flatten(1))


class PaddingModes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.circular = nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular")
        self.reflect = nn.Conv2d(6, 6, 3, padding=1, stride=2, padding_mode="reflect")
        self.replicate = nn.Conv2d(6, 6, 3, padding=(1, 2), padding_mode="replicate")
        self.zero = nn.Sequential(nn.ZeroPad2d((1, 0, 1, 0)), nn.Conv2d(6, 6, 3, padding="same"))
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.circular(x))
        x = F.relu(self.reflect(x))
        x = F.relu(self.replicate(x))
        x = F.relu(self.zero(F.pad(x, (0, 1, 0, 1), value=0.25)))
        return self.fc(x.mean((-2, -1)))


class UpsampleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 3 * 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.down(x))
        x = F.relu(self.conv(self.up(x)))
        x = F.interpolate(x, size=(6, 6), mode="nearest")
        x = F.avg_pool2d(F.interpolate(x, scale_factor=2.0), kernel_size=4)
        return self.fc(x.flatten(1))


class Abs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.abs(x)


class SmoothActivations(nn.Module):
    """A residual stack with a different scalar activation at every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.activations = nn.ModuleList(
            [
                nn.ELU(alpha=0.7),
                nn.SELU(),
                nn.SiLU(),
                nn.Softplus(beta=2.0),
                nn.Sigmoid(),
                nn.Hardswish(),
                nn.Hardsigmoid(),
                nn.PReLU(6, init=0.2),
                nn.LeakyReLU(0.05),
                Abs(),
                nn.Hardtanh(-0.8, 1.2),
            ]
        )
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in self.activations])
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = x + 0.5 * activation(layer(x))
        return self.head(x.clamp(min=-0.5, max=2.0))


class MaximumMinimum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(8, 12)
        self.right = nn.Linear(8, 12)
        self.mid = nn.Linear(12, 10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.maximum(self.left(x), self.right(x))
        x = self.mid(x)
        x = torch.minimum(x, -0.3 * x + 0.1)
        return self.head(x)


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Conv1d(3, 6, k, padding=k // 2) for k in (1, 3, 5)])
        self.token = nn.Linear(6, 4)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 1)
        stacked = torch.stack([F.relu(branch(x)) for branch in self.branches], dim=1)
        x = stacked.mean(1) + stacked.sum(dim=1) * 0.1
        x = self.token(x.transpose(1, 2)).relu()
        x = x.unsqueeze(1).squeeze(1)
        x = torch.cat([x.sum(dim=1), x.mean(dim=1, keepdim=True).squeeze(1)], dim=1)
        return self.head(x)


def _dropout_identity() -> nn.Module:
    return nn.Sequential(
        nn.Identity(),
        nn.Dropout2d(0.3),
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.AlphaDropout(0.2),
        nn.ReLU(),
        nn.Identity(),
        nn.Linear(16, 4),
    )


WILD: list[Wild] = [
    Wild("resnet18_bn", _seeded(lambda: _kaiming(ResNet18(width=8))), (3, 16, 16)),
    Wild("densenet_block", _seeded(lambda: _kaiming(DenseNet())), (3, 8, 8)),
    Wild("mobilenet_v2_block", _seeded(lambda: _kaiming(MobileNetV2())), (3, 8, 8)),
    Wild("lenet5_tanh", _seeded(LeNet5), (1, 28, 28)),
    Wild("vgg_maxpool", _seeded(lambda: _kaiming(VGG())), (3, 16, 16)),
    Wild("mlp_gelu", _seeded(_mlp_gelu), (20,)),
    Wild("conv1d_net", _seeded(Conv1dNet), (2, 30)),
    Wild("autoencoder", _seeded(lambda: _kaiming(AutoEncoder())), (1, 8, 8), classifier=False),
    Wild("functional_only", _seeded(FunctionalOnly), (3, 8, 8)),
    Wild("shared_weights", _seeded(SharedWeights), (8,)),
    Wild("weight_normed", _seeded(_weight_normed), (3, 8, 8)),
    Wild("old_weight_norm", _seeded(_old_weight_norm), (10,)),
    Wild("nested_containers", _seeded(NestedContainers), (3, 8, 8)),
    Wild("constants_and_buffers", _seeded(ConstantsAndBuffers), (3, 6, 6)),
    Wild("static_shape_branch", _seeded(StaticShapeBranch), (3, 8, 8)),
    Wild("padding_modes", _seeded(lambda: _kaiming(PaddingModes())), (3, 8, 8)),
    Wild("upsample_net", _seeded(UpsampleNet), (1, 8, 8)),
    Wild("smooth_activations", _seeded(SmoothActivations), (6,)),
    Wild("conv3d_net", _seeded(Conv3dNet), (1, 6, 6, 6)),
    Wild("maximum_minimum", _seeded(MaximumMinimum), (8,)),
    Wild("stacked", _seeded(Stacked), (8, 3)),
    Wild("dropout_identity", _seeded(_dropout_identity), (1, 6, 6)),
]
