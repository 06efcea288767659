//! The one shader source: shared definitions, argument structs and kernels, concatenated in a fixed order. Metal compiles
//! it at run time, where no `#include` of our own can be resolved; the other devices take the same text through `msl`.

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
    ("gated_delta_chunk.metal", include_str!("kernels/gated_delta_chunk.metal")),
    ("gated_norm.metal", include_str!("kernels/gated_norm.metal")),
    ("grouped_gemm.metal", include_str!("kernels/grouped_gemm.metal")),
    ("products_simdgroup.metal", include_str!("kernels/products_simdgroup.metal")),
    ("linear_step.metal", include_str!("kernels/linear_step.metal")),
    ("moe_combine.metal", include_str!("kernels/moe_combine.metal")),
    ("moe_map.metal", include_str!("kernels/moe_map.metal")),
    ("moe_step.metal", include_str!("kernels/moe_step.metal")),
    ("qk_norm_rope.metal", include_str!("kernels/qk_norm_rope.metal")),
    ("top_k.metal", include_str!("kernels/top_k.metal")),
];

/// Kernels that break a rule each. They are compiled for the emulator only, whose tests expect it to stop them.
#[cfg(feature = "emulated")]
pub const FAULTY: &str = concat!("#line 1 \"faulty.metal\"\n", include_str!("device/emulated/faulty.metal"));

/// The whole text. `#line` directives make compilers name the part.
pub fn source() -> String {
    let mut text = String::from(
        "#include <metal_stdlib>\n#include <metal_simdgroup>\n#include <metal_simdgroup_matrix>\n\
         #include <metal_atomic>\nusing namespace metal;\n#line 1 \"args\"\n",
    );
    for s in STRUCTS {
        text += &s.msl();
    }
    for (name, part) in PARTS {
        text += &format!("#line 1 \"{name}\"\n{part}");
    }
    text
}
