//! With the feature `emulated`: translates the kernels to C++ and compiles them with the emulator's runtime. Otherwise
//! nothing, and no C++ compiler is needed.

#[cfg(feature = "emulated")]
#[path = "src/args.rs"]
#[allow(dead_code)]
mod args;
#[cfg(feature = "emulated")]
#[path = "src/msl/mod.rs"]
#[allow(dead_code)]
mod msl;
#[cfg(feature = "emulated")]
#[path = "src/shader.rs"]
#[allow(dead_code)]
mod shader;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Set with LILY_SANITIZE: tests of large shapes are then left out (tests/gpu/sanitize.sh).
    println!("cargo::rustc-check-cfg=cfg(sanitized)");
    #[cfg(feature = "emulated")]
    emulator();
}

#[cfg(feature = "emulated")]
fn emulator() {
    for path in [
        "src/args.rs",
        "src/msl",
        "src/shader.rs",
        "src/kernels",
        "src/ablate/attention.metal",
        "src/ablate/memory.metal",
        "src/device/emulated",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=LILY_SANITIZE");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        println!("cargo::error=the feature `emulated` needs x86-64: the fiber switch is written for it");
        return;
    }
    let structs: Vec<msl::StructFields> = args::STRUCTS
        .iter()
        .map(|s| msl::StructFields { name: s.name, fields: s.fields.iter().map(|f| f.0).collect() })
        .collect();
    let mut source = shader::whole_source() + shader::FAULTY;
    println!("cargo::rerun-if-env-changed=LILY_PLANT");
    if let Ok(plant) = std::env::var("LILY_PLANT") {
        // A fault for the tests to find: `old=>new` (tests/gpu/planted.sh).
        let (old, new) = plant.split_once("=>").unwrap_or((&plant, ""));
        if source.matches(old).count() != 1 {
            println!("cargo::error=LILY_PLANT: `{old}` does not stand in the source exactly once");
            return;
        }
        source = source.replacen(old, new, 1);
    }
    println!("cargo::rerun-if-env-changed=LILY_KERNELS");
    // Only kernels whose names begin so, for a quick build: dispatches of others panic.
    let kept = std::env::var("LILY_KERNELS").unwrap_or_default();
    let kept: Vec<&str> = kept.split(',').filter(|k| !k.is_empty()).collect();
    let translated = msl::Program::parse(&source, &[]).and_then(|program| program.emulator(&structs, &kept));
    let text = match translated {
        Ok(text) => text,
        Err(e) => {
            println!("cargo::error={e}");
            return;
        }
    };
    let kernels = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("kernels.cpp");
    if let Err(e) = std::fs::write(&kernels, text) {
        println!("cargo::error={}: {e}", kernels.display());
        return;
    }
    let base = || {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").include("src/device/emulated").include("src/msl").opt_level(2);
        build.flag("-march=x86-64-v3").flag("-fno-strict-aliasing").flag("-Wall");
        build.flag_if_supported("-Wno-unknown-pragmas").flag("-Wno-unused-function").flag("-Wno-unused-variable");
        // One rounding a product and one a sum unless a kernel says fma, as on the device.
        build.flag("-ffp-contract=off");
        build
    };
    let (mut kernel_build, mut runtime) = (base(), base());
    // A descriptor of a tensor operation is a template argument.
    kernel_build.std("c++20");
    let sanitized = std::env::var("LILY_SANITIZE").is_ok_and(|s| !s.is_empty());
    if sanitized {
        // Quicker to compile, and what a sanitizer looks for is less likely to be optimised away.
        kernel_build.opt_level(1);
        println!("cargo::rustc-cfg=sanitized");
    }
    match std::env::var("LILY_SANITIZE").as_deref() {
        // The runtime is not instrumented: it tells the sanitizer what fibers are.
        Ok("thread") => {
            link_runtimes(&["tsan"]);
            kernel_build.flag("-fsanitize=thread").define("LILY_TSAN", None);
            runtime.define("LILY_TSAN", None);
        }
        Ok("address") => {
            link_runtimes(&["asan", "ubsan"]);
            for build in [&mut kernel_build, &mut runtime] {
                build.flag("-fsanitize=address,undefined").flag("-fno-sanitize-recover=all").define("LILY_ASAN", None);
            }
        }
        Ok("") | Err(_) => {}
        Ok(other) => println!("cargo::error=LILY_SANITIZE: `{other}` is neither thread nor address"),
    }
    kernel_build.file(&kernels).compile("lily_kernels");
    runtime.file("src/device/emulated/runtime.cpp").compile("lily_emulator");
}

/// Links sanitizer runtimes into this package's tests. The first as a whole archive that starts before anything else:
/// rustc links without the compiler's default libraries, and a shared runtime would come after the C library, whose
/// functions it must replace.
#[cfg(feature = "emulated")]
fn link_runtimes(names: &[&str]) {
    println!("cargo::rustc-link-arg=-l:lib{}_preinit.o", names[0]);
    for (i, name) in names.iter().enumerate() {
        let whole = if i == 0 { "whole-archive" } else { "no-whole-archive" };
        println!("cargo::rustc-link-arg=-Wl,--{whole}");
        println!("cargo::rustc-link-arg=-l:lib{name}.a");
    }
    println!("cargo::rustc-link-arg=-Wl,--no-whole-archive");
    for name in ["stdc++", "m", "rt", "pthread", "dl", "c", "gcc_s"] {
        println!("cargo::rustc-link-arg=-l{name}");
    }
}
