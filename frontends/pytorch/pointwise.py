"""ATen ops of one element at a time: see `pytorch.formulas`."""

import math
from typing import Any

from pcp.frontends.pytorch.formula import Formula, Formulas


class Pointwise(Formulas):
    """Activations, bounds, and functions with a point where the formula has none."""

    inside_atan2 = False

    def table(self) -> dict[Any, Formula]:
        """The formula of each op."""
        aten = self.aten
        return {
            aten.abs.default: self.abs,
            aten.asinh.default: self.asinh,
            aten.atan2.default: self.atan2,
            aten.celu.default: self.celu,
            aten.clamp.Tensor: self.clamp,
            aten.clamp.default: self.clamp,
            aten.clamp_max.Tensor: self.clamp_max,
            aten.clamp_max.default: self.clamp_max,
            aten.clamp_min.Tensor: self.clamp_min,
            aten.clamp_min.default: self.clamp_min,
            aten.copysign.Scalar: self.copysign,
            aten.copysign.Tensor: self.copysign,
            aten.elu.default: self.elu,
            aten.fmax.default: self.fmax,
            aten.fmin.default: self.fmin,
            aten.fmod.Scalar: self.fmod,
            aten.hardsigmoid.default: self.hardsigmoid,
            aten.hardswish.default: self.hardswish,
            aten.hardtanh.default: self.hardtanh,
            aten.leaky_relu.default: self.leaky_relu,
            aten.log_sigmoid_forward.default: self.log_sigmoid_forward,
            aten.logaddexp.default: self.logaddexp,
            aten.logaddexp2.default: self.logaddexp2,
            aten.relu.default: self.relu,
            aten.sinc.default: self.sinc,
            aten.softplus.default: self.softplus,
            aten.xlogy.Tensor: self.xlogy,
        }

    def relu(self, x: Any) -> Any:
        """threshold_backward: nothing at 0."""
        return self.torch.where(x <= 0, 0, x)

    def hardtanh(self, x: Any, low: float = -1, high: float = 1) -> Any:
        """hardtanh_backward: nothing at either bound."""
        where = self.torch.where
        return where(x <= low, low, where(x >= high, high, x))

    def hardsigmoid(self, x: Any) -> Any:
        """hardsigmoid_backward: nothing at either bound."""
        where = self.torch.where
        return where(x <= -3, 0, where(x >= 3, 1, x / 6 + 0.5))

    def hardswish(self, x: Any) -> Any:
        """hardswish_backward: nothing at -3, the identity at 3."""
        where = self.torch.where
        near = (x > -3) & (x < 3)
        curve = where(near, x, 0)
        far = where(x <= -3, self.stop(x) * 0, x)  # NaN at -inf, as torch
        return where(near, curve * (curve + 3) / 6, far)

    def leaky_relu(self, x: Any, slope: float = 0.01) -> Any:
        """leaky_relu_backward: the slope at 0."""
        return self.torch.where(x > 0, x, x * slope)

    def elu(self, x: Any, alpha: float = 1, scale: float = 1, inner: float = 1) -> Any:
        """elu_backward: of the exponential at 0, which only sees what is below."""
        below = x <= 0
        exponent = self.torch.where(below, x, 0) * inner
        return self.torch.where(
            below, self.torch.expm1(exponent) * (alpha * scale), x * scale
        )

    def celu(self, x: Any, alpha: float = 1) -> Any:
        """elu_backward, as celu has it."""
        return self.elu(x, alpha, 1, 1 / alpha)

    def softplus(self, x: Any, beta: float = 1, threshold: float = 20) -> Any:
        """softplus_backward: the identity above, where the exponential overflows."""
        above = x * beta > threshold
        exponent = self.torch.where(above, 0, x) * beta
        return self.torch.where(above, x, self.torch.exp(exponent).log1p() / beta)

    def log_sigmoid_forward(self, x: Any) -> Any:
        """log_sigmoid_backward: smooth at 0, where min(x, 0) and |x| are not."""
        negative = x < 0
        z = self.torch.exp(self.torch.where(negative, x, -x))
        value = self.torch.where(negative, x, 0) - self.torch.log1p(z)
        return value, self.stop(z)

    def abs(self, x: Any) -> Any:
        """grad * self.sgn(): nothing at 0."""
        return x * self.torch.sign(x)

    def clamp(self, x: Any, low: Any = None, high: Any = None) -> Any:
        """clamp_backward: the bounds belong to the inside; the upper one wins."""
        if low is not None:
            x = self.clamp_min(x, low)
        return x if high is None else self.clamp_max(x, high)

    def clamp_min(self, x: Any, low: Any) -> Any:
        """where(self >= min, grad, 0)."""
        below = x < low
        if isinstance(low, self.torch.Tensor):
            below = below | self.torch.isnan(low)
        return self.torch.where(below, low, x)

    def clamp_max(self, x: Any, high: Any) -> Any:
        """where(self <= max, grad, 0)."""
        above = x > high
        if isinstance(high, self.torch.Tensor):
            above = above | self.torch.isnan(high)
        return self.torch.where(above, high, x)

    def fmax(self, x: Any, y: Any) -> Any:
        """fmax: the first at a tie, and where the second is NaN."""
        return self.torch.where((x >= y) | self.torch.isnan(y), x, y)

    def fmin(self, x: Any, y: Any) -> Any:
        """fmin: the first at a tie, and where the second is NaN."""
        return self.torch.where((x <= y) | self.torch.isnan(y), x, y)

    def copysign(self, x: Any, y: Any) -> Any:
        """copysign_tensor_self_backward: nothing at 0."""
        torch, size = self.torch, self.abs(x)
        return torch.where(torch.signbit(self._tensor(x, y)), -size, size)

    def logaddexp(self, x: Any, y: Any) -> Any:
        """grad / (1 + exp(other - self)), smooth where the two are equal."""
        return self._logaddexp(x, y, 1.0)

    def logaddexp2(self, x: Any, y: Any) -> Any:
        """As `logaddexp`, of powers of two."""
        return self._logaddexp(x, y, math.log(2))

    def _logaddexp(self, x: Any, y: Any, unit: float) -> Any:
        torch = self.torch
        infinite = (x == y) & torch.isinf(x)
        far = self.abs(torch.where(infinite, 0, x - y))
        more = torch.log1p(torch.exp(far * -unit)) / unit
        return torch.where(infinite, x, torch.maximum(x, y) + more)

    def xlogy(self, x: Any, y: Any) -> Any:
        """self * log(other), 0 where self is and the logarithm is not finite."""
        torch = self.torch
        out = (x == 0) & ((y <= 0) | torch.isinf(y))
        return x * torch.log(torch.where(out, 1, y))

    def sinc(self, x: Any) -> Any:
        """sinc_backward: nothing at 0."""
        torch, zero = self.torch, x == 0
        angle = torch.where(zero, 1, x) * math.pi
        return torch.where(zero, 1, torch.sin(angle) / angle)

    def atan2(self, x: Any, y: Any) -> Any:
        """atan2_backward: nothing where both are 0, whose angle their signs say."""
        torch, zero = self.torch, (x == 0) & (y == 0)
        if self.inside_atan2:
            return NotImplemented
        self.inside_atan2 = True
        try:
            angle = torch.atan2(x, torch.where(zero, 1, y))
            fixed = torch.atan2(self.stop(x), self.stop(y))
        finally:
            self.inside_atan2 = False
        return torch.where(zero, fixed, angle)

    def asinh(self, x: Any) -> Any:
        """grad / sqrt(x^2 + 1): smooth at 0, and without squares that overflow."""
        torch, negative = self.torch, x < 0
        size = torch.where(negative, -x, x)
        large = size > torch.finfo(x.dtype).max ** 0.5 / 2
        near = torch.where(large, 0, size)
        near = torch.log1p(near + near * near / (1 + torch.sqrt(1 + near * near)))
        distant = torch.log(torch.where(large, size, 1)) + math.log(2)
        value = torch.where(large, distant, near)
        return torch.where(negative, -value, value)

    def fmod(self, x: Any, y: Any) -> Any:
        """By a number: torch-mlir knows that by a tensor only."""
        return self.torch.fmod(x, self._tensor(x, y))

    def _tensor(self, x: Any, y: Any) -> Any:
        is_tensor = isinstance(y, self.torch.Tensor)
        return y if is_tensor else self.torch.full_like(x, y)

    def remainder(self, x: Any, y: Any) -> Any:
        """The sign of the divisor, where torch-mlir gives that of the dividend."""
        torch = self.torch
        if not torch.result_type(x, y).is_floating_point:
            return x - torch.div(x, y, rounding_mode="floor") * y
        rest = torch.fmod(x, self._tensor(x, y))
        other = (rest != 0) & ((rest < 0) != (y < 0))
        return torch.where(other, rest + y, rest)
