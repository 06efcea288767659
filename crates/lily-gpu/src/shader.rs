//! The shader source: shared definitions, argument structs and kernels, concatenated in a fixed order. Metal compiles it at
//! run time, where no `#include` of our own can be resolved; the other devices take the same text through `msl`. There are
//! two libraries, as the kernels that use tensor operations need a newer Metal; CUDA has a second text too. Kernels for ablations
//! are a text of their own everywhere.

use crate::args::STRUCTS;

/// Kernel files in the order of concatenation.
const PARTS: &[(&str, &str)] = &[
    ("common.metal", include_str!("kernels/common.metal")),
    ("kv.metal", include_str!("kernels/kv.metal")),
    ("embed_gather.metal", include_str!("kernels/embed_gather.metal")),
    ("rms_norm.metal", include_str!("kernels/rms_norm.metal")),
    ("affine_gemv.metal", include_str!("kernels/affine_gemv.metal")),
    ("conv_silu.metal", include_str!("kernels/conv_silu.metal")),
    ("moe_route.metal", include_str!("kernels/moe_route.metal")),
    ("argmax.metal", include_str!("kernels/argmax.metal")),
    ("product.metal", include_str!("kernels/product.metal")),
    ("product_simdgroup.metal", include_str!("kernels/product_simdgroup.metal")),
    ("affine_gemm.metal", include_str!("kernels/affine_gemm.metal")),
    ("attention_decode.metal", include_str!("kernels/attention_decode.metal")),
    ("attention_prefill.metal", include_str!("kernels/attention_prefill.metal")),
    ("copy.metal", include_str!("kernels/copy.metal")),
    ("gated_delta_layout.metal", include_str!("kernels/gated_delta_layout.metal")),
    ("gated_delta_chunk.metal", include_str!("kernels/gated_delta_chunk.metal")),
    ("gated_norm.metal", include_str!("kernels/gated_norm.metal")),
    ("grouped_gemm.metal", include_str!("kernels/grouped_gemm.metal")),
    ("products_simdgroup.metal", include_str!("kernels/products_simdgroup.metal")),
    ("linear_step.metal", include_str!("kernels/linear_step.metal")),
    ("moe_combine.metal", include_str!("kernels/moe_combine.metal")),
    ("moe_map.metal", include_str!("kernels/moe_map.metal")),
    ("moe_step.metal", include_str!("kernels/moe_step.metal")),
    ("qk_norm_rope.metal", include_str!("kernels/qk_norm_rope.metal")),
    ("random_fill.metal", include_str!("kernels/random_fill.metal")),
    ("top_k.metal", include_str!("kernels/top_k.metal")),
];

/// Kernels that break a rule each. They are compiled for the emulator only, whose tests expect it to stop them.
#[cfg(feature = "emulated")]
pub const FAULTY: &str = concat!("#line 1 \"faulty.metal\"\n", include_str!("device/emulated/faulty.metal"));

/// Kernels whose matrix products are Metal 4 tensor operations. Their names end in `_tensor`.
const TENSOR_PARTS: &[(&str, &str)] = &[
    ("product_tensor.metal", include_str!("kernels/product_tensor.metal")),
    ("products_tensor.metal", include_str!("kernels/products_tensor.metal")),
];

/// Parts of the first text that the second repeats.
const SHARED_PARTS: &[&str] = &["common.metal", "product.metal", "affine_gemm.metal", "grouped_gemm.metal"];

/// Parts of the first text that `MMA_PARTS` need besides.
const MMA_SHARED_PARTS: &[&str] = &["kv.metal", "moe_route.metal", "gated_delta_layout.metal"];

