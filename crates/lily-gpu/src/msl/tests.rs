use super::*;

const HEAD: &str = "#line 1 \"a.metal\"\n";

fn parse(text: &str) -> Result<Program, MslError> {
    Program::parse(&format!("{HEAD}{text}"), &[])
}

fn refused(text: &str) -> String {
    match parse(text).and_then(|p| p.emulator(&[], &[])) {
        Ok(text) => panic!("accepted: {text}"),
        Err(e) => e.to_string(),
    }
}

/// Without `#line` directives and line breaks.
fn flat(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).map(str::trim).collect();
    lines.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn macros_are_expanded_and_lines_kept() {
    let text = "#define TWICE(a, NAME) a + a; int NAME##_x = 3\n#define N 4 // four\n\
                #ifdef N\nint k = TWICE(N * 2, my);\n#else\nwrong\n#endif\n";
    let p = parse(text).unwrap();
    let out = rewrite::rewrite(&p, Target::Cuda).unwrap();
    assert!(out.contains("#line 4 \"a.metal\"\n"), "{out}");
    assert_eq!(flat(&out), "int k = 4 * 2 + 4 * 2; int my_x = 3;");
}

#[test]
fn a_macro_is_not_expanded_inside_itself() {
    let p = parse("#define f(x) f(x + 1)\nint a = f(f(2));").unwrap();
    assert_eq!(flat(&rewrite::rewrite(&p, Target::Cuda).unwrap()), "int a = f( f( 2 + 1) + 1);");
}

#[test]
fn signatures_of_kernels_made_by_macros() {
    let text = "constant uint K [[function_constant(3)]];\n\
        #define MAKE(NAME, T) [[max_total_threads_per_threadgroup(96)]] kernel void NAME( \\\n\
          device const T* in [[buffer(0)]], constant Args& args [[buffer(2)]], device T* out [[buffer(1)]], \\\n\
          uint3 at [[threadgroup_position_in_grid]]) { out[at.x] = in[K]; }\n\
        MAKE(copy_f32, float)\nMAKE(copy_pairs, float2)\n";
    let p = parse(text).unwrap();
    assert_eq!(p.kernels().len(), 2);
    assert_eq!(p.constants(), [FunctionConstant { name: "K".into(), ty: "uint".into(), index: 3 }]);
    let k = p.kernel("copy_pairs").unwrap();
    assert_eq!(k.max_threads, Some(96));
    let bound: Vec<_> = k.bound().map(|a| (a.name.as_str(), a.ty.as_str(), a.access)).collect();
    let pair = "float2";
    assert_eq!(bound, [("in", pair, Access::Read), ("out", pair, Access::Write), ("args", "Args", Access::Value)]);

    // A comma inside a type does not end a parameter (inside a macro's arguments it would, as in C).
    let p = parse("kernel void k(device const vec<float, 2>* in [[buffer(0)]]) {}").unwrap();
    assert_eq!(p.kernel("k").unwrap().arguments[0].ty, "vec<float, 2>");
}

#[test]
fn memory_that_a_body_asks_for() {
    let kernel = |name: &str, body: &str| format!("kernel void {name}(device float* x [[buffer(0)]]) {{ {body} }}\n");
    let text = kernel("a", "") + &kernel("b", "LILY_DYNAMIC(uint4, memory, 100000);") + &kernel("c", "x[0] = 1.0f;");
    let p = parse(&text).unwrap();
    assert_eq!(p.kernels().iter().map(|k| k.dynamic).collect::<Vec<_>>(), [0, 100_000, 0]);
    refused(&kernel("d", "LILY_DYNAMIC(uint4, memory, MANY);"));
}

#[test]
fn each_target_has_its_address_spaces() {
    let text = "inline float f(device const float* p, thread float& t) { return p[0] + t; }\n\
                kernel void k(device float4* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n\
                threadgroup float a[4][8]; threadgroup float* b = a[0]; x[i] = *(device const float4*)(x + 1); b[0] = 1; }";
    let p = parse(text).unwrap();
    let out = |target| flat(&rewrite::rewrite(&p, target).unwrap());
    let emulator = out(Target::Emulator);
    for part in [
        "float f(lily_device<const float> p, float& t)",
        "LILY_KERNEL void lily_body_k(lily_device<float4> x, uint i)",
        "LILY_THREADGROUP(float, a, [4][8]);",
        "x[i] = *(lily_device<const float4>)(x + 1);",
        " float* b = a[0];",
    ] {
        assert!(emulator.contains(part), "{part} in {emulator}");
    }
    assert!(out(Target::Strict).contains("LILY_AS_threadgroup float* b"));
    assert!(out(Target::Strict).contains("f(LILY_AS_device const float* p, LILY_AS_thread float& t)"));
    assert!(p.cuda().unwrap().contains("extern \"C\" __global__ void k(float4* b0)"));
}

#[test]
fn broken_rules_name_file_and_line() {
    let order = refused("\nkernel void k(const device float* x [[buffer(0)]]) {}");
    assert_eq!(refused("void f(const device float* x);"), "a.metal:1: write `device const`, the address space first");
    assert_eq!(order, "a.metal:2: write `device const`, the address space first");
    assert!(refused("kernel void k(device float* x) {}").contains("has no attribute"));
    assert!(refused("kernel void k(device float* x [[buffer(1)]]) {}").contains("no argument has index 0"));
    assert!(refused("kernel void k(constant float* x [[buffer(0)]]) {}").contains("a kernel takes"));
    assert!(refused("void f(device float& x);").contains("by `device T*` only"));
    assert!(refused("#if 1\n#endif").contains("#if is not known"));
}

/// The product's source passes for every target, and each kernel is there.
#[test]
fn the_whole_source_in_every_form() {
    let p = crate::program();
    let forms = [p.emulator(&[], &[]).unwrap(), p.strict().unwrap(), p.cuda().unwrap()];
    for k in p.kernels() {
        assert!(forms.iter().all(|f| f.contains(&format!("lily_body_{}(", k.name))), "{}", k.name);
    }
    assert!(p.kernels().len() >= 14);
}
