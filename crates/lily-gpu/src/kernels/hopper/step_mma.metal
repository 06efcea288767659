// Products of decoded tokens on the matrix units of NVIDIA GPUs: the twins of affine_gemv and moe_step for codes of 4 and 8 bits.
//
// A code is exact in BF16, and a value of x is the sum of three BF16 parts, so that mma, which multiplies BF16 exactly and sums
// in F32, is as good as F32: the three parts are three of the eight columns that an instruction has. A simdgroup takes 256
// columns of a tile of 16 rows and asks for all of its codes at once; the simdgroups of a threadgroup share the columns.
//
// Weights are asked for before the kernel waits for the one before it (EARLY_END in common.metal).
#define STEP_COLUMNS 256u
#define STEP_TILE 16u
// From one part of 256 columns to the next, in uint4; one over them, against bank conflicts.
#define STEP_PITCH 33u
#define STEP_PARTS (3u * STEP_PITCH)

struct StepMatrix {
  device const uint2* codes;
  device const uint2* scales; // four groups' in each
  device const uint2* biases;
};

// A lane's codes of rows lane / 4 and lane / 4 + 8: 16 of each group of 64.
template <int BITS>
struct StepTile {
  uint2 codes[2][4][BITS / 4];
  uint2 scales[2];
  uint2 biases[2];
};

// `live`: rows from row0 on that there are; the rest is zero.
template <int BITS>
inline void step_load(
    thread StepTile<BITS>& t, thread const StepMatrix& m, ulong row0, uint live, uint columns, uint column0, uint lane) {
  UNROLL for (int h = 0; h < 2; h++) {
    const uint r = lane / 4 + uint(h) * 8;
    t.scales[h] = uint2(0u);
    t.biases[h] = uint2(0u);
    UNROLL for (int q = 0; q < 4; q++)
      UNROLL for (int i = 0; i < BITS / 4; i++) t.codes[h][q][i] = uint2(0u);
    if (r < live) {
      const ulong at = (row0 + r) * columns + column0;
      UNROLL for (int q = 0; q < 4; q++) {
        const ulong from = at / 16 + uint(q) * 4 + lane % 4;
        if (BITS == 4) {
          t.codes[h][q][0] = m.codes[from];
        } else {
          const uint4 u = ((device const uint4*)m.codes)[from];
          t.codes[h][q][0] = uint2(u[0], u[1]);
          t.codes[h][q][BITS / 4 - 1] = uint2(u[2], u[3]);
        }
      }
      t.scales[h] = m.scales[at / 256];
      t.biases[h] = m.biases[at / 256];
    }
  }
}

// Codes i and i + 4 of the eight of half w, as BF16.
template <int BITS>
inline uint step_pair(thread const uint2* codes, int w, int i) {
  if (BITS == 4) return lily_code2(((codes[0][w] >> (4 * i)) & 0x000f000fu) | 0x43004300u);
  const uint2 u = codes[w * (BITS / 4 - 1)];
  return lily_pack2(float((u[0] >> (8 * i)) & 255u), float((u[1] >> (8 * i)) & 255u));
}

// A lane's eight columns of x, times the norm's weight, to `parts`; returns the sum over its group of 64.
inline float step_x(device const float* x, bool norm, thread const float4* weight, threadgroup uint4* parts, uint lane) {
  float v[8];
  UNROLL for (int i = 0; i < 2; i++) {
    float4 a = ((device const float4*)x)[lane * 2 + uint(i)];
    if (norm) a = a * weight[i];
    UNROLL for (int j = 0; j < 4; j++) v[4 * i + j] = a[j];
  }
  float sum = 0.0f;
  UNROLL for (int j = 0; j < 8; j++) sum += v[j];
  UNROLL for (int p = 0; p < 3; p++) {
    uint4 u;
    UNROLL for (int j = 0; j < 4; j++) {
      u[j] = lily_pack2(v[j], v[j + 4]);
      v[j] -= as_type<float>(u[j] << 16);
      v[j + 4] -= as_type<float>(u[j] & 0xffff0000u);
    }
    parts[uint(p) * STEP_PITCH + lane] = u;
  }
  sum += simd_shuffle_xor(sum, 1);
  sum += simd_shuffle_xor(sum, 2);
  sum += simd_shuffle_xor(sum, 4);
  return sum;
}

