//! Argument structs of the kernels: one definition for host and shader. The shader's text is made from it, and a test
//! compares the layout that the C++ compiler gives with Rust's.

/// A struct as the shader declares it.
#[derive(Clone, Copy, Debug)]
pub struct ArgStruct {
    /// Its name, the same in Rust and in MSL.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Name, Rust type and offset of each field, in order.
    pub fields: &'static [(&'static str, &'static str, usize)],
}

impl ArgStruct {
    /// The declaration in MSL.
    pub fn msl(&self) -> String {
        let mut text = format!("struct {} {{\n", self.name);
        for (name, ty, _) in self.fields {
            let ty = match *ty {
                "u32" => "uint",
                "u64" => "ulong",
                "f32" => "float",
                other => unreachable!("{other} is not among the types of arg_structs!"),
            };
            text += &format!("  {ty} {name};\n");
        }
        text + "};\n"
    }
}

macro_rules! arg_structs {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$field_doc:meta])* $field:ident: $ty:ident, )* } )*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq)]
            pub struct $name { $( $(#[$field_doc])* pub $field: $ty, )* }

            impl $name {
                /// The bytes that the shader sees.
                pub fn to_bytes(self) -> Vec<u8> {
                    // Every byte is a field's: no padding to leave undefined, none for the shader to add.
                    const { assert!(size_of::<$name>() == 0 $( + size_of::<$ty>() )*) }
                    let mut out = Vec::with_capacity(size_of::<Self>());
                    $( out.extend_from_slice(&self.$field.to_ne_bytes()); )*
                    out
                }
            }
        )*

        /// All argument structs.
        pub const STRUCTS: &[ArgStruct] = &[ $( ArgStruct {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[ $( (stringify!($field), stringify!($ty), std::mem::offset_of!($name, $field)), )* ],
        }, )* ];
    };
}

