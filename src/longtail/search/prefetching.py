"""ARRAY, PLACE → CACHE: compiled code asks the memory for what it will read soon, and waits once, not each time."""

from __future__ import annotations

from typing import Any

from longtail.machine import compiles


def nothing(array: Any, place: int) -> None:
    """Ask for nothing: plain Python is so slow that memory never is."""


prefetch: Any = nothing
if compiles():
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    def _prefetch(_typing: Any, array: Any, place: Any) -> Any:
        """Write the instruction for the first entry behind a place of an array; the place is not checked."""

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            address = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
            function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
            builder.call(function, [address, number(0), number(3), number(1)])  # to read, into every cache, of data
            return context.get_dummy_value()

        return types.void(array, place), code

    prefetch = intrinsic(_prefetch)