// Products of the tile's rows lane / 4 and lane / 4 + 8 with the 256 columns, in all lanes of the row.
template <int BITS>
inline void step_multiply(
    thread const StepTile<BITS>& t, threadgroup const uint4* parts, float group_sum, uint lane, thread float (&y)[2]) {
  const uint n = lane / 4, k = lane % 4;
  float total[4];
  UNROLL for (int e = 0; e < 4; e++) total[e] = 0.0f;
  UNROLL for (int q = 0; q < 4; q++) {
    float acc[4];
    UNROLL for (int e = 0; e < 4; e++) acc[e] = 0.0f;
    UNROLL for (int w = 0; w < 2; w++) {
      uint4 b = uint4(0u);
      if (n < 3) b = parts[n * STEP_PITCH + uint(q) * 8 + k * 2 + uint(w)];
      UNROLL for (int m = 0; m < 2; m++) {
        uint4 a;
        a[0] = step_pair<BITS>(t.codes[0][q], w, 2 * m);
        a[1] = step_pair<BITS>(t.codes[1][q], w, 2 * m);
        a[2] = step_pair<BITS>(t.codes[0][q], w, 2 * m + 1);
        a[3] = step_pair<BITS>(t.codes[1][q], w, 2 * m + 1);
        lily_mma(acc, a, b[2 * m], b[2 * m + 1]);
      }
    }
    UNROLL for (int e = 0; e < 4; e++) {
      const uint two = t.scales[e / 2][q / 2];
      total[e] = fma(as_type<float>(q % 2 ? two & 0xffff0000u : two << 16), acc[e], total[e]);
    }
  }
  // A lane adds the bias of one of the four groups.
  const float of_group = simd_shuffle(group_sum, ushort(k * 8));
  UNROLL for (int h = 0; h < 2; h++) {
    const uint two = k < 2 ? t.biases[h][0] : t.biases[h][1];
    float v = fma(as_type<float>(k % 2 ? two & 0xffff0000u : two << 16), of_group, total[2 * h] + total[2 * h + 1]);
    v += simd_shuffle_xor(v, 1);
    v += simd_shuffle_xor(v, 2);
    y[h] = v;
  }
}

// The same to rows [16] of this simdgroup.
template <int BITS>
inline void step_rows(
    thread const StepTile<BITS>& t, threadgroup const uint4* parts, float group_sum, uint lane, threadgroup float* rows) {
  float v[2];
  step_multiply<BITS>(t, parts, group_sum, lane, v);
  if (lane % 4 == 0) {
    rows[lane / 4] = v[0];
    rows[lane / 4 + 8] = v[1];
  }
}

inline float step_norm(device const float* partials, uint count, uint width, float eps, uint lane) {
  float sum = 0.0f;
  for (uint i = lane; i < count; i += 32) sum += partials[i];
  return 1.0f / precise::sqrt(simd_sum(sum) / float(width) + eps);
}

// Where a tile stands.
struct StepPlace {
  StepMatrix m;
  uint row0, live, before;
};

inline StepPlace step_place(
    uint tile, constant GemvArgs& args, thread const StepMatrix& m0, thread const StepMatrix& m1,
    thread const StepMatrix& m2, thread const StepMatrix& m3) {
  StepPlace p;
  uint rows = args.rows0, first = 0;
  p.m = m0, p.before = 0;
  if (tile >= args.group3) {
    p.m = m3, rows = args.rows3, first = args.group3, p.before = args.rows0 + args.rows1 + args.rows2;
  } else if (tile >= args.group2) {
    p.m = m2, rows = args.rows2, first = args.group2, p.before = args.rows0 + args.rows1;
  } else if (tile >= args.group1) {
    p.m = m1, rows = args.rows1, first = args.group1, p.before = args.rows0;
  }
  p.row0 = (tile - first) * STEP_TILE;
  p.live = rows - min(rows, p.row0);
  return p;
}

inline uint step_tiles(uint rows) { return (rows + STEP_TILE - 1) / STEP_TILE; }

