//! Every GPU kernel on a device against the CPU oracle or plain Rust, for `lily doctor`.

mod attention;
mod experts;
mod head;
mod lab;
mod linear;
mod norms;
mod products;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use lily_gpu::kernels::{Body, CopySlices, View, copy_slices};
use lily_gpu::{Contents, Gpu};
use lily_model::KvType;

pub(crate) use lab::time;
use lab::{Lab, Outcome, Work};

/// Checks every kernel and prints a table; 1 where one computes something else than it should. `full`: at the dimensions
/// of the 35B model. `fast`: what else than `simdgroup_matrix` the device multiplies with in prefill, or why nothing.
pub fn examine<G: Gpu>(gpu: &mut G, fast: Result<Body, &str>, full: bool) -> Result<ExitCode> {
    println!("{}", gpu.name());
    let copy = copy_rate(gpu)?;
    match copy {
        Some(rate) => println!("copies {:.0} GB/s (read and written)", rate / 1e9),
        None => println!("this device tells no times"),
    }
    println!(
        "\n{:<18} {:<46} {:<4} {:>9} {:>9} {:>13} {:>7}",
        "kernel", "shape", "", "error", "µs", "speed", "of copy"
    );
    let mut report = |o: &Outcome| {
        println!("{}", line(o, copy));
        let _ = std::io::stdout().flush();
    };
    let mut lab = Lab::new(gpu, full, &mut report);
    norms::check(&mut lab)?;
    products::check_decode(&mut lab)?;
    products::check_prefill(&mut lab, Body::Simdgroup)?;
    attention::check(&mut lab)?;
    attention::check_prefill(&mut lab, Body::Simdgroup)?;
    linear::check(&mut lab)?;
    linear::check_prefill(&mut lab, Body::Simdgroup)?;
    experts::check(&mut lab)?;
    experts::check_prefill(&mut lab, Body::Simdgroup)?;
    head::check(&mut lab)?;
    let before_fast = lab.outcomes.len();
    if let Ok(body) = fast {
        products::check_prefill(&mut lab, body)?;
        experts::check_prefill(&mut lab, body)?;
        if body == Body::Mma {
            attention::check_prefill(&mut lab, body)?;
            linear::check_prefill(&mut lab, body)?;
            lab.step = body;
            products::check_decode(&mut lab)?;
            attention::check_decode(&mut lab, KvType::Bf16)?;
            experts::check_decode(&mut lab)?;
        }
    }
    let outcomes = lab.outcomes;

    let failures = outcomes.iter().filter(|o| !o.holds()).count();
    let of_fast = outcomes[before_fast..].iter().filter(|o| !o.holds()).count();
    println!();
    match (fast, of_fast) {
        (Err(reason), _) => println!("Products of prefill: simdgroup_matrix, as {reason}."),
        (Ok(Body::Mma), n) => println!("Products: mma instructions; {n} of their checks failed."),
        (Ok(_), 0) => println!("Products of prefill: tensor operations."),
        (Ok(_), n) => println!(
            "Products of prefill: simdgroup_matrix is safe; {n} checks of tensor operations failed. \
             LILY_NO_TENSOR=1 keeps every command from using them."
        ),
    }
    if failures == 0 {
        println!("{} checks, all of them hold.", outcomes.len());
        Ok(ExitCode::SUCCESS)
    } else {
        println!("{failures} of {} checks FAILED.", outcomes.len());
        Ok(ExitCode::FAILURE)
    }
}

/// A row of the table. `copy`: bytes a second of a plain copy.
fn line(o: &Outcome, copy: Option<f64>) -> String {
    let verdict = if o.holds() { "ok" } else { "FAIL" };
    let error = match &o.error {
        Ok(e) => format!("{e:>9.1e}"),
        Err(text) => return format!("{:<18} {:<46} {verdict:<4} {text}", o.kernel, o.shape),
    };
    let (mut micros, mut speed, mut share) = ("-".to_owned(), "-".to_owned(), "-".to_owned());
    if let Some(seconds) = o.time.map(|t| t.as_secs_f64()).filter(|s| *s > 0.0) {
        micros = format!("{:.1}", seconds * 1e6);
        match o.work {
            Work::Bytes(n) => {
                let rate = n as f64 / seconds;
                speed = format!("{:.1} GB/s", rate / 1e9);
                share = copy.map_or(share, |copy| format!("{:.0} %", 100.0 * rate / copy));
            }
            Work::Products(n) => speed = format!("{:.2} TFLOP/s", 2.0 * n as f64 / seconds / 1e12),
        }
    }
    format!("{:<18} {:<46} {verdict:<4} {error} {micros:>9} {speed:>13} {share:>7}", o.kernel, o.shape)
}

/// Bytes read and written a second by a copy of 128 MiB, where the device tells times.
fn copy_rate<G: Gpu>(gpu: &mut G) -> Result<Option<f64>> {
    // Ask with a small copy first: one of 128 MiB is long on a device that tells nothing.
    let mut timed = |bytes: u64| -> Result<Option<Duration>> {
        let from = gpu.allocate(bytes, Contents::Activations)?;
        let to = gpu.allocate(bytes, Contents::Activations)?;
        gpu.upload(&from, 0, &vec![1; bytes as usize])?;
        let copy = CopySlices {
            from: View::of(&from),
            from_stride: bytes,
            to: View::of(&to),
            to_stride: bytes,
            bytes,
            count: 1,
        };
        Ok(time(gpu, &mut |gpu: &mut G| copy_slices(gpu, &copy)))
    };
    if timed(1 << 16)?.is_none() {
        return Ok(None);
    }
    const LARGE: u64 = 128 << 20;
    Ok(timed(LARGE)?.map(|t| 2.0 * LARGE as f64 / t.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where there is one: virtual machines may have none.
    #[cfg(target_os = "macos")]
    #[test]
    fn every_kernel_holds_on_this_mac() {
        match lily_gpu::device::metal::Metal::open() {
            Ok(mut gpu) => {
                let without = gpu.without_tensor().map(str::to_owned);
                let fast = without.as_deref().map_or(Ok(Body::Tensor), Err);
                assert_eq!(examine(&mut gpu, fast, false).unwrap(), ExitCode::SUCCESS);
            }
            Err(error) => println!("skipped: no kernel ran on Metal: {error}"),
        }
    }

    #[cfg(feature = "emulated")]
    #[test]
    fn every_kernel_holds_on_the_emulator() {
        let mut gpu = crate::device::emulated().unwrap();
        assert_eq!(examine(&mut gpu, Ok(Body::Tensor), false).unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_row_says_what_failed() {
        let outcome = |error| Outcome {
            kernel: "k",
            shape: "s".into(),
            error,
            tolerance: 1e-6,
            time: Some(Duration::from_micros(2)),
            work: Work::Bytes(2_000),
        };
        let good = line(&outcome(Ok(1e-7)), Some(2e9));
        assert!(good.contains("ok") && good.contains("1.0 GB/s") && good.contains("50 %"), "{good}");
        assert!(line(&outcome(Ok(f32::INFINITY)), None).contains("FAIL"));
        assert!(line(&outcome(Ok(f32::NAN)), None).contains("FAIL"));
        assert!(line(&outcome(Err("stopped".into())), None).contains("FAIL stopped"));
    }
}
