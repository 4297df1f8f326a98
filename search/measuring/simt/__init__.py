"""CUDA kernels checked without a GPU: their generated source runs under g++, one fiber per CUDA thread.

``source`` turns CUDA text into C++, ``excerpts`` cuts TileLang's own collective out of the installed package,
``toolchain`` finds g++ and CUDA's headers and precompiles ours, ``build`` makes shared libraries, ``child`` runs them
against the oracle, ``run`` is what callers hold. See docs/reference/cuda-simulation.md.
"""