// Threadgroup memory: `parts` of each simdgroup, `rows` [2 × simdgroups × 16], `scales` [8].
template <int BITS, int DEPTH>
inline void step_gemv(
    thread const StepMatrix& m0, thread const StepMatrix& m1, thread const StepMatrix& m2, thread const StepMatrix& m3,
    device const float* x, device const float* weight, device const float* partials, device float* y, device float* sums,
    constant GemvArgs& args, uint group, uint groups, uint sg, uint lane, threadgroup uint4* parts, threadgroup float* rows,
    threadgroup float* scales) {
  const uint simdgroups = args.columns / STEP_COLUMNS, column0 = sg * STEP_COLUMNS;
  const uint total = step_tiles(args.rows0) + step_tiles(args.rows1) + step_tiles(args.rows2) + step_tiles(args.rows3);
  const bool norm = args.partials > 0;
  StepTile<BITS> tiles[DEPTH];
  UNROLL for (int d = 0; d < DEPTH; d++) {
    const uint tile = group + uint(d) * groups;
    const StepPlace p = step_place(tile, args, m0, m1, m2, m3);
    step_load<BITS>(tiles[d], p.m, p.row0, tile < total ? p.live : 0, args.columns, column0, lane);
  }
  float4 w[2];
  UNROLL for (int i = 0; i < 2; i++) w[i] = norm ? ((device const float4*)(weight + column0))[lane * 2 + uint(i)] : float4(1.0f);
  EARLY_END
  for (uint b = sg; b < args.batch; b += simdgroups) {
    const float scale = norm ? step_norm(partials + ulong(b) * args.partials, args.partials, args.columns, args.eps, lane) : 1.0f;
    if (lane == 0) scales[b] = scale;
  }
  threadgroup uint4* mine = parts + sg * STEP_PARTS;
  uint turn = 0, stage = 0;
  float of_group = 0.0f;
  if (args.batch == 1) of_group = step_x(x + column0, norm, w, mine, lane);
  for (uint first = group; first < total; first += groups * uint(DEPTH)) {
    UNROLL for (int d = 0; d < DEPTH; d++) {
      const uint tile = first + uint(d) * groups;
      if (tile < total) { // the whole threadgroup
        const StepPlace p = step_place(tile, args, m0, m1, m2, m3);
        for (uint b = 0; b < args.batch; b++) {
          if (args.batch > 1) {
            simdgroup_barrier(mem_flags::mem_threadgroup); // the parts' readers have done
            of_group = step_x(x + ulong(b) * args.x_stride + column0, norm, w, mine, lane);
          }
          simdgroup_barrier(mem_flags::mem_threadgroup);
          threadgroup float* now = rows + stage * (simdgroups * STEP_TILE);
          step_rows<BITS>(tiles[d], mine, of_group, lane, now + sg * STEP_TILE);
          if (b + 1 == args.batch) {
            const uint next = tile + uint(DEPTH) * groups;
            if (next < total) {
              const StepPlace n = step_place(next, args, m0, m1, m2, m3);
              step_load<BITS>(tiles[d], n.m, n.row0, n.live, args.columns, column0, lane);
            }
          }
          threadgroup_barrier(mem_flags::mem_threadgroup);
          // The simdgroups take turns to add up; two stages, so that the others need not wait.
          if (sg == turn) {
            float t = 0.0f;
            for (uint s = lane / 16; s < simdgroups; s += 2) t += now[s * STEP_TILE + lane % 16];
            t += simd_shuffle_xor(t, 16);
            t *= scales[b];
            float square = 0.0f;
            if (lane < STEP_TILE && lane < p.live) {
              const ulong at = ulong(b) * args.y_stride + p.before + p.row0 + lane;
              if (args.sums > 0) {
                t += y[at];
                square = t * t;
              }
              y[at] = t;
            }
            if (args.sums > 0) {
              square = simd_sum(square);
              if (lane == 0) sums[ulong(b) * args.sums + tile] = square;
            }
          }
          turn = turn + 1 == simdgroups ? 0 : turn + 1;
          stage = 1 - stage;
        }
      }
    }
  }
}

