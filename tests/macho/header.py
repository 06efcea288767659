"""Reads a Mach-O file's header: an arm64 program for macOS 15.0, signed, with the libraries that are expected."""
import struct
import sys

EXPECTED = ("/usr/lib/", "/System/Library/Frameworks/")

with open(sys.argv[1], "rb") as file:
    data = file.read()
magic, cpu, _, kind, commands, _, _, _ = struct.unpack_from("<8I", data)
assert magic == 0xFEEDFACF, f"magic {magic:#x}: not a 64-bit Mach-O file"
assert cpu == 0x0100000C, f"processor {cpu:#x}: not arm64"
assert kind == 2, f"type {kind}: not a program"

at, libraries, oldest, signed = 32, [], None, False
for _ in range(commands):
    command, size = struct.unpack_from("<2I", data, at)
    if command == 0x32:  # LC_BUILD_VERSION
        platform, version = struct.unpack_from("<2I", data, at + 8)
        assert platform == 1, f"platform {platform}: not macOS"
        oldest = f"{version >> 16}.{version >> 8 & 255}"
    elif command in (0xC, 0x80000018):  # LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB
        name = data[at + struct.unpack_from("<I", data, at + 8)[0] : at + size]
        libraries.append(name.split(b"\0")[0].decode())
    elif command == 0x1D:  # LC_CODE_SIGNATURE
        signed = True
    at += size
assert oldest == "15.0", f"oldest macOS {oldest}, wanted 15.0"
assert signed, "no signature: an Apple processor does not run it"
for library in libraries:
    assert library.startswith(EXPECTED), f"{library} is not a library of the system"
print(f"Mach-O arm64 program for macOS {oldest} or later, {len(data) / 1e6:.0f} MB, signed;", *libraries)
