"""Names of operations that work on each number separately.

Torch tags such operations too, but differently in each version, and it tags some that are not: `equal` compares whole
tensors, `rrelu` draws.
"""

POINTWISE = frozenset(
    (
        "__and", "__iand", "__ilshift", "__ior", "__irshift", "__ixor", "__lshift", "__or", "__rshift", "__xor",
        "_conj", "_conj_physical", "_neg_view", "_prelu_kernel", "abs", "acos", "acosh", "add", "addcdiv",
        "addcmul", "angle", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_left_shift",
        "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "celu", "clamp", "clamp_max",
        "clamp_min", "clip", "clone", "complex", "conj_physical", "copysign", "cos", "cosh", "deg2rad", "digamma",
        "div", "elu", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "float_power", "floor", "floor_divide",
        "fmax", "fmin", "fmod", "frac", "gcd", "ge", "gelu", "gt", "hardshrink", "hardsigmoid", "hardswish",
        "hardtanh", "heaviside", "hypot", "i0", "igamma", "igammac", "isfinite", "isinf", "isnan", "isneginf",
        "isposinf", "lcm", "ldexp", "le", "leaky_relu", "lerp", "lgamma", "log", "log10", "log1p", "log2",
        "log_sigmoid", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor",
        "logit", "lt", "masked_fill", "maximum", "minimum", "mish", "mul", "mvlgamma", "nan_to_num", "ne", "neg",
        "nextafter", "polar", "polygamma", "positive", "pow", "prelu", "rad2deg", "reciprocal", "relu", "relu6",
        "remainder", "round", "rsqrt", "rsub", "selu", "sgn", "sigmoid", "sign", "signbit", "silu", "sin", "sinc",
        "sinh", "softplus", "softshrink", "special_airy_ai", "special_bessel_j0", "special_bessel_j1",
        "special_bessel_y0", "special_bessel_y1", "special_chebyshev_polynomial_t",
        "special_chebyshev_polynomial_u", "special_chebyshev_polynomial_v", "special_chebyshev_polynomial_w",
        "special_entr", "special_erfcx", "special_hermite_polynomial_h", "special_hermite_polynomial_he",
        "special_i0e", "special_i1", "special_i1e", "special_laguerre_polynomial_l",
        "special_legendre_polynomial_p", "special_log_ndtr", "special_modified_bessel_i0",
        "special_modified_bessel_i1", "special_modified_bessel_k0", "special_modified_bessel_k1", "special_ndtri",
        "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
        "special_shifted_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_u",
        "special_shifted_chebyshev_polynomial_v", "special_shifted_chebyshev_polynomial_w",
        "special_spherical_bessel_j0", "special_xlog1py", "special_zeta", "sqrt", "square", "sub", "tan", "tanh",
        "threshold", "true_divide", "trunc", "where", "xlogy",
    )
)  # fmt: skip
