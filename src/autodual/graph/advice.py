"""What to do about an operation that cannot be bounded: what to use instead, or why there is nothing.

One table, by operation. Names are compared without case and underscores, so that `nn.LogSoftmax`, `F.log_softmax` and
`x.log_softmax` are one operation; an operation in place (`exp_`) is the one that it stands for.
"""

from __future__ import annotations

LAST_SOFTMAX = (
    "Leave it out if it only turns scores into probabilities: the largest score stays the largest, so the labels are the same, and "
    "the losses of PyTorch and of this library take scores. Inside a network, it is supported"
)
"""For a softmax that a network ends in."""
NOT_YET = "It cannot be bounded yet"
ONE_VARIABLE = f"{NOT_YET}, but a smooth function of one variable can be declared as a CurvedDual, in 20 lines"
JUMP = "It jumps, so its gradient says nothing and a bound of it is loose"
ORDER = "Which values it picks depends on the input"
PICK = "Positions that are known beforehand can be indexed, as in x[:, [0, 2]]"

ADVICE: dict[str, str] = {
    "gumbel_softmax": "It is random: a certificate is about one function. Use softmax, which is supported inside a network",
    (
        "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
        "binary_cross_entropy_with_logits"
    ): (
        "Bound the scores, not the loss: return what the loss is computed from; for training, see ad.RobustCrossEntropy"
    ),
    ("erfc softsign xlogy logit erfinv lgamma asin arcsin acos arccos acosh arccosh atanh arctanh"): (
        f"{ONE_VARIABLE}. As an activation, use Softplus, ELU, GELU, SiLU or Tanh"
    ),
    "float_power": "It computes in float64. Use x ** exponent, which is supported for a constant exponent",
    "deg2rad rad2deg": "Multiply by the constant instead, which is supported",
    "sin cos tan sinc": (
        "It is neither convex nor concave over intervals of any width, so there is no band around it yet. As an activation, use"
        " Tanh; of positions, which do not depend on the input, compute it outside of forward"
    ),
    "floor_divide remainder fmod": f"{JUMP}. x / y without rounding is supported",
    "local_response_norm renorm": (
        f"{NOT_YET}. LayerNorm, GroupNorm, InstanceNorm, RMSNorm and F.normalize are supported, and so is BatchNorm in eval mode"
    ),
    "cosine_similarity": f"{NOT_YET} in one piece. Write (F.normalize(x, dim=d) * F.normalize(y, dim=d)).sum(d), which is supported",
    "cdist pairwise_distance hypot dist lp_pool1d lp_pool2d lp_pool3d": (
        f"{NOT_YET} in one piece. Write torch.linalg.vector_norm(x - y, dim=d), which is supported"
    ),
    "cov corrcoef": f"{NOT_YET} in one piece. x.var, x.mean, products and sums are supported",
    ("bilinear outer cross dot inner vdot tensordot kron addbmm linalg_multi_dot matrix_power prod cumprod mv addmv"): (
        f"{NOT_YET} in one piece. Write it by x * y, x @ y or torch.einsum, which are supported"
    ),
    "rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell": (
        "It runs as one operation. The modules nn.RNN, nn.LSTM and nn.GRU with batch_first=True are written out step by step; a "
        "cell can be written with Linear, torch.sigmoid, torch.tanh and products"
    ),
    "multi_head_attention_forward _native_multi_head_attention _transformer_encoder_layer_fwd": (
        "It runs as one operation. Use nn.MultiheadAttention(batch_first=True) or F.scaled_dot_product_attention, which are supported"
    ),
    "embedding embedding_bag one_hot": (
        "It looks up integers, and integers have no ball around them. Certify from the embedded values on: make them the input,"
        " and leave the embedding outside"
    ),
    "long int short byte bool char": (
        "It makes integers, which have no ball around them. Keep floating-point values, or do this outside of the module that "
        "you certify"
    ),
    "argmax argmin max_indices": "Return the scores: certify() takes the largest of them itself",
    "topk kthvalue sort msort argsort median nanmedian quantile mode unique nonzero searchsorted bucketize": (
        f"{ORDER}. For the largest or smallest value, x.amax and x.amin are supported"
    ),
    (
        "gt lt ge le eq ne greater less greater_equal less_equal logical_and logical_or logical_not isnan isfinite isinf sign "
        "sgn heaviside signbit hardshrink"
    ): (
        f"{JUMP}. Say it by ReLU, abs, clamp, torch.maximum or torch.minimum: where(x > 0, x, 0) is relu(x), where(a > b, a, b) "
        "is torch.maximum(a, b)"
    ),
    "floor ceil round trunc frac fix fake_quantize_per_tensor_affine quantize_per_tensor": (
        f"{JUMP}. Certify the network without rounding of its values, or move it out, before the input or after the output"
    ),
    "masked_select masked_scatter": (
        "A mask that depends on the input makes it jump; say it by ReLU, abs, clamp or torch.maximum. A constant mask can index, as "
        "in x[:, mask], and torch.where takes one"
    ),
    "threshold _threshold": (
        f"{JUMP} unless it goes on where it ends: use ReLU for Threshold(0, 0), and clamp(min=t) for a floor"
    ),
    "rrelu": "It draws its slope; use LeakyReLU with the mean slope, which is what it is in eval mode",
    "bernoulli multinomial normal poisson rand_like randn_like feature_alpha_dropout feature_dropout": (
        "It is random: a certificate is about one function. Call model.eval(), or leave the noise out of the module that you "
        "certify"
    ),
    (
        "trace diag diag_embed flipud nanmean nansum count_nonzero hsplit vsplit dsplit tensor_split as_strided im2col col2im"
    ): (
        "It is linear, and only waits for somebody to write it. Until then, write it by slices, torch.cat, torch.stack, sums, "
        "or a product with a constant matrix (x @ matrix), which are supported"
    ),
    "repeat_interleave": "Use unsqueeze, expand and reshape, or x.repeat",
    "gather take take_along_dim scatter scatter_add index_add index_copy index_put index_fill": (
        f"{PICK}; positions that depend on the input cannot be bounded"
    ),
    "logcumsumexp": f"{NOT_YET}. logsumexp is supported",
    "grid_sample affine_grid max_unpool1d max_unpool2d max_unpool3d fractional_max_pool2d fractional_max_pool3d": (
        f"{ORDER}. Use interpolate, MaxPool or AvgPool, whose places are fixed"
    ),
    "complex view_as_complex view_as_real polar angle stft istft real imag Tensor.real Tensor.imag": (
        "Complex values have no bounds here. A Fourier transform is linear: write its real and imaginary parts as products with"
        " constant matrices of cosines and sines (x @ matrix)"
    ),
    (
        "inverse linalg_inv linalg_solve det linalg_det svd linalg_svd qr linalg_qr linalg_eigh cholesky linalg_cholesky "
        "pinverse matrix_exp"
    ): (
        "It is no composition of affine maps and activations, and has no bound. Of weights, it may be computed in forward; of "
        "what depends on the input, it may not"
    ),
    "Tensor.data": "It leaves the graph; leave it out, values are the same without it",
    "nan_to_num": "Leave it out: a certificate is only given where all values are finite",
    "Tensor.T Tensor.mT Tensor.H Tensor.mH t": "Use x.transpose(1, 2), which leaves dimension 0, the batch, in its place",
}
"""Names of operations, and what to do about them."""


def _key(name: str) -> str:
    return name.lower().replace("_", "")


_BY_KEY = {_key(name): text for names, text in ADVICE.items() for name in names.split()}
_PREFIXES = {"fft_": _BY_KEY["complex"], "special_": ONE_VARIABLE}


def advice_about(name: str) -> str | None:
    """What to do about an operation that has no dual layer; None where nobody has thought about it yet."""
    exact = _BY_KEY.get(_key(name))
    return exact or next((text for prefix, text in _PREFIXES.items() if name.startswith(prefix)), None)


def same_name(name: str, others: list[str]) -> str | None:
    """The one that is spelt alike but for case and underscores: `celu_` is celu. Words that only look alike are other operations."""
    return next((other for other in sorted(others) if _key(other) == _key(name)), None)