// Grid: (tiles of all matrices, or fewer threadgroups that take several), threads: columns / 8.
#define STEP_GEMV(NAME, BITS, DEPTH, SIMDGROUPS, THREADS, RESIDENT)                                                    \
  [[max_total_threads_per_threadgroup(THREADS)]] kernel void NAME(                                             \
      device const uint2* codes0 [[buffer(0)]], device const uint2* scales0 [[buffer(1)]],                     \
      device const uint2* biases0 [[buffer(2)]], device const uint2* codes1 [[buffer(3)]],                     \
      device const uint2* scales1 [[buffer(4)]], device const uint2* biases1 [[buffer(5)]],                    \
      device const uint2* codes2 [[buffer(6)]], device const uint2* scales2 [[buffer(7)]],                     \
      device const uint2* biases2 [[buffer(8)]], device const uint2* codes3 [[buffer(9)]],                     \
      device const uint2* scales3 [[buffer(10)]], device const uint2* biases3 [[buffer(11)]],                  \
      device const float* x [[buffer(12)]],        /* [batch × columns] */                                     \
      device const float* weight [[buffer(13)]],   /* [columns] */                                             \
      device const float* partials [[buffer(14)]], /* [batch × partials] */                                    \
      device float* y [[buffer(15)]],              /* [batch × (rows0 | rows1 | rows2 | rows3)] */             \
      device float* sums [[buffer(16)]],           /* [batch × sums] */                                        \
      constant GemvArgs& args [[buffer(17)]], uint group [[threadgroup_position_in_grid]],                     \
      uint groups [[threadgroups_per_grid]], uint sg [[simdgroup_index_in_threadgroup]],                       \
      uint lane [[thread_index_in_simdgroup]]) {                                                               \
    threadgroup uint4 parts[SIMDGROUPS * STEP_PARTS];                                                          \
    threadgroup float rows[2 * SIMDGROUPS * STEP_TILE];                                                        \
    threadgroup float scales[8];                                                                               \
    LILY_RESIDENT(RESIDENT)                                                                                    \
    EARLY_BEGIN                                                                                                \
    StepMatrix m0, m1, m2, m3;                                                                                 \
    m0.codes = codes0, m0.scales = scales0, m0.biases = biases0;                                               \
    m1.codes = codes1, m1.scales = scales1, m1.biases = biases1;                                               \
    m2.codes = codes2, m2.scales = scales2, m2.biases = biases2;                                               \
    m3.codes = codes3, m3.scales = scales3, m3.biases = biases3;                                               \
    step_gemv<BITS, DEPTH>(                                                                                    \
        m0, m1, m2, m3, x, weight, partials, y, sums, args, group, groups, sg, lane, parts, rows, scales);     \
  }
STEP_GEMV(step_gemv4_mma, 4, 2, 8, 256, 2)
STEP_GEMV(step_gemv4_wide_mma, 4, 1, 16, 512, 1)
STEP_GEMV(step_gemv8_mma, 8, 1, 8, 256, 1)

