"""Powers of two by a polynomial: unlike the library's exp, LLVM turns it into vector code."""

from typing import Any

import numpy as np

from pagedrun.kernels.cpu.jit import part

LOG2_E = np.float32(1.4426950408889634)

# Weighted least squares fit of 2^f - 1 over |f| <= 1/2; relative error 2e-9 before rounding.
C1 = np.float32(0.6931471824645996)
C2 = np.float32(0.24022647738456726)
C3 = np.float32(0.055503323674201965)
C4 = np.float32(0.009618437848985195)
C5 = np.float32(0.0013398878509178758)
C6 = np.float32(0.00015353357593994588)
LOW = np.float32(-127.0)
HIGH = np.float32(127.0)


@part()
def exp2(x: Any) -> Any:
    """Return 2^x for a float32 x; relative error 2e-7, 0 from -127 down, 2^127 from 127 up.

    NaN stays NaN.
    """
    x = LOW if x < LOW else x
    x = HIGH if x > HIGH else x
    whole = np.floor(x + np.float32(0.5))
    f = x - whole
    p = C5 + f * C6
    p = C4 + f * p
    p = C3 + f * p
    p = C2 + f * p
    p = C1 + f * p
    p = np.float32(1.0) + f * p
    exponent = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))  # 0 at -127: gives 0.0
    return p * exponent.view(np.float32)
