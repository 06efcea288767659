"""Pack model.safetensors (bf16) about a third smaller by splitting the two bytes of every value, and back; only the standard library.

python3 pack_planes.py pack   model.safetensors model.safetensors.planes
python3 pack_planes.py unpack model.safetensors.planes model.safetensors
"""

import lzma, struct, sys


def pack(src, dst):
    b = open(src, "rb").read()
    n = 8 + struct.unpack("<Q", b[:8])[0]
    d = b[n:]
    assert len(d) % 2 == 0
    hi = lzma.compress(d[1::2], preset=6)
    with open(dst, "wb") as f:
        f.write(struct.pack("<QQ", n, len(hi)) + b[:n] + hi + d[0::2])


def unpack(src, dst):
    b = open(src, "rb").read()
    n, h = struct.unpack("<QQ", b[:16])
    hi = lzma.decompress(b[16 + n : 16 + n + h])
    lo = b[16 + n + h :]
    d = bytearray(len(hi) + len(lo))
    d[0::2], d[1::2] = lo, hi
    with open(dst, "wb") as f:
        f.write(b[16 : 16 + n] + d)


if __name__ == "__main__":
    dict(pack=pack, unpack=unpack)[sys.argv[1]](*sys.argv[2:4])