arg_structs! {
    /// Of `embed_gather`.
    EmbedArgs {
        /// Columns of the embedding, a multiple of 64.
        hidden: u32,
        /// Of a value: 4, 8 or 16.
        bits: u32,
        /// 1: sums of squares are wanted.
        sums: u32,
    }
    /// Of `rms_norm`.
    NormArgs {
        /// Values in a row, a multiple of 4.
        width: u32,
        /// Added to the mean square.
        eps: f32,
        /// 1: delta is added first.
        add: u32,
        /// Bit 0: F32 is wanted; bit 1: BF16.
        outputs: u32,
    }
    /// Of `affine_gemv_*`: up to four matrices that share their input.
    GemvArgs {
        /// Rows of the first matrix; 0 where there is none.
        rows0: u32,
        /// Rows of the second.
        rows1: u32,
        /// Rows of the third.
        rows2: u32,
        /// Rows of the fourth.
        rows3: u32,
        /// Threadgroups before those of the second matrix.
        group1: u32,
        /// Threadgroups before those of the third.
        group2: u32,
        /// Threadgroups before those of the fourth.
        group3: u32,
        /// Byte i: 4, 8 or 16, of matrix i.
        bits: u32,
        /// Columns of all of them, a multiple of 64.
        columns: u32,
        /// Lanes that share a row: a power of two, 2 to 32.
        lanes: u32,
        /// Rows of the input, at most those of the kernel's name.
        batch: u32,
        /// Values from one row of the input to the next.
        x_stride: u32,
        /// Values from one row of the output to the next.
        y_stride: u32,
        /// Sums of squares of an input row; 0: the input is not normalised.
        partials: u32,
        /// Added to the mean square.
        eps: f32,
        /// Sums of squares of an output row; 0: products are stored, not added.
        sums: u32,
    }
    /// Of `affine_gemm_*`: up to four matrices that share their input.
    GemmArgs {
        /// Rows of the first matrix; 0 where there is none.
        rows0: u32,
        /// Rows of the second.
        rows1: u32,
        /// Rows of the third.
        rows2: u32,
        /// Rows of the fourth.
        rows3: u32,
        /// Blocks before those of the second matrix.
        group1: u32,
        /// Blocks before those of the third.
        group2: u32,
        /// Blocks before those of the fourth.
        group3: u32,
        /// Byte i: bits of a weight of matrix i: 4, 8 or 16.
        bits: u32,
        /// Columns of all of them, a multiple of 64.
        columns: u32,
        /// Rows of the input.
        rows: u32,
        /// Values from one row of the input to the next.
        x_stride: u32,
        /// Values from one row of the output to the next.
        y_stride: u32,
    }
    /// Of `grouped_gate_up_*`, `grouped_down_*` and `shared_gate_up_*`.
    GroupedArgs {
        /// Rows of an expert's matrix.
        outputs: u32,
        /// Columns of the matrices, a multiple of 64.
        columns: u32,
        /// Of a weight: 4, 8 or 16.
        bits: u32,
        /// Experts of a token.
        per_token: u32,
        /// Tokens.
        tokens: u32,
    }
    /// Of `conv_silu`.
    ConvArgs {
        /// Tokens of each sequence in this dispatch.
        tokens: u32,
        /// Values from one row of projections to the next.
        stride: u32,
        /// Where the 32 decay inputs a begin in a row; the 32 write inputs b follow.
        gates: u32,
        /// Key (and query) heads.
        key_heads: u32,
        /// Value heads.
        value_heads: u32,
    }
    /// Of `gated_delta_chunk_prepare` and `gated_delta_chunk_scan`.
    DeltaChunkArgs {
        /// Rows.
        tokens: u32,
        /// Place of the first one in its block of 64.
        first: u32,
        /// Key (and query) heads.
        key_heads: u32,
        /// Value heads.
        value_heads: u32,
    }
    /// Of `gated_norm_*`.
    GatedNormArgs {
        /// Values from z of one row to z of the next.
        stride: u32,
        /// Value heads.
        value_heads: u32,
        /// Added to the mean square.
        eps: f32,
    }
    /// Of `linear_step`.
    LinearStepArgs {
        /// Values from one row of projections to the next.
        stride: u32,
        /// Where z begins in a row.
        z: u32,
        /// Where the decay inputs a begin in a row; the write inputs b follow.
        gates: u32,
        /// Key (and query) heads.
        key_heads: u32,
        /// Value heads.
        value_heads: u32,
        /// Added to the mean square of the gated norm.
        eps: f32,
    }
    /// Of `moe_route`.
    RouteArgs {
        /// Router logits of a token.
        experts: u32,
        /// How many are chosen, at most 8.
        chosen: u32,
        /// Values from one row of logits to the next.
        stride: u32,
        /// Rows.
        tokens: u32,
    }
    /// Of `moe_map`.
    MapArgs {
        /// Tokens × experts of a token.
        rows: u32,
        /// Rows of a block.
        block: u32,
        /// Blocks of the grid.
        blocks: u32,
    }
    /// Of `moe_combine`.
    CombineArgs {
        /// Values in a row, a multiple of 4.
        width: u32,
        /// Experts of a token.
        chosen: u32,
        /// Values from one gate logit to the next.
        stride: u32,
        /// Added to the mean square.
        eps: f32,
        /// As of `NormArgs`; 0: no norm.
        outputs: u32,
    }
    /// Of `moe_gate_up_step`.
    GateUpStepArgs {
        /// Router logits of a token; the shared expert's gate logit follows.
        experts: u32,
        /// How many are chosen, at most 8.
        chosen: u32,
        /// Values from one row of logits to the next.
        stride: u32,
        /// Values of a token, a multiple of 64.
        hidden: u32,
        /// Inner values of an expert.
        width: u32,
        /// Inner values of the shared expert.
        shared_width: u32,
        /// Lanes that share a row: a power of two, 2 to 32.
        lanes: u32,
        /// Of the experts' weights: 4, 8 or 16.
        bits: u32,
        /// Of the shared expert's weights.
        shared_bits: u32,
        /// Sums of squares of a token.
        partials: u32,
        /// Added to the mean square.
        eps: f32,
    }
    /// Of `moe_down_step`.
    DownStepArgs {
        /// Experts of a token, at most 8.
        chosen: u32,
        /// Values of a token.
        hidden: u32,
        /// Inner values of an expert, a multiple of 64.
        width: u32,
        /// Inner values of the shared expert, a multiple of 64.
        shared_width: u32,
        /// Lanes that share a row: a power of two, 2 to 32.
        lanes: u32,
        /// Of the experts' weights: 4, 8 or 16.
        bits: u32,
        /// Of the shared expert's weights.
        shared_bits: u32,
    }
    /// Of `argmax_blocks` and `argmax_final`.
    ArgmaxArgs {
        /// Ids that exist; logits from here on are padding.
        vocab: u32,
        /// Values from one row of logits to the next.
        stride: u32,
        /// Blocks a row is cut into.
        blocks: u32,
    }
    /// Of `qk_norm_rope_*`.
    QkArgs {
        /// Values from one page of the cache to the next.
        page_stride: u64,
        /// Values from one row of projections to the next.
        stride: u32,
        /// Query heads.
        query_heads: u32,
        /// Key/value heads.
        kv_heads: u32,
        /// Position of the first row, prefill.
        start: u32,
        /// 1: row b stands at `positions[b]` and owns row b of the page table.
        decode: u32,
        /// Pages of a row of the page table.
        table_stride: u32,
        /// Added to the mean square.
        eps: f32,
        /// Padding.
        unused: u32,
    }
    /// Of `attention_decode_*`.
    DecodeArgs {
        /// Values from one page of the cache to the next.
        page_stride: u64,
        /// Query heads.
        query_heads: u32,
        /// Key/value heads.
        kv_heads: u32,
        /// Values from one row of projections to the next.
        stride: u32,
        /// Pages of a row of the page table.
        table_stride: u32,
        /// Spans that `partials` has room for: those of the grid.
        spans: u32,
        /// Padding.
        unused: u32,
    }
    /// Of `attention_prefill_*`.
    PrefillArgs {
        /// Values from one page of the cache to the next.
        page_stride: u64,
        /// Query heads.
        query_heads: u32,
        /// Key/value heads.
        kv_heads: u32,
        /// Values from one row of projections to the next.
        stride: u32,
        /// Position of the first row.
        start: u32,
        /// Rows.
        rows: u32,
        /// Padding.
        unused: u32,
    }
    /// Of `top_k_blocks` and `top_k_final`.
    TopKArgs {
        /// Ids that exist; logits from here on are padding.
        vocab: u32,
        /// Values from one row of logits to the next.
        stride: u32,
        /// Blocks a row is cut into.
        blocks: u32,
        /// How many are wanted.
        k: u32,
    }
    /// Of `copy_slices`, in words of 16 bytes.
    CopyArgs {
        /// From one slice to the next.
        from_stride: u64,
        /// From one place to the next.
        to_stride: u64,
        /// Of a slice.
        words: u64,
    }
    /// Of `random_fill`.
    RandomFillArgs {
        /// Of the stream.
        base: u64,
        /// Word of the stream's tensor where the output begins.
        first: u64,
        /// Words of the output.
        words: u64,
        /// Of scales; 0: the words are the stream's elements.
        step: f32,
        /// From scales to biases.
        factor: f32,
    }
    /// Of `ablate_attention_*`.
    AblateAttentionArgs {
        /// Values from one page of the cache to the next.
        page_stride: u64,
        /// Query heads.
        query_heads: u32,
        /// Key/value heads.
        kv_heads: u32,
        /// Values from one row of projections to the next.
        stride: u32,
        /// Pages of a row of the page table.
        table_stride: u32,
        /// Parts that `partials` has room for: those of the grid.
        parts: u32,
        /// Parts that a sequence is cut into; 0: blocks of a fixed size.
        splits: u32,
    }
    /// Of `ablate_expand`.
    AblateExpandArgs {
        /// Of the matrix.
        values: u64,
        /// Of a value: 4 or 8.
        bits: u32,
        /// Padding.
        unused: u32,
    }
    /// Of `ablate_keys_*`.
    AblateKeysArgs {
        /// Rows of keys of a kv head.
        positions: u32,
    }
}
