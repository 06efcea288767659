// The kernels of prefill's products with the body of product_tensor.metal: the same as in products_simdgroup.metal, BF16 only.
AFFINE_GEMM(affine_gemm_bf16_tensor, TensorBody, bfloat, 64, PRODUCT_MEMORY(1))
AFFINE_GEMM(affine_gemm_short_bf16_tensor, TensorBody, bfloat, 32, PRODUCT_MEMORY(1))
GROUPED_GATE_UP(grouped_gate_up_bf16_tensor, TensorBody, bfloat, PRODUCT_MEMORY(1))
GROUPED_DOWN(grouped_down_bf16_tensor, TensorBody, bfloat, PRODUCT_MEMORY(1))
SHARED_GATE_UP(shared_gate_up_bf16_tensor, TensorBody, bfloat, 64, PRODUCT_MEMORY(1))