/// `kernels/hopper/`: kernels with PTX instructions (`msl/mma.h`), twins of those above for NVIDIA GPUs. Their names end in
/// `_mma`.
const MMA_PARTS: &[(&str, &str)] = &[
    ("hopper/f32_mma.metal", include_str!("kernels/hopper/f32_mma.metal")),
    ("hopper/product_mma.metal", include_str!("kernels/hopper/product_mma.metal")),
    ("hopper/product_f32_mma.metal", include_str!("kernels/hopper/product_f32_mma.metal")),
    ("hopper/product_wgmma.metal", include_str!("kernels/hopper/product_wgmma.metal")),
    ("hopper/products_mma.metal", include_str!("kernels/hopper/products_mma.metal")),
    ("hopper/attention_decode_mma.metal", include_str!("kernels/hopper/attention_decode_mma.metal")),
    ("hopper/step_mma.metal", include_str!("kernels/hopper/step_mma.metal")),
    ("hopper/attention_mma.metal", include_str!("kernels/hopper/attention_mma.metal")),
    ("hopper/moe_map_mma.metal", include_str!("kernels/hopper/moe_map_mma.metal")),
    ("hopper/gated_delta_chunk_mma.metal", include_str!("kernels/hopper/gated_delta_chunk_mma.metal")),
];

/// What `lily bench --ablate` compares kernels with. Their names begin with `ablate_`; no other command runs them.
const ABLATE_PARTS: &[(&str, &str)] = &[
    ("ablate/attention.metal", include_str!("ablate/attention.metal")),
    ("ablate/memory.metal", include_str!("ablate/memory.metal")),
];

/// Whether a kernel stands in the text for ablations.
pub fn is_ablate(kernel: &str) -> bool {
    kernel.starts_with("ablate_")
}

/// Whether a kernel stands in CUDA's second text.
pub fn is_mma(kernel: &str) -> bool {
    kernel.ends_with("_mma")
}

/// Whether a kernel stands in the second library.
pub fn is_tensor(kernel: &str) -> bool {
    kernel.ends_with("_tensor")
}

/// The text of the first library: every kernel but the tensor ones. Metal language 3.1.
pub fn source() -> String {
    let head = "#include <metal_stdlib>\n#include <metal_simdgroup>\n#include <metal_simdgroup_matrix>\n\
                #include <metal_atomic>\nusing namespace metal;\n";
    head.to_string() + &arguments() + &joined(PARTS.iter())
}

/// The text of the second library, which stands alone: Metal language 4.0. A device or system without it runs the first.
pub fn tensor_source() -> String {
    let head = "#include <metal_stdlib>\n#include <metal_simdgroup>\n#include <metal_tensor>\n\
                #include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\nusing namespace metal;\n";
    head.to_string() + &arguments() + &joined(shared().chain(TENSOR_PARTS))
}

/// The second text of CUDA, which stands alone. Its threadgroups and its blocks of an expert's rows are larger: `Body::Mma` in
/// `kernels` has the same sizes.
pub fn mma_source() -> String {
    let head = "using namespace metal;\n#define PRODUCT_THREADS 256\n#define GROUPED_ROWS 128\n";
    let also = PARTS.iter().filter(|part| MMA_SHARED_PARTS.contains(&part.0));
    head.to_string() + &arguments() + &joined(shared().chain(also).chain(MMA_PARTS))
}

/// The text of the kernels for ablations, which stands alone and is compiled only where they run. Metal language 3.1.
pub fn ablate_source() -> String {
    let head = "#include <metal_stdlib>\n#include <metal_simdgroup>\nusing namespace metal;\n";
    let shared = PARTS.iter().filter(|part| ["common.metal", "kv.metal"].contains(&part.0));
    head.to_string() + &arguments() + &joined(shared.chain(ABLATE_PARTS))
}

fn shared() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    PARTS.iter().filter(|part| SHARED_PARTS.contains(&part.0))
}

/// All kernels in one text, for the signatures and for the emulator.
pub fn whole_source() -> String {
    source() + &joined(TENSOR_PARTS.iter().chain(ABLATE_PARTS))
}

fn arguments() -> String {
    "#line 1 \"args\"\n".to_string() + &STRUCTS.iter().map(|s| s.msl()).collect::<String>()
}

/// `#line` directives make compilers name the part.
fn joined<'a>(parts: impl Iterator<Item = &'a (&'a str, &'a str)>) -> String {
    parts.map(|(name, part)| format!("#line 1 \"{name}\"\n{part}")).collect()
}
