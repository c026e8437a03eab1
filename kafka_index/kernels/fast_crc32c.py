"""CRC-32C in machine code of our own, for what x86 processors of different ages can do.

Two methods are faster than google-crc32c on batches, which are short: ``vpclmulqdq``
(`kafka_index.kernels.crc32c_folding`) and ``pclmulqdq`` (`kafka_index.kernels.crc32c_streams`).
"""

from __future__ import annotations

from kafka_index.kernels.crc32c_folding import folding_source
from kafka_index.kernels.crc32c_streams import streams_source
from kafka_index.kernels.machine_code import compile_function, host_has

#: The methods, the fastest first, and the CPU features that each needs, by LLVM's names.
METHODS = {
    "vpclmulqdq": ("sse4.2", "pclmul", "vpclmulqdq", "avx512f"),
    "pclmulqdq": ("sse4.2", "pclmul"),
}


def supported_methods() -> list[str]:
    """Return the methods that this CPU has the instructions for, the fastest first."""
    return [method for method, features in METHODS.items() if host_has(*features)]


def fast_crc32c_address(method: str, library_address: int) -> int:
    """Compile ``uint32 (uint32 crc, address, size)``.

    Parameters
    ----------
    method : str
        One that this CPU supports.
    library_address : int
        The same function of google-crc32c.
    """
    name = f"kafka_index_crc32c_{method}"
    source = (
        folding_source(name) if method == "vpclmulqdq" else streams_source(name, library_address)
    )
    return compile_function(name, source)