// As moe_gate_up_step. Every simdgroup chooses the experts anew. Grid: (width / 16, slots, batch), threads: hidden / 8.
[[max_total_threads_per_threadgroup(256)]] kernel void step_gate_up_mma(
    device const uint2* gate_codes [[buffer(0)]], device const uint2* gate_scales [[buffer(1)]],
    device const uint2* gate_biases [[buffer(2)]], device const uint2* up_codes [[buffer(3)]],
    device const uint2* up_scales [[buffer(4)]], device const uint2* up_biases [[buffer(5)]],
    device const uint2* shared_gate_codes [[buffer(6)]], device const uint2* shared_gate_scales [[buffer(7)]],
    device const uint2* shared_gate_biases [[buffer(8)]], device const uint2* shared_up_codes [[buffer(9)]],
    device const uint2* shared_up_scales [[buffer(10)]], device const uint2* shared_up_biases [[buffer(11)]],
    device const float* x [[buffer(12)]],        // [batch × hidden]
    device const float* weight [[buffer(13)]],   // [hidden]
    device const float* partials [[buffer(14)]], // [batch × partials]
    device const float* logits [[buffer(15)]],   // [batch × stride]: experts, then the shared expert's gate
    device uint* experts [[buffer(16)]],         // [batch × chosen]
    device float* act [[buffer(17)]],            // [batch × (chosen × width + shared_width)]
    constant GateUpStepArgs& args [[buffer(18)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint4 parts[8 * STEP_PARTS];
  threadgroup float rows[2 * 8 * STEP_TILE];
  LILY_RESIDENT(3)
  EARLY_BEGIN
  const uint slot = at.y, column0 = sg * STEP_COLUMNS;
  const ulong b = at.z;
  const bool routed = slot < args.chosen;
  const uint width = routed ? args.width : args.shared_width;
  const uint row0 = at.x * STEP_TILE, live = width - min(width, row0);
  StepMatrix gate, up;
  gate.codes = routed ? gate_codes : shared_gate_codes;
  gate.scales = routed ? gate_scales : shared_gate_scales;
  gate.biases = routed ? gate_biases : shared_gate_biases;
  up.codes = routed ? up_codes : shared_up_codes;
  up.scales = routed ? up_scales : shared_up_scales;
  up.biases = routed ? up_biases : shared_up_biases;
  StepTile<4> tiles[2];
  float4 w[2];
  UNROLL for (int i = 0; i < 2; i++) w[i] = ((device const float4*)(weight + column0))[lane * 2 + uint(i)];
  ulong from = row0;
  float share = 0.0f;
  device const float* of_token = logits + b * args.stride;
  if (routed) {
    EARLY_END
    uint expert;
    float shares;
    route_token(of_token, args.experts, args.chosen, lane, expert, shares);
    from += ulong(simd_shuffle(expert, ushort(slot))) * args.width;
    share = simd_shuffle(shares, ushort(slot));
    if (at.x == 0 && slot == 0 && sg == 0 && lane < args.chosen) experts[b * args.chosen + lane] = expert;
  }
  step_load<4>(tiles[0], gate, from, live, args.hidden, column0, lane);
  step_load<4>(tiles[1], up, from, live, args.hidden, column0, lane);
  if (!routed) {
    EARLY_END
    share = sigmoid(of_token[args.experts]);
  }
  threadgroup uint4* mine = parts + sg * STEP_PARTS;
  const float of_group = step_x(x + b * args.hidden + column0, true, w, mine, lane);
  float scale = 1.0f;
  if (sg == 0) scale = step_norm(partials + b * args.partials, args.partials, args.hidden, args.eps, lane);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  UNROLL for (int i = 0; i < 2; i++)
    step_rows<4>(tiles[i], mine, of_group, lane, rows + (sg * 2 + uint(i)) * STEP_TILE);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg > 0) return; // no barrier follows
  float t = 0.0f;
  for (uint s = 0; s < args.hidden / STEP_COLUMNS; s++) t += rows[s * 2 * STEP_TILE + lane];
  t *= scale;
  const float u = simd_shuffle_xor(t, 16);
  if (lane < live && lane < STEP_TILE)
    act[b * (args.chosen * args.width + args.shared_width) + slot * args.width + row0 + lane] = share * silu(t) * u;
}

// As moe_down_step, for experts that are all as wide as the shared one. Grid: (hidden / 16, batch), threads: (chosen + 1) ·
// width / 8.
[[max_total_threads_per_threadgroup(576)]] kernel void step_down_mma(
    device const uint2* codes [[buffer(0)]], device const uint2* scales [[buffer(1)]],
    device const uint2* biases [[buffer(2)]], device const uint2* shared_codes [[buffer(3)]],
    device const uint2* shared_scales [[buffer(4)]], device const uint2* shared_biases [[buffer(5)]],
    device const uint* experts [[buffer(6)]], // [batch × chosen]
    device const float* act [[buffer(7)]],    // [batch × (chosen × width + shared_width)]
    device float* x [[buffer(8)]],            // [batch × hidden], updated
    device float* sums [[buffer(9)]],         // [batch × threadgroups in x]
    constant DownStepArgs& args [[buffer(10)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint4 parts[18 * STEP_PARTS];
  threadgroup float rows[18 * STEP_TILE];
  EARLY_BEGIN
  const ulong b = at.y;
  const uint pieces = args.width / STEP_COLUMNS;
  const uint slot = sg / pieces, column0 = sg % pieces * STEP_COLUMNS;
  const bool routed = slot < args.chosen;
  const uint row0 = at.x * STEP_TILE;
  StepMatrix m;
  m.codes = routed ? codes : shared_codes;
  m.scales = routed ? scales : shared_scales;
  m.biases = routed ? biases : shared_biases;
  StepTile<4> tile;
  ulong from = row0;
  if (routed) {
    EARLY_END
    from += ulong(experts[b * args.chosen + slot]) * args.hidden;
  }
  step_load<4>(tile, m, from, args.hidden - row0, args.width, column0, lane);
  if (!routed) {
    EARLY_END
  }
  threadgroup uint4* mine = parts + sg * STEP_PARTS;
  device const float* in = act + b * (args.chosen * args.width + args.shared_width) + slot * args.width + column0;
  float4 unused[2];
  const float of_group = step_x(in, false, unused, mine, lane);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  step_rows<4>(tile, mine, of_group, lane, rows + sg * STEP_TILE);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg > 0) return; // no barrier follows
  float t = 0.0f;
  for (uint s = lane / 16; s < (args.chosen + 1) * pieces; s += 2) t += rows[s * STEP_TILE + lane % 16];
  t += simd_shuffle_xor(t, 16);
  float square = 0.0f;
  if (lane < STEP_TILE && row0 + lane < args.hidden) {
    const ulong place = b * args.hidden + row0 + lane;
    t += x[place];
    x[place] = t;
    square = t * t;
  }
  square = simd_sum(square);
  if (lane == 0) sums[b * groups.x + at.x] = square;
}
