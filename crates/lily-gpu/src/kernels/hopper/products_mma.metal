// The kernels of prefill's products with the body of product_mma.metal: a text of its own, for CUDA only, with PRODUCT_THREADS and
// GROUPED_ROWS of its own (shader.rs).
AFFINE_GEMM(affine_gemm_bf16_mma, MmaBody, bfloat, 128, PRODUCT_MEMORY(MMA_MEMORY(128)))
AFFINE_GEMM(affine_gemm_short_bf16_mma, MmaBody, bfloat, 32, PRODUCT_MEMORY(MMA_MEMORY(32)))
GROUPED_GATE_UP(grouped_gate_up_bf16_mma, MmaBody, bfloat, PRODUCT_MEMORY(MMA_MEMORY(GROUPED_ROWS)))
GROUPED_DOWN(grouped_down_bf16_mma, MmaBody, bfloat, PRODUCT_MEMORY(MMA_MEMORY(GROUPED_ROWS)))
SHARED_GATE_UP(shared_gate_up_bf16_mma, MmaBody, bfloat, 128, PRODUCT_MEMORY(MMA_MEMORY(128)))
AFFINE_GEMM(affine_gemm_f32_mma, MmaF32Body<32>, float, 16, PRODUCT_MEMORY(MMA_F32_MEMORY(32)))
AFFINE_GEMM(affine_gemm_w4_mma, WgmmaBody, bfloat, 128, LILY_DYNAMIC(uint4, memory, 81920))
GROUPED_GATE_UP(grouped_gate_up_w4_mma, WgmmaBody, bfloat, LILY_DYNAMIC(uint4, memory, 81920))
GROUPED_DOWN(grouped_down_w4_mma, WgmmaBody, bfloat, LILY_DYNAMIC(uint4, memory, 81920))
SHARED_GATE_UP(shared_gate_up_w4_mma, WgmmaBody, bfloat, 128, LILY_DYNAMIC(uint4, memory, 81920))
