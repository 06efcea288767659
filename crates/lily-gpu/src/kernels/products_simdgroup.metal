// The kernels of prefill's products with the body of product_simdgroup.metal. `short`: for up to 32 rows, where blocks of 64
// would leave half of the simdgroups idle; the arithmetic of a row is the same.
AFFINE_GEMM(affine_gemm_f32, SimdgroupBody, float, 64, PRODUCT_MEMORY(SIMDGROUP_MEMORY(float, 64)))
AFFINE_GEMM(affine_gemm_bf16, SimdgroupBody, bfloat, 64, PRODUCT_MEMORY(SIMDGROUP_MEMORY(bfloat, 64)))
AFFINE_GEMM(affine_gemm_short_f32, SimdgroupBody, float, 32, PRODUCT_MEMORY(SIMDGROUP_MEMORY(float, 32)))
AFFINE_GEMM(affine_gemm_short_bf16, SimdgroupBody, bfloat, 32, PRODUCT_MEMORY(SIMDGROUP_MEMORY(bfloat, 32)))
GROUPED_GATE_UP(grouped_gate_up_f32, SimdgroupBody, float, PRODUCT_MEMORY(SIMDGROUP_MEMORY(float, GROUPED_ROWS)))
GROUPED_GATE_UP(grouped_gate_up_bf16, SimdgroupBody, bfloat, PRODUCT_MEMORY(SIMDGROUP_MEMORY(bfloat, GROUPED_ROWS)))
GROUPED_DOWN(grouped_down_f32, SimdgroupBody, float, PRODUCT_MEMORY(SIMDGROUP_MEMORY(float, GROUPED_ROWS)))
GROUPED_DOWN(grouped_down_bf16, SimdgroupBody, bfloat, PRODUCT_MEMORY(SIMDGROUP_MEMORY(bfloat, GROUPED_ROWS)))
SHARED_GATE_UP(shared_gate_up_f32, SimdgroupBody, float, 64, PRODUCT_MEMORY(SIMDGROUP_MEMORY(float, 64)))
SHARED_GATE_UP(shared_gate_up_bf16, SimdgroupBody, bfloat, 64, PRODUCT_MEMORY(SIMDGROUP_MEMORY(bfloat, 64)))
