"""Compiles a CUDA source for sm_90a with NVRTC, which needs no GPU. Usage: nvrtc.py SOURCE [-DNAME=VALUE ...]"""
import ctypes
import glob
import os
import sys
import time

import nvidia


def library():
    for folder in nvidia.__path__:
        found = glob.glob(os.path.join(folder, "**", "libnvrtc.so.*"), recursive=True)
        if found:
            # It looks for this one by name when it compiles.
            for builtins in glob.glob(os.path.join(os.path.dirname(found[0]), "libnvrtc-builtins.so.*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(found[0])
    sys.exit("the package nvidia-cuda-nvrtc holds no libnvrtc")


nvrtc = library()
program = ctypes.c_void_p()
with open(sys.argv[1], "rb") as file:
    source = file.read()
if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None):
    sys.exit("nvrtcCreateProgram failed")
options = [b"-arch=sm_90a", b"-std=c++17", b"-default-device", b"--fmad=false", b"-w"] + [o.encode() for o in sys.argv[2:]]
begin = time.time()
failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
size = ctypes.c_size_t()
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
if failed:
    sys.exit(log.value.decode()[:8000])
nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
kernels = source.count(b'extern "C" __global__')
print(f"{kernels} kernels, {size.value / 1e6:.1f} MB for sm_90a in {time.time() - begin:.0f} s")
