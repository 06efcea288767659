// What the Rust side, the runtime and the translated kernels share. `mod.rs` holds the same structs.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;

// A buffer as one dispatch sees it.
struct LilyBuffer {
  unsigned char* base;
  ulong size;          // bytes from base that may be touched
  ulong bytes[2];      // loaded, stored: every lane's access
  unsigned char* lines[2]; // one bit for each 128-byte line loaded, stored; null: not wanted
  const char* name;    // of the argument
};

struct LilyArguments {
  LilyBuffer buffer[31];
  const void* value[31];
};

struct LilyThread;
struct LilyKernel {
  const char* name;
  void (*run)(LilyArguments*, LilyThread*);
};
struct LilyConstant {
  const char* name;
  void* address;
};
// A function constant (4 bytes) as one dispatch wants it.
struct LilySetting {
  void* address;
  uint value;
};
struct LilyLayout {
  const char* name;
  const char* field;
  size_t offset;
  size_t size;
};
